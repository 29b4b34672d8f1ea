//! Looking at queues, nodes and this process's own health.

use std::time::Duration;

use serde::Serialize;

use crate::each::each;
use crate::keys::{Keys, Sid, decode};
use crate::{Courier, Error, Result, SessionId, script};

/// What one session's queue looks like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SessionStats {
    /// The session.
    pub session: String,
    /// Pending messages, the one being delivered included.
    pub pending: u64,
    /// Age of the oldest pending message; 0 when none is pending. Rises with the clock, with or without traffic.
    pub oldest_age_ms: u64,
    /// Failed attempts of the head.
    pub head_attempts: u64,
    /// How long the head waits for its next attempt.
    pub head_wait_ms: u64,
    /// Dead letters.
    pub dead: u64,
    /// Since when the oldest dead letter is dead.
    pub oldest_dead_age_ms: u64,
    /// The node that owns the session.
    pub owner: Option<String>,
    /// Whether the owner's lease is valid.
    pub owner_alive: bool,
}

/// A process that serves, or served, sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Node {
    /// Its id, new at each start.
    pub node: String,
    /// Whether its lease is valid.
    pub alive: bool,
    /// What is left of the lease; negative: over since.
    pub lease_ms: i64,
}

/// All queues at a glance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Overview {
    /// Sessions with an owner.
    pub owned: u64,
    /// Sessions with pending messages.
    pub waiting: u64,
    /// Pending messages, summed over the waiting sessions that were looked at.
    pub pending: u64,
    /// Age of the oldest pending message among them.
    pub oldest_age_ms: u64,
    /// The waiting sessions that were looked at, longest queue first.
    pub sessions: Vec<SessionStats>,
    /// Nodes with a lease, and those whose lease ended within the last hour.
    pub nodes: Vec<Node>,
}

/// Whether this process can do its work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Why the command connection, or the scripts, fail.
    pub commands: Option<Error>,
    /// Why the doorbell connection fails, when there is one.
    pub doorbell: Option<Error>,
}

impl Health {
    /// Nothing fails.
    pub fn is_healthy(&self) -> bool {
        self.commands.is_none() && self.doorbell.is_none()
    }
}

impl Courier {
    /// One session's numbers. Redis: `lua/stats.lua`.
    ///
    /// # Errors
    /// Those of the connection, and [`Error::Refused`].
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn stats(&self, session: &SessionId) -> Result<SessionStats> {
        let core = &self.core;
        let sids = [Sid::of(session)];
        let raw = self
            .repeat("stats", || script::stats(&core.cmd, core.keys_of(sids[0].as_str()), &sids), true)
            .await?;
        raw.into_iter()
            .next()
            .map(|raw| session_stats(&sids[0], raw))
            .ok_or_else(|| Error::Reply { op: "stats", got: "nothing".into() })
    }

    /// All queues at a glance, looking at no more than `most` waiting sessions one by one. Redis: `lua/overview.lua`,
    /// `lua/stats.lua`.
    ///
    /// # Errors
    /// Those of the connection, and [`Error::Refused`].
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn overview(&self, most: u64) -> Result<Overview> {
        let parts = each(self.core.partitions.iter().map(|p| self.overview_of(&p.keys, most))).await;
        let mut whole = Overview::default();
        for part in parts {
            let part = part?;
            whole.owned += part.owned;
            whole.waiting += part.waiting;
            whole.sessions.extend(part.sessions);
            whole.nodes.extend(part.nodes);
        }
        whole.sessions.sort_by(|a, b| b.pending.cmp(&a.pending).then_with(|| a.session.cmp(&b.session)));
        whole.sessions.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        whole.pending = whole.sessions.iter().map(|s| s.pending).sum();
        whole.oldest_age_ms = whole.sessions.iter().map(|s| s.oldest_age_ms).max().unwrap_or(0);
        // A node is in every partition; what lives longest is what counts.
        whole.nodes.sort_by(|a, b| a.node.cmp(&b.node).then(b.lease_ms.cmp(&a.lease_ms)));
        whole.nodes.dedup_by(|later, first| later.node == first.node);
        Ok(whole)
    }

    async fn overview_of(&self, keys: &Keys, most: u64) -> Result<Overview> {
        let core = &self.core;
        let first =
            self.repeat("overview", || script::overview(&core.cmd, keys, 0, most.min(500)), true).await?;
        let (mut page, mut seen, mut sessions) = (first.page, 0, Vec::new());
        while !page.is_empty() {
            match self.repeat("stats", || script::stats(&core.cmd, keys, &page), true).await {
                Ok(raw) => sessions.extend(page.iter().zip(raw).map(|(sid, raw)| session_stats(sid, raw))),
                // A foreign key in the way of one session hides no other.
                Err(Error::Refused { code, .. }) if code == "WRONGTYPE" => {
                    for sid in &page {
                        match script::stats(&core.cmd, keys, std::slice::from_ref(sid)).await {
                            Ok(raw) => sessions.extend(raw.into_iter().map(|raw| session_stats(sid, raw))),
                            Err(e) => {
                                tracing::warn!(session = sid.as_str(), error = %e, "left out of the overview")
                            }
                        }
                    }
                }
                Err(e) => return Err(e),
            }
            seen += page.len() as u64;
            let limit = most.saturating_sub(seen).min(500);
            if limit == 0 {
                break;
            }
            page =
                self.repeat("overview", || script::overview(&core.cmd, keys, seen, limit), true).await?.page;
        }
        let nodes = first.nodes.into_iter();
        Ok(Overview {
            owned: first.owned,
            waiting: first.waiting,
            sessions,
            nodes: nodes.map(|(node, lease_ms)| Node { node, alive: lease_ms > 0, lease_ms }).collect(),
            ..Overview::default()
        })
    }

    /// The processes that serve sessions, or did within the last hour. Redis: `lua/overview.lua`.
    ///
    /// # Errors
    /// Those of the connection, and [`Error::Refused`].
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn nodes(&self) -> Result<Vec<Node>> {
        Ok(self.overview(0).await?.nodes)
    }

    /// Whether this process can do its work now, as seen by its own connections and heartbeat. No round trip.
    pub fn health(&self) -> Health {
        self.engine.health()
    }

    /// A round trip through a script, within the call timeout.
    ///
    /// # Errors
    /// Those of the connection, and [`Error::Refused`].
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn ping(&self) -> Result<Duration> {
        let start = tokio::time::Instant::now();
        script::overview(&self.core.cmd, &self.core.partitions[0].keys, 0, 0).await?;
        Ok(start.elapsed())
    }
}

fn session_stats(sid: &Sid, raw: script::RawStats) -> SessionStats {
    SessionStats {
        session: decode(sid.as_str()),
        pending: raw.pending,
        oldest_age_ms: raw.age_ms,
        head_attempts: raw.attempts,
        head_wait_ms: raw.wait_ms,
        dead: raw.dead,
        oldest_dead_age_ms: raw.dead_age_ms,
        owner_alive: !raw.owner.is_empty() && raw.lease_ms > 0,
        owner: (!raw.owner.is_empty()).then(|| raw.owner.split(':').next().unwrap_or_default().to_owned()),
    }
}
