//! `mcp-courier listen`: prints what is delivered.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mcp_courier::{CancellationToken, Delivery, NotificationSink, SinkError};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::Semaphore;

use crate::args::{Listen, Server};
use crate::output::{self, FAILED, Failure};
use crate::signals;
use crate::writer::Writer;

/// How long deliveries in progress may take after Ctrl-C.
const GRACE: Duration = Duration::from_secs(5);

pub async fn run(server: &Server, args: Listen) -> Result<u8, Failure> {
    // Before anything is claimed: a signal from here on ends in good order.
    let mut stopping = std::pin::pin!(signals::stop()?);
    let courier = server.builder().max_attempts(args.max_attempts).connect(server.shared_url()?).await?;
    let printer = Printer {
        delay: args.delay,
        fail_rate: args.fail_rate,
        exec: args.exec.map(Into::into),
        writer: Writer::start(),
        most: args.max.map(|max| Arc::new(Most::new(max))),
        done: CancellationToken::new(),
    };
    let mut serving = tokio::task::JoinSet::new();
    for session in args.sessions {
        let (courier, printer) = (courier.clone(), printer.clone());
        let never = CancellationToken::new();
        serving.spawn(async move { courier.subscriber_loop(&session, printer, never).await });
    }
    let ended = tokio::select! {
        biased;
        () = &mut stopping => Ok(0),
        () = printer.done.cancelled() => Ok(0),
        ended = all_ended(&mut serving) => ended.map(|()| {
            eprintln!("mcp-courier: every session was claimed by another process");
            FAILED
        }),
    };
    // Also when one session could not be served: the others are given back.
    courier.shutdown(GRACE).await;
    ended
}

/// Until no session is served any more; the first error of one that could not be.
async fn all_ended(
    serving: &mut tokio::task::JoinSet<mcp_courier::Result<mcp_courier::Ended>>,
) -> Result<(), Failure> {
    while let Some(ended) = serving.join_next().await {
        if let Ok(Err(e)) = ended {
            return Err(e.into());
        }
    }
    Ok(())
}

#[derive(Clone)]
struct Printer {
    delay: Option<Duration>,
    fail_rate: f64,
    exec: Option<Arc<str>>,
    writer: Writer,
    most: Option<Arc<Most>>,
    /// The last line is out, or nobody reads our stdout any more.
    done: CancellationToken,
}

/// `--max`: so many lines, over all sessions.
struct Most {
    /// Of lines that are neither out nor on their way.
    left: Semaphore,
    /// Of lines that are not out.
    missing: AtomicU64,
}

impl Most {
    fn new(max: u64) -> Self {
        let permits = usize::try_from(max).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self { left: Semaphore::new(permits), missing: AtomicU64::new(max) }
    }
}

impl NotificationSink for Printer {
    async fn deliver(&self, delivery: Delivery) -> Result<(), SinkError> {
        if let Some(delay) = self.delay {
            tokio::time::sleep(delay).await;
        }
        if self.fail_rate > 0.0 && fastrand::f64() < self.fail_rate {
            return Err(SinkError::retry("failed on purpose (--fail-rate)"));
        }
        let Some(most) = &self.most else { return self.hand_over(&delivery).await };
        // While others may still fail, what comes after the last line waits: it could be the last line yet.
        let permit = tokio::select! {
            biased;
            () = self.done.cancelled() => return Err(SinkError::Closed),
            permit = most.left.acquire() => permit.map_err(|_| SinkError::Closed)?,
        };
        self.hand_over(&delivery).await?;
        permit.forget();
        if most.missing.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.done.cancel();
        }
        Ok(())
    }
}

impl Printer {
    async fn hand_over(&self, delivery: &Delivery) -> Result<(), SinkError> {
        let line = line_of(delivery);
        if let Some(command) = &self.exec {
            return execute(command, &line).await;
        }
        self.writer.line(line).await.map_err(|_| {
            self.done.cancel();
            SinkError::Closed
        })
    }
}

/// `{"session","id","attempt","notification"}`.
fn line_of(delivery: &Delivery) -> String {
    let head =
        Head { session: delivery.session.as_str(), id: delivery.id.as_str(), attempt: delivery.attempt };
    output::with_body(&head, delivery.body())
}

#[derive(serde::Serialize)]
struct Head<'a> {
    session: &'a str,
    id: &'a str,
    attempt: u32,
}

/// Runs the command with the line on its stdin; its end with 0 is the delivery.
async fn execute(command: &str, line: &str) -> Result<(), SinkError> {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).stdin(Stdio::piped()).kill_on_drop(true);
    // Ctrl-C in a terminal goes to the whole group: it is for us, and not a failed attempt of the command.
    #[cfg(unix)]
    shell.process_group(0);
    let mut child = shell.spawn().map_err(|e| SinkError::retry(format!("cannot run the command: {e}")))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command that does not read its input is free not to.
        let _ = stdin.write_all(line.as_bytes()).await;
        let _ = stdin.write_all(b"\n").await;
    }
    match child.wait().await {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(SinkError::retry(format!("the command ended with {status}"))),
        Err(e) => Err(SinkError::retry(e)),
    }
}
