//! What the command line takes.

use std::time::Duration;

use clap::{Parser, Subcommand};
use mcp_courier::{Builder, Courier, MessageId, SessionId};

use crate::bench::{Bench, BenchNode};
use crate::output::Failure;
#[cfg(unix)]
use crate::soak::{Soak, SoakNode};
use crate::tasks::TaskCommand;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  not done: something was lost, refused, superseded, or is a problem (`doctor`; its warnings are 0)
  2  wrong usage
  3  no server, or it refused the connection";

/// The Redis-native notification queue for MCP servers that run on more than one process.
#[derive(Debug, Parser)]
#[command(name = "mcp-courier", version, after_help = EXIT_CODES)]
pub struct Args {
    #[command(flatten)]
    pub server: Server,
    /// Print one JSON object a line.
    #[arg(long, global = true)]
    pub json: bool,
    /// Log to stderr; twice for more. RUST_LOG says it in detail.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    #[command(subcommand)]
    pub command: Command,
}

/// Where the queues are.
#[derive(Debug, clap::Args)]
pub struct Server {
    /// redis://[user:password@]host[:port][/db], rediss://…, redis+unix:///path; `demo` runs on memory:// without one.
    #[arg(long, global = true, env = "MCP_COURIER_URL", hide_env_values = true)]
    pub url: Option<String>,
    /// Prefix of every key.
    #[arg(long, global = true, default_value = "courier")]
    pub prefix: String,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Push, deliver, kill subscribers in the middle, and count what was lost: nothing.
    Demo(Demo),
    /// Push a notification, or one a line from stdin.
    Push(Push),
    /// Print what is delivered, one JSON object a line; acked when the line is out.
    Listen(Listen),
    /// Show the queues, or those of some sessions.
    Stats(Stats),
    /// Dead letters.
    #[command(subcommand)]
    Dead(Dead),
    /// Durable tasks: who has which, where they stand, cancel one, have one's work done once more.
    #[command(subcommand)]
    Tasks(TaskCommand),
    /// Carry messages from or to another queue, until it is stopped.
    #[command(subcommand)]
    Bridge(Bridge),
    /// Look at the server and say what to change.
    Doctor,
    /// Measure delivery beside raw baselines; on a private server of its own without --url.
    Bench(Bench),
    /// A process for `bench` to look at.
    #[command(hide = true)]
    BenchNode(BenchNode),
    /// Push and deliver for minutes while servers, processes and networks fail, and account for every message.
    #[cfg(unix)]
    Soak(Soak),
    /// A process of `soak`.
    #[cfg(unix)]
    #[command(hide = true)]
    SoakNode(SoakNode),
}

#[derive(Debug, clap::Args)]
pub struct Demo {
    /// Sessions.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub sessions: u32,
    /// Messages, over all sessions.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub messages: u32,
    /// Workers that push.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub workers: u32,
}

#[derive(Debug, clap::Args)]
pub struct Push {
    /// The session.
    #[arg(long)]
    pub session: SessionId,
    /// Time to live, as in 5m or 300ms.
    #[arg(long, value_parser = humantime::parse_duration)]
    pub ttl: Option<Duration>,
    /// The message's id; a second push with it within the idempotence window queues nothing.
    #[arg(long)]
    pub id: Option<MessageId>,
    /// A newer message with the same key takes a pending one's place.
    #[arg(long)]
    pub coalesce: Option<String>,
    /// A notification as JSON, or - for one a line from stdin.
    #[arg(value_name = "JSON | -", allow_hyphen_values = true)]
    pub notification: String,
}

#[derive(Debug, clap::Args)]
pub struct Listen {
    /// A session; may be given many times.
    #[arg(long = "session", required = true)]
    pub sessions: Vec<SessionId>,
    /// End after so many lines.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub max: Option<u64>,
    /// Wait so long before each line, as a slow client would.
    #[arg(long, value_parser = humantime::parse_duration)]
    pub delay: Option<Duration>,
    /// Fail this share of the deliveries, 0 to 1.
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    pub fail_rate: f64,
    /// Attempts before a message becomes a dead letter; a crash counts as one.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_attempts: u32,
    /// Run this command for each delivery, with the line on its stdin; acked when it ends with 0.
    #[arg(long, value_name = "CMD")]
    pub exec: Option<String>,
}

#[derive(Debug, clap::Args)]
pub struct Stats {
    /// A session; may be given many times. Without one: all queues at a glance.
    #[arg(long = "session")]
    pub sessions: Vec<SessionId>,
    /// Look at no more than so many waiting sessions one by one.
    #[arg(long, default_value_t = 1000)]
    pub most: u64,
}

#[derive(Debug, Subcommand)]
pub enum Bridge {
    /// FastMCP 3: what its workers push, or what its subscribers wait for.
    Fastmcp(BridgeFastMcp),
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("way").required(true).args(["to_courier", "to_fastmcp"]))]
pub struct BridgeFastMcp {
    /// Bring what FastMCP's workers push into our queues.
    #[arg(long)]
    pub to_courier: bool,
    /// Hand what is in our queues to FastMCP's subscribers.
    #[arg(long)]
    pub to_fastmcp: bool,
    /// FastMCP's server (its FASTMCP_DOCKET_URL); without it the same as --url.
    #[arg(long, env = "FASTMCP_DOCKET_URL", hide_env_values = true)]
    pub fastmcp_url: Option<String>,
    /// FastMCP's Docket name.
    #[arg(long, env = "FASTMCP_DOCKET_NAME", default_value = "fastmcp")]
    pub docket: String,
    /// A session; may be given many times. Without one: all that have something to carry.
    #[arg(long = "session")]
    pub sessions: Vec<SessionId>,
    /// How often to look for messages of FastMCP's workers.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "100ms")]
    pub look_every: Duration,
}

#[derive(Debug, Subcommand)]
pub enum Dead {
    /// List them, oldest first.
    List {
        /// The session.
        #[arg(long)]
        session: SessionId,
        /// No more than so many.
        #[arg(long, default_value_t = 100)]
        limit: u64,
        /// From so many on.
        #[arg(long, default_value_t = 0)]
        offset: u64,
    },
    /// Put them back at the end of the queue, with fresh attempts.
    Requeue(Chosen),
    /// Remove them for good.
    Purge(Chosen),
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["id", "all"]))]
pub struct Chosen {
    /// The session.
    #[arg(long)]
    pub session: SessionId,
    /// One message.
    #[arg(long)]
    pub id: Option<MessageId>,
    /// All of the session.
    #[arg(long)]
    pub all: bool,
}

impl Server {
    /// What was given; an empty variable is none.
    pub fn given(&self) -> Option<&str> {
        self.url.as_deref().filter(|url| !url.is_empty())
    }

    /// The URL of a server that other processes reach as well.
    pub fn shared_url(&self) -> Result<&str, Failure> {
        let url = self.given().ok_or_else(|| {
            Failure::usage(
                "no server: give --url redis://host or set MCP_COURIER_URL (only `demo` runs without one)",
            )
        })?;
        if url.starts_with("memory:") {
            return Err(Failure::usage(
                "memory:// lives in one process, and another command would not see it: give a redis:// URL",
            ));
        }
        Ok(url)
    }

    pub fn builder(&self) -> Builder {
        Courier::builder().prefix(&self.prefix)
    }

    pub async fn connect(&self) -> Result<Courier, Failure> {
        Ok(self.builder().connect(self.shared_url()?).await?)
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|e| format!("{e}"))?;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err("use a number from 0 to 1".into()) }
}
