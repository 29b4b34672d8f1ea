//! What `soak` takes.

use std::path::PathBuf;
use std::time::Duration;

use super::faults::Kind;

#[derive(Clone, Debug, clap::Args)]
pub struct Soak {
    /// How long faults happen; what comes before and after is not counted.
    #[arg(long, default_value_t = 10.0, value_parser = minutes)]
    pub minutes: f64,
    /// Decides every chance of the run; a new one without it. The order of events between processes is not decided by it.
    #[arg(long)]
    pub seed: Option<u64>,
    /// The servers to start.
    #[arg(long, value_enum, default_value_t = Topology::Single)]
    pub topology: Topology,
    /// Only these faults; all that the topology knows without it.
    #[arg(long, value_delimiter = ',', value_enum)]
    pub faults: Vec<Kind>,
    /// Sessions.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub sessions: u32,
    /// Processes that push; each session has two of them, where there are two.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub producers: u32,
    /// Processes that deliver.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=16))]
    pub subscribers: u32,
    /// Messages per second, over all sessions.
    #[arg(long, default_value_t = 200.0, value_parser = rate)]
    pub rate: f64,
    /// Let masters acknowledge writes that no replica takes: shows what the setting is good for.
    #[arg(long)]
    pub no_min_replicas: bool,
    /// `appendfsync` of the servers: always, everysec or no.
    #[arg(long, default_value = "always")]
    pub appendfsync: String,
    /// The server program to start.
    #[arg(long, default_value = "redis-server")]
    pub server_program: PathBuf,
    /// Write the report to this file, as JSON.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Write down everything that the processes said, a JSON object a line.
    #[arg(long)]
    pub log: Option<PathBuf>,
    /// The checker forgets the deliveries of one message, and must find it lost: shows that it looks.
    #[arg(long, hide = true)]
    pub forget_one: bool,
    /// The checker swaps the deliveries of two neighbours, and must find them out of order.
    #[arg(long, hide = true)]
    pub swap_two: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Topology {
    /// One server with AOF.
    Single,
    /// A master, two replicas, three sentinels.
    Sentinel,
    /// Three masters with a replica each.
    Cluster,
}

impl Topology {
    pub fn word(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
        }
    }
}

impl Soak {
    pub fn time(&self) -> Duration {
        Duration::from_secs_f64(self.minutes * 60.0)
    }
}

fn minutes(text: &str) -> Result<f64, String> {
    positive(text, 100_000.0)
}

fn rate(text: &str) -> Result<f64, String> {
    positive(text, 1_000_000.0)
}

fn positive(text: &str, most: f64) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|e| format!("{e}"))?;
    if number > 0.0 && number <= most { Ok(number) } else { Err(format!("use more than 0, at most {most}")) }
}

/// A process of a run.
#[derive(Clone, Debug, clap::Args)]
pub struct SoakNode {
    /// What it does.
    #[arg(value_enum)]
    pub role: Role,
    /// Its number among those of its role.
    #[arg(long)]
    pub number: u32,
    /// How many had this number before it.
    #[arg(long)]
    pub life: u32,
    #[arg(long)]
    pub seed: u64,
    /// The sessions that a producer pushes to.
    #[arg(long, value_delimiter = ',')]
    pub sessions: Vec<u32>,
    /// Between two pushes of a producer to a session.
    #[arg(long, default_value_t = 1000)]
    pub every_ms: u64,
    /// The idempotence window.
    #[arg(long)]
    pub dedupe_s: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Role {
    /// Pushes.
    Producer,
    /// Delivers.
    Subscriber,
}

impl Role {
    pub fn word(self) -> &'static str {
        match self {
            Self::Producer => "producer",
            Self::Subscriber => "subscriber",
        }
    }
}
