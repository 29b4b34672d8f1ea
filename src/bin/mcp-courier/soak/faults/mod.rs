//! What is done to a run, and how long it then takes until messages come again.

mod failover;
mod network;
mod processes;
mod server;

use serde::Serialize;

use super::args::Topology;
use super::clock;
use super::recovery::{Affected, Recovery};
use super::stage::Stage;
use crate::output::Failure;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// SIGKILL of a process that delivers; its sessions are claimed by others.
    SubscriberKill,
    /// SIGSTOP of one for longer than its lease; its sessions are claimed by others; SIGCONT.
    SubscriberPause,
    /// SIGKILL of a process that pushes, and another one in its place.
    ProducerKill,
    /// SIGSTOP of one for longer than a push may take, and SIGCONT.
    ProducerPause,
    /// CLIENT KILL of all connections.
    ClientKill,
    /// SIGTERM of a server, and its start.
    Restart,
    /// SIGKILL of a server: started again with its AOF, or a replica is promoted and it comes back behind it.
    ServerKill,
    /// A failover by order, with everything alive.
    Failover,
    /// SIGSTOP of a master past the failover, SIGCONT: two servers that take themselves for the master.
    MasterPause,
    /// A slot moves to another master, key by key.
    SlotMigration,
    /// No couriers' connection to any server, for a while.
    NetworkCut,
    /// Connections stay open and carry nothing any more, or no replies; new ones work.
    HalfOpen,
    /// Every byte arrives 50 to 400 ms later, for a while.
    Latency,
    /// SIGSTOP of a server for shorter than a failover takes, and SIGCONT.
    Stall,
    /// `maxmemory` is reached, with `noeviction`.
    Full,
    /// Snapshots fail, and the server refuses writes (MISCONF).
    FailedSnapshot,
    /// SCRIPT FLUSH.
    ScriptFlush,
    /// The server's clock jumps: not with a server that has no way to tell it so.
    ClockJump,
}

/// Beyond this, a restarted server or a healed network has not come back.
const SOON: f64 = 1.0;
/// A half-open connection is found and replaced by then.
const FOUND: f64 = 5.0;

impl Kind {
    const EVERYWHERE: [Self; 13] = [
        Self::SubscriberKill,
        Self::SubscriberPause,
        Self::ProducerKill,
        Self::ProducerPause,
        Self::ClientKill,
        Self::Restart,
        Self::ServerKill,
        Self::NetworkCut,
        Self::HalfOpen,
        Self::Latency,
        Self::Stall,
        Self::Full,
        Self::FailedSnapshot,
    ];

    /// All that a topology knows.
    pub fn all_of(topology: Topology) -> Vec<Self> {
        let mut all = Self::EVERYWHERE.to_vec();
        all.push(Self::ScriptFlush);
        if topology != Topology::Single {
            all.extend([Self::Failover, Self::MasterPause]);
        }
        if topology == Topology::Cluster {
            all.push(Self::SlotMigration);
        }
        all
    }

    pub fn word(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map(|v| v.get_name().to_owned()).unwrap_or_default()
    }

    /// Seconds from the end of the fault to the first delivery pushed after it.
    pub fn target(self) -> f64 {
        if self == Self::HalfOpen { FOUND } else { SOON }
    }

    /// Where the clock starts, for the table.
    pub fn starts(self) -> &'static str {
        match self {
            Self::SubscriberKill | Self::SubscriberPause => "the sessions are claimed elsewhere",
            Self::ProducerKill => "another producer is connected",
            Self::ProducerPause => "SIGCONT",
            Self::ClientKill => "the command's answer",
            Self::Restart => "the server takes writes",
            Self::ServerKill => "the server, or the promoted one, takes writes",
            Self::Failover | Self::MasterPause => "the promoted server takes writes",
            Self::SlotMigration => "the slot has moved",
            Self::NetworkCut => "the network is back",
            Self::HalfOpen => "the connections go silent",
            Self::Latency => "the latency is over",
            Self::Stall => "SIGCONT",
            Self::Full => "there is room again",
            Self::FailedSnapshot => "a snapshot succeeded, or the promoted server takes writes",
            Self::ScriptFlush => "the command's answer",
            Self::ClockJump => "",
        }
    }
}

/// Pushes acknowledged from `from` to `to` may be lost by the servers: the master of that time was replaced by a
/// replica.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Window {
    pub from: u64,
    pub to: u64,
}

/// One fault that happened.
#[derive(Clone, Debug, Serialize)]
pub struct Fault {
    pub kind: Kind,
    pub note: String,
    pub begin: u64,
    /// From here recovery counts.
    pub over: u64,
    /// The fault's last act, as a server that is back in its place.
    pub end: u64,
    pub recovery: Recovery,
    pub window: Option<Window>,
    /// Messages lost by replication in that window.
    pub lost_by_replication: u64,
}

impl Fault {
    /// Seconds from its begin until it was over.
    pub fn outage(&self) -> f64 {
        clock::between(self.begin, self.over).as_secs_f64()
    }
}

/// A fault in the making.
pub struct Making {
    begin: u64,
    over: Option<u64>,
    note: String,
    recovery: Recovery,
    /// Entries in the ledger when it began: no earlier one is pushed after it.
    mark: usize,
    masters: Vec<usize>,
}

impl Making {
    fn note(&mut self, note: impl Into<String>) {
        self.note = note.into();
    }

    /// Recovery counts from now on.
    fn over(&mut self) {
        self.over = Some(clock::now());
    }

    /// Waits until what was affected is served again.
    async fn recovered(&mut self, stage: &Stage, affected: &Affected) {
        let over = *self.over.get_or_insert_with(clock::now);
        self.recovery = stage.recovered(self.mark, over, affected).await;
    }
}

impl Stage {
    /// Makes a fault happen, waits for the recovery, and puts everything in its place again.
    pub async fn suffer(&mut self, kind: Kind) -> Result<Fault, Failure> {
        let masters = self.servers.masters().await?;
        let mark = self.crew.ledger().entries.len();
        let (note, recovery) = (String::new(), Recovery::default());
        let mut making = Making { begin: clock::now(), over: None, note, recovery, mark, masters };
        match kind {
            Kind::SubscriberKill => self.subscriber_kill(&mut making).await?,
            Kind::SubscriberPause => self.subscriber_pause(&mut making).await?,
            Kind::ProducerKill => self.producer_kill(&mut making).await?,
            Kind::ProducerPause => self.producer_pause(&mut making).await?,
            Kind::ClientKill => self.client_kill(&mut making).await?,
            Kind::Restart => self.restart(&mut making).await?,
            Kind::ServerKill => self.server_kill(&mut making).await?,
            Kind::Failover => self.failover(&mut making).await?,
            Kind::MasterPause => self.master_pause(&mut making).await?,
            Kind::SlotMigration => self.slot_migration(&mut making).await?,
            Kind::NetworkCut => self.network_cut(&mut making).await?,
            Kind::HalfOpen => self.half_open(&mut making).await?,
            Kind::Latency => self.latency(&mut making).await?,
            Kind::Stall => self.stall(&mut making).await?,
            Kind::Full => self.full(&mut making).await?,
            Kind::FailedSnapshot => self.failed_snapshot(&mut making).await?,
            Kind::ScriptFlush => self.script_flush(&mut making).await?,
            Kind::ClockJump => return Err(Failure::usage(super::NO_CLOCK)),
        }
        self.servers.wait_whole().await?;
        let end = clock::now();
        // Whatever was done: when another server is master now, what the old one acknowledged may be lost. Writes that a
        // replica lacked when it happened are older than the fault by no more than the lag that is allowed.
        let failed_over = kind != Kind::SlotMigration && self.servers.masters().await? != making.masters;
        let from = making.begin.saturating_sub(super::LAG_US);
        let window = failed_over.then_some(Window { from, to: end });
        let Making { begin, over, note, recovery, .. } = making;
        let over = over.unwrap_or(begin);
        Ok(Fault { kind, note, begin, over, end, recovery, window, lost_by_replication: 0 })
    }
}
