//! What every part of a courier shares.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::connection::{Commands, Endpoint};
use crate::keys::Keys;
use crate::metrics::Counters;

pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) keys: Keys,
    pub(crate) endpoint: Endpoint,
    pub(crate) cmd: Commands,
    /// A new one each time a process connects: two incarnations never share a token.
    pub(crate) node: String,
    pub(crate) counters: std::sync::Arc<Counters>,
    pub(crate) clock: Clock,
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
    /// The keys of the partition that an id (a session, a task, a question) belongs to.
    pub(crate) fn keys_of(&self, _id: &str) -> &Keys {
        &self.keys
    }

    /// The keys of every partition.
    pub(crate) fn partitions(&self) -> &[Keys] {
        std::slice::from_ref(&self.keys)
    }
}
