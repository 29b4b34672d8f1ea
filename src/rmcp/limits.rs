//! How much is kept of sessions and streams, and for how long.

use std::time::Duration;

#[derive(Clone, Debug)]
pub(super) struct Limits {
    pub(super) session_ttl: Duration,
    pub(super) event_ttl: Duration,
    pub(super) max_events: u32,
    pub(super) max_event_bytes: usize,
    pub(super) persist_stateless: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            session_ttl: Duration::from_secs(24 * 3600),
            event_ttl: Duration::from_secs(600),
            max_events: 1000,
            max_event_bytes: 4 << 20,
            persist_stateless: false,
        }
    }
}

/// As the scripts take it.
pub(super) fn ms(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX).clamp(1, 365 * 24 * 3600 * 1000)
}
