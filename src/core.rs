//! What every part of a courier shares.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::connection::{Commands, Endpoint};
use crate::keys::{self, Keys};
use crate::metrics::Counters;
use crate::partitions::{Partition, Partitions};
use crate::replicas::Replicas;
use crate::{Error, Result, script};

pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) partitions: Partitions,
    pub(crate) endpoint: Endpoint,
    pub(crate) cmd: Commands,
    /// For pushes that wait for replicas; opened by the first of them.
    pub(crate) waiting: tokio::sync::OnceCell<Commands>,
    /// A new one each time a process connects: two incarnations never share a token.
    pub(crate) node: String,
    pub(crate) counters: std::sync::Arc<Counters>,
    /// Messages pushed under ids made here, so far.
    pub(crate) made_ids: AtomicU64,
    /// Ends every background task.
    pub(crate) stop: CancellationToken,
}

/// The server's clock as of the last heartbeat. Only used to avoid a delivery that would come too late; every
/// decision is the server's.
pub(crate) struct Clock {
    start: Instant,
    offset_ms: AtomicI64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), offset_ms: AtomicI64::new(i64::MIN) }
    }

    pub(crate) fn set(&self, server_now_ms: u64) {
        let here = i64::try_from(self.start.elapsed().as_millis()).unwrap_or(i64::MAX);
        let there = i64::try_from(server_now_ms).unwrap_or(i64::MAX);
        self.offset_ms.store(there - here, Ordering::Relaxed);
    }

    /// False as long as nothing is known.
    pub(crate) fn is_past(&self, server_ms: u64) -> bool {
        let offset = self.offset_ms.load(Ordering::Relaxed);
        let here = i64::try_from(self.start.elapsed().as_millis()).unwrap_or(i64::MAX);
        offset != i64::MIN && i64::try_from(server_ms).is_ok_and(|t| t <= here.saturating_add(offset))
    }
}

impl Core {
    /// The partition of an id, as it stands in keys (encoded).
    pub(crate) fn partition_of(&self, id: &str) -> &Partition {
        self.partitions.of_id(id)
    }

    /// The keys of the partition that an id (a session, a task, a question) belongs to, as it stands in keys (encoded).
    pub(crate) fn keys_of(&self, id: &str) -> &Keys {
        &self.partition_of(id).keys
    }

    /// The connection for pushes that wait for replicas, with that wish.
    pub(crate) async fn waiting(&self, wanted: Replicas) -> Result<Commands> {
        let open = || async {
            let (endpoint, config) = (self.endpoint.clone(), &self.config);
            let (counters, stop) = (self.counters.clone(), self.stop.clone());
            let opened =
                Commands::open(endpoint, config.connect_timeout, config.call_timeout, counters, stop).await?;
            Ok::<_, Error>(opened.ring_like(&self.cmd))
        };
        Ok(self.waiting.get_or_try_init(open).await?.waiting(wanted.count, wanted.within))
    }

    /// Keeps the stored number of partitions alive, and sees that it is still ours.
    pub(crate) async fn check_layout(&self) -> Result<()> {
        let configured = self.partitions.len() as u64;
        let stored = script::layout(&self.cmd, &keys::layout(&self.config.prefix), configured).await?;
        if stored == configured { Ok(()) } else { Err(Error::Layout { stored, configured }) }
    }
}
