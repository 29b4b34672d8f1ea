//! A process of a run, from its inside: reads orders from stdin, says what happens on stdout, ends with stdin.

mod producer;
mod subscriber;

use std::sync::Arc;
use std::time::Duration;

use mcp_courier::{Courier, Error};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::sync::mpsc;

use super::args::{Role, SoakNode};
use super::lines::{Last, Order, Said};
use crate::args::Server;
use crate::output::Failure;
use crate::writer::Writer;

/// A process that is told to end gives its deliveries so long.
const GRACE: Duration = Duration::from_secs(5);

/// Stdout, a line for each thing said.
#[derive(Clone)]
struct Voice(Writer);

impl Voice {
    /// Returns when the line is out.
    async fn say(&self, said: &Said) -> std::io::Result<()> {
        self.0.line(serde_json::to_string(said)?).await
    }
}

pub async fn run(server: Server, args: SoakNode) -> Result<u8, Failure> {
    end_with_parent();
    let voice = Voice(Writer::start());
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let (sender, mut orders) = mpsc::unbounded_channel();
    let reading = tokio::spawn(async move {
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let Ok(order) = line.parse::<Order>() else { break };
            let _ = sender.send(order);
            if order == Order::End {
                break;
            }
        }
    });
    let courier = tokio::select! {
        courier = connect(&server, &args) => courier?,
        // The controller is gone.
        () = async { while orders.recv().await.is_some() {} } => return Ok(0),
    };
    voice.say(&Said::Ready).await?;
    let args = Arc::new(args);
    let speaking = match args.role {
        Role::Producer => {
            producer::run(&courier, &args, &voice, &mut orders).await?;
            None
        }
        Role::Subscriber => Some(subscriber::run(&courier, &args, &voice, &mut orders).await?),
    };
    let drained = courier.shutdown(GRACE).await;
    let sessions = courier.subscribers().count();
    let metrics = serde_json::to_value(courier.metrics()).unwrap_or_default();
    drop(courier);
    reading.abort();
    if let Some(speaking) = speaking {
        let _ = tokio::time::timeout(GRACE, speaking).await;
    }
    let left = || tasks().saturating_sub(before);
    // What was told to end needs a moment to do so.
    for _ in 0..300 {
        if left() == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let last = Last { tasks: left(), sessions, abandoned: drained.abandoned, metrics };
    voice.say(&Said::Last(last)).await?;
    Ok(0)
}

/// A server may be away just now: a run starts processes in the middle of its faults.
async fn connect(server: &Server, args: &SoakNode) -> Result<Courier, Failure> {
    let url = server.shared_url()?;
    loop {
        let builder = server.builder().dedupe(Duration::from_secs(args.dedupe_s));
        match builder.connect(url).await {
            Ok(courier) => return Ok(courier),
            Err(e @ (Error::Invalid { .. } | Error::Layout { .. })) => return Err(e.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Also when the controller is killed while this process is stopped and hears nothing.
#[cfg(target_os = "linux")]
fn end_with_parent() {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}

#[cfg(not(target_os = "linux"))]
fn end_with_parent() {}
