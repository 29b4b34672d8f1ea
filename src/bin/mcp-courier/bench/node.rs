//! A subscriber in a process of its own, so that its memory, CPU and connections are clean: `mcp-courier bench-node`, started
//! by `bench`. Reads a command a line from stdin, answers each with a JSON object, ends with stdin.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mcp_courier::{Courier, Delivery, NotificationSink, SinkError};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinSet;

use super::{process, stage};
use crate::args::Server;
use crate::output::{self, Failure};

/// Claims on their way at a time. Fewer than elsewhere: what they need at their peak stays with the process.
const CLAIMS: usize = 256;

#[derive(Clone, Debug, clap::Args)]
pub struct BenchNode {
    /// Never take a message: all that was fetched stays in the process.
    #[arg(long)]
    hold: bool,
}

/// What the process says about itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// CPU of all threads so far.
    pub cpu_us: Option<u64>,
    /// Bytes.
    pub resident: Option<u64>,
    /// Tasks of the runtime.
    pub tasks: u64,
    /// Sessions in its registry.
    pub sessions: u64,
    /// Messages that reached its sink.
    pub delivered: u64,
    pub acked: u64,
    /// How long the command took.
    pub seconds: f64,
}

struct Sink {
    hold: bool,
    delivered: AtomicU64,
}

impl NotificationSink for Sink {
    async fn deliver(&self, _: Delivery) -> Result<(), SinkError> {
        self.delivered.fetch_add(1, Ordering::Relaxed);
        if self.hold {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

/// The child's side.
pub async fn run(server: Server, args: BenchNode) -> Result<u8, Failure> {
    let courier = server.builder().connect(server.shared_url()?).await?;
    let sink = Arc::new(Sink { hold: args.hold, delivered: AtomicU64::new(0) });
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let start = std::time::Instant::now();
        match line.split_once(' ') {
            Some(("claim", count)) => {
                let count = count.parse().map_err(|_| Failure::usage("claim NUMBER"))?;
                claim(&courier, count, &sink).await?;
            }
            _ if line == "report" => {}
            _ => return Err(Failure::usage(format!("unknown command {line:?}"))),
        }
        output::json(&Report {
            cpu_us: process::cpu().and_then(|t| u64::try_from(t.as_micros()).ok()),
            resident: process::resident(),
            tasks: tokio::runtime::Handle::current().metrics().num_alive_tasks() as u64,
            sessions: courier.subscribers().count() as u64,
            delivered: sink.delivered.load(Ordering::Relaxed),
            acked: courier.metrics().acked,
            seconds: start.elapsed().as_secs_f64(),
        })?;
    }
    Ok(0)
}

async fn claim(courier: &Courier, count: u32, sink: &Arc<Sink>) -> Result<(), Failure> {
    let mut claims = JoinSet::new();
    for first in 0..count.min(CLAIMS as u32) {
        let (registry, sink) = (courier.subscribers(), sink.clone());
        claims.spawn(async move {
            for n in (first..count).step_by(CLAIMS) {
                registry.ensure_running(&stage::session(n)?, sink.clone()).await?;
            }
            Ok::<_, mcp_courier::Error>(())
        });
    }
    while let Some(claimed) = claims.join_next().await {
        claimed.map_err(|e| Failure::failed(e.to_string()))??;
    }
    Ok(())
}

/// The parent's side.
pub struct Node {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Node {
    /// A subscriber under a prefix.
    pub fn start(url: &str, prefix: &str, hold: bool) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("bench-node").args(["--prefix", prefix]);
        if hold {
            command.arg("--hold");
        }
        // Not on the command line, where everybody on the machine can read a password.
        command.env("MCP_COURIER_URL", url);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::failed("bench-node: no pipes"));
        };
        Ok(Self { child, stdin, lines: BufReader::new(stdout).lines() })
    }

    /// Its pid, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Serves the sessions up to a number.
    pub async fn claim(&mut self, sessions: u32) -> Result<Report, Failure> {
        self.ask(&format!("claim {sessions}")).await
    }

    pub async fn report(&mut self) -> Result<Report, Failure> {
        self.ask("report").await
    }

    /// Ends it; returns when it is gone.
    pub async fn end(mut self) -> Result<(), Failure> {
        drop(self.stdin);
        self.child.wait().await?;
        Ok(())
    }

    async fn ask(&mut self, command: &str) -> Result<Report, Failure> {
        self.stdin.write_all(format!("{command}\n").as_bytes()).await?;
        let ended = || Failure::failed("bench-node ended early");
        let line = self.lines.next_line().await?.ok_or_else(ended)?;
        serde_json::from_str(&line).map_err(|e| Failure::failed(format!("bench-node: {e}")))
    }
}
