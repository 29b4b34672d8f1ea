//! `mcp-courier listen`: prints what is delivered.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use mcp_courier::{CancellationToken, Delivery, NotificationSink, SinkError};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::args::{Listen, Server};
use crate::output::{self, FAILED, Failure};

/// How long deliveries in progress may take after Ctrl-C.
const GRACE: Duration = Duration::from_secs(5);

pub async fn run(server: &Server, args: Listen) -> Result<u8, Failure> {
    // Before anything is claimed: a signal from here on ends in good order.
    let mut stopping = std::pin::pin!(stop_signal()?);
    let courier = server.connect().await?;
    let printer = Printer {
        delay: args.delay,
        fail_rate: args.fail_rate,
        exec: args.exec.map(Into::into),
        left: args.max.map(|max| Arc::new(AtomicU64::new(max))),
        printed: Arc::default(),
        done: CancellationToken::new(),
        broken: CancellationToken::new(),
    };
    let mut serving = tokio::task::JoinSet::new();
    for session in args.sessions {
        let (courier, printer) = (courier.clone(), printer.clone());
        let never = CancellationToken::new();
        serving.spawn(async move { courier.subscriber_loop(&session, printer, never).await });
    }
    let code = tokio::select! {
        () = &mut stopping => 0,
        () = printer.done.cancelled() => 0,
        () = printer.broken.cancelled() => 0,
        failed = all_ended(&mut serving) => return failed.map(|()| {
            eprintln!("mcp-courier: every session was claimed by another process");
            FAILED
        }),
    };
    courier.shutdown(GRACE).await;
    Ok(code)
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

/// Ctrl-C or SIGTERM, heard from now on.
#[cfg(unix)]
fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Ctrl-C.
#[cfg(not(unix))]
fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    Ok(async {
        let _ = tokio::signal::ctrl_c().await;
    })
}

#[derive(Clone)]
struct Printer {
    delay: Option<Duration>,
    fail_rate: f64,
    exec: Option<Arc<str>>,
    /// Lines that may still be printed.
    left: Option<Arc<AtomicU64>>,
    printed: Arc<AtomicU64>,
    /// The last line is out.
    done: CancellationToken,
    /// Nobody reads our stdout any more.
    broken: CancellationToken,
}

impl NotificationSink for Printer {
    async fn deliver(&self, delivery: Delivery) -> Result<(), SinkError> {
        if let Some(delay) = self.delay {
            tokio::time::sleep(delay).await;
        }
        if self.fail_rate > 0.0 && fastrand::f64() < self.fail_rate {
            return Err(SinkError::retry("failed on purpose (--fail-rate)"));
        }
        let line = line_of(&delivery);
        let last = match &self.left {
            // What comes after the last line stays queued.
            Some(left) => match left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)) {
                Ok(before) => before == 1,
                Err(_) => return Err(SinkError::Closed),
            },
            None => false,
        };
        let taken = match &self.exec {
            Some(command) => execute(command, &line).await,
            None => output::line(&line).map_err(|_| {
                self.broken.cancel();
                SinkError::Closed
            }),
        };
        match (&taken, &self.left) {
            (Ok(()), _) => {
                self.printed.fetch_add(1, Ordering::Relaxed);
                if last {
                    self.done.cancel();
                }
            }
            (Err(_), Some(left)) => {
                left.fetch_add(1, Ordering::SeqCst);
            }
            (Err(_), None) => {}
        }
        taken
    }
}

/// `{"session","id","attempt","notification"}`, the notification with its own bytes. A body that is not JSON stands
/// in `body_base64` instead.
fn line_of(delivery: &Delivery) -> String {
    let (session, id) = (delivery.session.as_str(), delivery.id.as_str());
    // White space between tokens is the only place of a line break in JSON.
    let text = std::str::from_utf8(delivery.body()).ok().map(|text| text.replace(['\n', '\r'], " "));
    let raw = text.and_then(|text| RawValue::from_string(text.trim().to_owned()).ok());
    let line = match raw {
        Some(notification) => serde_json::to_string(&Line {
            session,
            id,
            attempt: delivery.attempt,
            notification: &notification,
        }),
        None => {
            let body = base64::engine::general_purpose::STANDARD.encode(delivery.body());
            serde_json::to_string(
                &json!({ "session": session, "id": id, "attempt": delivery.attempt, "body_base64": body }),
            )
        }
    };
    line.unwrap_or_default()
}

#[derive(serde::Serialize)]
struct Line<'a> {
    session: &'a str,
    id: &'a str,
    attempt: u32,
    notification: &'a RawValue,
}

/// Runs the command with the line on its stdin; its end with 0 is the delivery.
async fn execute(command: &str, line: &str) -> Result<(), SinkError> {
    let child = Command::new("sh").arg("-c").arg(command).stdin(Stdio::piped()).kill_on_drop(true).spawn();
    let mut child = child.map_err(|e| SinkError::retry(format!("cannot run the command: {e}")))?;
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
