//! What `bench` takes, and the sizes that follow from it.

use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug, clap::Args)]
pub struct Bench {
    /// What to measure; everything but `growth` without one.
    #[arg(long, value_delimiter = ',', value_enum)]
    pub only: Vec<Scenario>,
    /// Measure what the project's targets need and judge each of them; exits with the number of short ones.
    #[arg(long, conflicts_with_all = ["only", "quick", "render"])]
    pub targets: bool,
    /// Everything once, small and short: shows that it works, measures nothing.
    #[arg(long)]
    pub quick: bool,
    /// Rounds; each one runs every side once.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// Claimed sessions, one step for each number.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub sessions: Vec<u32>,
    /// Bytes of a message's body, where no scenario says otherwise.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(32..=1_048_576))]
    pub body: u32,
    /// How long one side of one round is under load.
    #[arg(long, value_parser = humantime::parse_duration)]
    pub load: Option<Duration>,
    /// How long the idle cost is watched.
    #[arg(long, value_parser = humantime::parse_duration)]
    pub idle: Option<Duration>,
    /// The idempotence window of the pushes; short, so that its keys also expire while it is measured. 0s for none.
    #[arg(long, default_value = "2s", value_parser = humantime::parse_duration)]
    pub dedupe: Duration,
    /// Worker threads of the runtime; 1 for a current-thread runtime. Default: one for each core.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Option<u32>,
    /// The server program to start when there is no --url.
    #[arg(long, default_value = "redis-server")]
    pub server_program: PathBuf,
    /// Also write the JSON lines to this file.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Measure everything and write results.jsonl, results.md and plot.svg into this folder.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["only", "render"])]
    pub report: Option<PathBuf>,
    /// Measure nothing: make results.md and plot.svg of this folder anew from its results.jsonl.
    #[arg(long, value_name = "DIR")]
    pub render: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scenario {
    /// One message at a time, from just before the push to the sink.
    Latency,
    /// 1 and 64 pushers, push to acked.
    Throughput,
    /// Messages that wait before anybody serves them.
    Drain,
    /// Bodies of 100 B to 256 KiB.
    Bodies,
    /// A process with many sessions and nothing to do: CPU, memory, connections, keys, tasks.
    Idle,
    /// Bytes of a pending message, in Redis and in the owner.
    Memory,
    /// Claiming all sessions, and taking them over.
    Claim,
    /// Both connections cut with messages pending, until they are delivered.
    Resync,
    /// A doorbell that nobody hears.
    Doorbell,
    /// Ten times the sessions against the most of `--sessions`.
    Growth,
}

/// Every number that says how much is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    pub only: Vec<Scenario>,
    pub rounds: u32,
    pub sessions: Vec<u32>,
    pub pushers: [u32; 2],
    pub body: usize,
    pub bodies: Vec<usize>,
    pub load: Duration,
    pub idle: Duration,
    pub dedupe: Duration,
    /// Messages of one latency run.
    pub singles: u32,
    pub preloaded: u32,
    pub benchmark_requests: u32,
}

impl Bench {
    pub fn plan(&self) -> Plan {
        use Scenario::{Bodies, Claim, Doorbell, Drain, Idle, Latency, Memory, Resync, Throughput};
        let all = || vec![Latency, Throughput, Drain, Bodies, Idle, Memory, Claim, Resync, Doorbell];
        let only = if self.targets {
            vec![Latency, Throughput, Drain, Idle, Claim, Resync, Doorbell]
        } else if self.only.is_empty() {
            all()
        } else {
            self.only.clone()
        };
        let sessions = match (self.sessions.is_empty(), self.quick) {
            (false, _) => self.sessions.clone(),
            (true, true) => vec![1, 200],
            (true, false) => vec![1, 1_000, 100_000],
        };
        let quick = |quick: u32, full: u32| if self.quick { quick } else { full };
        Plan {
            only,
            rounds: self.rounds.unwrap_or(quick(1, 5)),
            sessions,
            pushers: [1, quick(8, 64)],
            body: self.body as usize,
            bodies: if self.quick { vec![100, 16 << 10] } else { vec![100, 1 << 10, 16 << 10, 256 << 10] },
            load: self.load.unwrap_or(Duration::from_millis(u64::from(quick(100, 1500)))),
            idle: self.idle.unwrap_or(Duration::from_millis(u64::from(quick(300, 30_000)))),
            dedupe: self.dedupe,
            singles: quick(20, 300),
            preloaded: quick(2_000, 100_000),
            benchmark_requests: quick(2_000, 60_000),
        }
    }
}

impl Plan {
    pub fn has(&self, scenario: Scenario) -> bool {
        self.only.contains(&scenario)
    }

    pub fn most_sessions(&self) -> u32 {
        self.sessions.iter().copied().max().unwrap_or(1)
    }
}
