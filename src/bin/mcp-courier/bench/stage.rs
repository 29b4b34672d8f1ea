//! A subscriber with its sessions, and a producer in front of it: two couriers that share nothing but Redis.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mcp_courier::{Courier, Delivery, NotificationSink, Push, SessionId, SinkError};
use tokio::task::JoinSet;

use super::ledger::{Ledger, PATIENCE};
use super::load::System;
use super::server::Target;
use crate::output::Failure;

/// Most pushers at a time.
pub const MOST_PUSHERS: usize = 64;
/// Claims on their way at a time.
const CLAIMS: usize = 2048;

/// Sessions claimed by one courier, and another one to push.
pub struct Stage {
    pub name: String,
    pub subscriber: Courier,
    pub producer: Courier,
    pub sessions: Arc<[SessionId]>,
    pub ledger: Arc<Ledger>,
    /// How long the claims took.
    pub claimed_in: Duration,
}

impl Stage {
    /// Claims them all.
    pub async fn new(
        target: &Target,
        name: &str,
        count: u32,
        dedupe: Duration,
    ) -> Result<Arc<Self>, Failure> {
        let sessions = sessions(count)?;
        let ledger = Arc::new(ledger(sessions.len())?);
        let subscriber = target.builder(name, dedupe).connect(target.url()).await?;
        let start = Instant::now();
        claim(&subscriber, &sessions, &ledger).await?;
        let claimed_in = start.elapsed();
        let producer = target.builder(name, dedupe).connect(target.url()).await?;
        let name = name.to_owned();
        Ok(Arc::new(Self { name, subscriber, producer, sessions, ledger, claimed_in }))
    }
}

impl System for Stage {
    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn share(&self, pusher: usize, of: usize) -> Vec<(usize, usize)> {
        share(self.sessions.len(), pusher, of)
    }

    async fn push(&self, queue: usize, body: Vec<u8>) -> Result<(), Failure> {
        self.producer.push(Push::new(&self.sessions[queue], body)).await?;
        Ok(())
    }

    /// Until everything is delivered and acked.
    async fn settle(&self) -> Result<(), Failure> {
        self.ledger.settle(&self.name).await?;
        let start = Instant::now();
        while self.subscriber.metrics().acked < self.ledger.sent() {
            if start.elapsed() > PATIENCE {
                let acked = self.subscriber.metrics().acked;
                return Err(Failure::failed(format!(
                    "{}: {acked} of {} messages acked",
                    self.name,
                    self.ledger.sent()
                )));
            }
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        Ok(())
    }
}

/// The queues and streams of one pusher of several: no other one has the same stream.
pub fn share(queues: usize, pusher: usize, of: usize) -> Vec<(usize, usize)> {
    if queues < of {
        return vec![(pusher % queues, stream(queues, pusher % queues, pusher))];
    }
    (pusher..queues).step_by(of).map(|queue| (queue, stream(queues, queue, pusher))).collect()
}

/// Few queues have many pushers each; of many, each has one.
fn stream(queues: usize, queue: usize, pusher: usize) -> usize {
    if queues < MOST_PUSHERS { queue * MOST_PUSHERS + pusher } else { queue }
}

/// Room for every stream of so many sessions.
pub fn ledger(sessions: usize) -> Result<Ledger, Failure> {
    Ledger::new(if sessions < MOST_PUSHERS { sessions * MOST_PUSHERS } else { sessions }, MOST_PUSHERS)
}

/// Ids as MCP servers give them: UUIDs, 36 bytes.
pub fn sessions(count: u32) -> Result<Arc<[SessionId]>, Failure> {
    let id =
        |n: u32| SessionId::new(uuid::Uuid::from_u128(0x5e55_1011_0000 << 64 | u128::from(n)).to_string());
    Ok((0..count).map(id).collect::<Result<Vec<_>, _>>()?.into())
}

/// Serves all of the sessions.
pub async fn claim(
    courier: &Courier,
    sessions: &Arc<[SessionId]>,
    ledger: &Arc<Ledger>,
) -> Result<(), Failure> {
    let tap = Arc::new(Tap(ledger.clone()));
    let mut claims = JoinSet::new();
    for first in 0..sessions.len().min(CLAIMS) {
        let (registry, sessions, tap) = (courier.subscribers(), sessions.clone(), tap.clone());
        claims.spawn(async move {
            for session in sessions.iter().skip(first).step_by(CLAIMS) {
                registry.ensure_running(session, tap.clone()).await?;
            }
            Ok::<_, mcp_courier::Error>(())
        });
    }
    while let Some(claimed) = claims.join_next().await {
        claimed.map_err(|e| Failure::failed(e.to_string()))??;
    }
    Ok(())
}

/// Takes everything, and notes it.
struct Tap(Arc<Ledger>);

impl NotificationSink for Tap {
    async fn deliver(&self, delivery: Delivery) -> Result<(), SinkError> {
        self.0.note(delivery.body());
        Ok(())
    }
}
