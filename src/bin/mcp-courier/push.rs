//! `mcp-courier push`: one notification, or one a line from stdin.

use std::io::BufRead;

use mcp_courier::{Error, MessageId, Push, Pushed};
use serde_json::json;
use tokio::sync::mpsc;

use crate::args::{self, Server};
use crate::output::{self, FAILED, Failure};

/// Messages in one round trip.
const BATCH: usize = 256;

pub async fn run(server: &Server, json: bool, args: args::Push) -> Result<u8, Failure> {
    let mut answers = Answers { args: &args, json, muted: false };
    if args.notification != "-" {
        let body = check(args.notification.as_bytes()).map_err(Failure::from)?.to_vec();
        let courier = server.connect().await?;
        let pushed = courier.push(one(&args, body, args.id.clone())).await;
        return Ok(if answers.report(args.id.as_ref(), pushed)? { 0 } else { FAILED });
    }
    if args.id.is_some() {
        return Err(Failure::usage("--id names one message, and - reads many: leave it out"));
    }
    let courier = server.connect().await?;
    let mut lines = stdin_lines();
    let mut failed = false;
    let mut batch = Vec::new();
    while lines.recv_many(&mut batch, BATCH).await > 0 {
        // The order of the lines is the order in the queue: one batch after the other, each in order.
        let mut ids = Vec::with_capacity(batch.len());
        let mut pushes = Vec::new();
        for line in batch.drain(..) {
            match line.map_err(Failure::from).and_then(|line| Ok(check(&line).map(<[u8]>::to_vec)?)) {
                Ok(body) => {
                    let id = MessageId::new(uuid::Uuid::now_v7().to_string())?;
                    pushes.push(one(&args, body, Some(id.clone())));
                    ids.push(Ok(id));
                }
                Err(why) => ids.push(Err(why)),
            }
        }
        let mut pushed = courier.push_many(pushes).await.into_iter();
        for id in ids {
            let ok = match id {
                Ok(id) => answers.report(Some(&id), pushed.next().unwrap_or(Err(closed())))?,
                Err(why) => answers.refuse(None, "invalid", &why)?,
            };
            failed |= !ok;
        }
    }
    Ok(if failed { FAILED } else { 0 })
}

fn closed() -> Error {
    Error::Closed { op: "push" }
}

fn one(args: &args::Push, body: Vec<u8>, id: Option<MessageId>) -> Push {
    let mut push = Push::new(&args.session, body);
    if let Some(ttl) = args.ttl {
        push = push.ttl(ttl);
    }
    if let Some(key) = &args.coalesce {
        push = push.coalesce(key);
    }
    if let Some(id) = id {
        push = push.id(id);
    }
    push
}

/// A notification by its form; the bytes that are pushed are the ones given.
fn check(text: &[u8]) -> Result<&[u8], Error> {
    let body = text.trim_ascii();
    let invalid = |why: String| Error::Invalid { what: "notification", why };
    if !body.starts_with(b"{") {
        return Err(invalid(
            "is no JSON object; it looks like {\"method\":\"notifications/…\",\"params\":{…}}".into(),
        ));
    }
    // One line is one text: where in it is worth telling, which line of the text is not.
    let form: Form<'_> = serde_json::from_slice(body)
        .map_err(|e| invalid(e.to_string().replace(" at line 1 column ", " at byte ")))?;
    if form.method.is_empty() {
        return Err(invalid("its method is empty".into()));
    }
    Ok(body)
}

/// What makes a notification, however deep its params are.
#[derive(serde::Deserialize)]
struct Form<'a> {
    method: String,
    #[serde(borrow, default, rename = "params")]
    _params: Option<&'a serde_json::value::RawValue>,
}

/// Tells how each push went.
struct Answers<'a> {
    args: &'a args::Push,
    json: bool,
    /// Nobody reads our stdout. What is on stdin is pushed all the same: it was not asked of the reader.
    muted: bool,
}

impl Answers<'_> {
    /// False when it was not queued.
    fn report(&mut self, id: Option<&MessageId>, pushed: Result<Pushed, Error>) -> Result<bool, Failure> {
        match pushed {
            Ok(pushed) => {
                let (id, status) = (pushed.id.as_str(), pushed.status.as_str());
                let session = self.args.session.as_str();
                let text = if self.json {
                    json!({ "session": session, "id": id, "status": status }).to_string()
                } else {
                    format!("{status} {id}")
                };
                self.line(&text)?;
                Ok(true)
            }
            // One message, and no server or no sense in it: that is how the command ends.
            Err(e @ (Error::Unreachable { .. } | Error::Timeout { .. } | Error::Invalid { .. }))
                if self.args.notification != "-" =>
            {
                Err(e.into())
            }
            Err(e) => {
                let status = if matches!(e, Error::QueueFull { .. }) { "full" } else { "refused" };
                self.refuse(id, status, &e)
            }
        }
    }

    fn refuse(
        &mut self,
        id: Option<&MessageId>,
        status: &str,
        why: &impl std::fmt::Display,
    ) -> Result<bool, Failure> {
        if self.json {
            let (session, id) = (self.args.session.as_str(), id.map(MessageId::as_str));
            let answer = json!({ "session": session, "id": id, "status": status, "error": why.to_string() });
            self.line(&answer.to_string())?;
        } else {
            eprintln!("mcp-courier: {why}");
        }
        Ok(false)
    }

    fn line(&mut self, text: &str) -> Result<(), Failure> {
        if self.muted {
            return Ok(());
        }
        match output::line(text) {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => self.muted = true,
            other => other?,
        }
        Ok(())
    }
}

/// Lines of stdin, read by a thread of their own: a reader that waits must not hold up what was read.
fn stdin_lines() -> mpsc::Receiver<std::io::Result<Vec<u8>>> {
    let (sender, lines) = mpsc::channel(4 * BATCH);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().split(b'\n') {
            if line.as_ref().is_ok_and(|line| line.trim_ascii().is_empty()) {
                continue;
            }
            let broken = line.is_err();
            if sender.blocking_send(line).is_err() || broken {
                return;
            }
        }
    });
    lines
}
