//! How long it takes after a fault until messages come again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::clock;
use super::ledger::Ledger;
use super::message::Name;
use super::stage::Stage;

/// Without a delivery for so long after a fault, a session is not served any more.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a fault concerns.
#[derive(Clone, Debug)]
pub enum Affected {
    All,
    Sessions(Vec<u32>),
    /// What one producer pushes, to these sessions.
    Streams(u32, Vec<u32>),
}

impl Affected {
    fn sessions(&self, all: u32) -> Vec<u32> {
        match self {
            Self::All => (0..all).collect(),
            Self::Sessions(sessions) | Self::Streams(_, sessions) => sessions.clone(),
        }
    }

    fn concerns(&self, name: Name) -> bool {
        match self {
            Self::All => true,
            Self::Sessions(sessions) => sessions.contains(&name.session),
            Self::Streams(producer, _) => name.producer == *producer,
        }
    }
}

/// Seconds from the end of a fault to deliveries of messages whose push began after it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Recovery {
    /// The first one in any of the sessions that were affected.
    pub first: Option<f64>,
    /// Until each of them had one: the pause between two pushes to a session is part of it.
    pub all: Option<f64>,
    /// Sessions that had none in time.
    pub silent: Vec<u32>,
}

impl Recovery {
    /// From what the ledger holds by now.
    fn look(ledger: &Ledger, mark: usize, over: u64, affected: &Affected, sessions: &[u32]) -> Self {
        let mut first: HashMap<u32, u64> = HashMap::new();
        let later = ledger.entries.get(mark..).unwrap_or_default();
        let later = later.iter().filter(|e| e.begun().is_some_and(|begun| begun >= over));
        for entry in later.filter(|e| affected.concerns(e.name)) {
            let Some(at) = entry.first() else { continue };
            let known = first.entry(entry.name.session).or_insert(at);
            *known = at.min(*known);
        }
        let seconds = |at: u64| clock::between(over, at).as_secs_f64();
        let silent: Vec<u32> = sessions.iter().copied().filter(|s| !first.contains_key(s)).collect();
        let all = first.values().max().filter(|_| silent.is_empty());
        Self { first: first.values().min().map(|&at| seconds(at)), all: all.map(|&at| seconds(at)), silent }
    }
}

impl Stage {
    /// Waits until each session that was affected had a delivery of something pushed after the fault.
    pub async fn recovered(&self, mark: usize, over: u64, affected: &Affected) -> Recovery {
        let sessions = affected.sessions(self.args.sessions);
        let end = Instant::now() + PATIENCE;
        loop {
            let now = Recovery::look(&self.crew.ledger(), mark, over, affected, &sessions);
            if now.silent.is_empty() || Instant::now() > end {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
