//! Load in two shapes, the same for every system: one message at a time with pauses, and pushers without pauses.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::ledger::{Ledger, PATIENCE};
use super::measures::{Measures, Meter, percentiles};
use super::server::Target;
use crate::output::Failure;

/// A system under load: queues with somebody behind each of them who notes what comes.
pub trait System: Send + Sync + 'static {
    fn ledger(&self) -> &Ledger;

    /// The queues and streams of one pusher of several.
    fn share(&self, pusher: usize, of: usize) -> Vec<(usize, usize)>;

    /// Returns when the server has answered.
    fn push(&self, queue: usize, body: Vec<u8>) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Until nothing is left to do for what was sent; then everything must add up.
    fn settle(&self) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// When a pusher sends its next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// When its last one was delivered: as many messages are in flight as there are pushers, never more.
    Delivery,
    /// When the server answered its last one, as `redis-benchmark` does; deliveries may fall behind.
    Answer,
}

impl Waits {
    pub fn word(self) -> &'static str {
        match self {
            Self::Delivery => "delivery",
            Self::Answer => "answer",
        }
    }
}

/// Pushers without pauses for a while; the clock stops when all of it is delivered and done with.
pub async fn pushers<S: System>(
    target: &Target,
    system: &Arc<S>,
    pushers: usize,
    body: usize,
    waits: Waits,
    time: Duration,
) -> Result<Measures, Failure> {
    let ledger = system.ledger();
    ledger.take_latencies()?;
    ledger.forget_signals();
    let before = ledger.sent();
    let shares: Vec<_> = (0..pushers).map(|p| system.share(p, pushers)).collect();
    let meter = Meter::start(target).await;
    let start = Instant::now();
    let mut running = JoinSet::new();
    for (p, share) in shares.into_iter().enumerate() {
        let system = system.clone();
        running.spawn(async move {
            for &(queue, stream) in share.iter().cycle() {
                if start.elapsed() >= time {
                    break;
                }
                let body = system.ledger().next(stream, p, body);
                system.push(queue, body).await?;
                if waits == Waits::Delivery {
                    system.ledger().delivered(p).await;
                }
            }
            Ok::<_, Failure>(())
        });
    }
    let all = async {
        while let Some(done) = running.join_next().await {
            done.map_err(|e| Failure::failed(e.to_string()))??;
        }
        Ok::<_, Failure>(())
    };
    match tokio::time::timeout(time + PATIENCE, all).await {
        Ok(done) => done?,
        // A pusher waits for a message that does not come: the ledger says which way it went.
        Err(_) => ledger.check("under load")?,
    }
    system.settle().await?;
    let seconds = start.elapsed().as_secs_f64();
    let messages = ledger.sent() - before;
    let mut measures = Measures::new();
    meter.per_message(target, messages, &mut measures).await;
    measures.insert("per_second".to_owned(), messages as f64 / seconds);
    percentiles(&ledger.take_latencies()?, &mut measures);
    Ok(measures)
}

/// One message each 2 to 5 ms, to any of the queues: everybody sleeps when it comes.
pub async fn singles<S: System>(system: &Arc<S>, count: u32, body: usize) -> Result<Measures, Failure> {
    let ledger = system.ledger();
    ledger.take_latencies()?;
    ledger.forget_signals();
    let share = system.share(0, 1);
    for _ in 0..count {
        tokio::time::sleep(Duration::from_micros(fastrand::u64(2_000..5_000))).await;
        let (queue, stream) = share[fastrand::usize(..share.len())];
        system.push(queue, ledger.next(stream, 0, body)).await?;
        if tokio::time::timeout(PATIENCE, ledger.delivered(0)).await.is_err() {
            ledger.check("one at a time")?;
        }
    }
    system.settle().await?;
    let mut measures = Measures::new();
    percentiles(&ledger.take_latencies()?, &mut measures);
    Ok(measures)
}
