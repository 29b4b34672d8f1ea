//! Counts of what this process did. They are local: sum them over your processes.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What this process did since it connected. At rest, and summed over all processes,
        /// `pushed + revived = acked + expired + dead + dropped + pending`, as long as no queue vanished with its own
        /// expiry while nobody served it.
        #[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
        #[non_exhaustive]
        pub struct Metrics { $($(#[$doc])* pub $name: u64,)* }

        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64,)* }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Metrics {
                Metrics { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Messages queued.
    pushed,
    /// Pushes that took the place of a pending message.
    coalesced,
    /// Pushes whose id was known.
    duplicates,
    /// Pushes refused because the session's queue was full.
    refused_full,
    /// Pushes refused because of their size.
    refused_size,
    /// Oldest messages removed by pushes under `OnFull::DropOldest`.
    dropped,
    /// Tries of a push repeated by ourselves after a passing failure.
    push_retries,
    /// Messages that a sink took.
    delivered,
    /// Messages removed after delivery.
    acked,
    /// Messages that came a second time within one ownership and were acked without bothering the sink.
    suppressed,
    /// Failed attempts that will be repeated.
    requeued,
    /// Messages dropped because their time was over.
    expired,
    /// Messages moved to the dead letters.
    dead,
    /// Dead letters put back into their queue.
    revived,
    /// Dead letters removed for good.
    purged,
    /// Sessions that another process took from us.
    superseded,
    /// Sessions claimed.
    claims,
    /// Doorbells heard for our sessions.
    doorbells,
    /// Doorbells of others' silence: a sweep found work that no doorbell had announced.
    doorbells_missed,
    /// Hints of topics that a session's sink took.
    hints,
    /// Hints of topics that it did not take, or that too many others came before.
    hints_dropped,
    /// Heartbeats that came back over the bell connection.
    heartbeats,
    /// Times the stored owners were found lost and claimed again.
    state_lost,
    /// Questions asked.
    asked,
    /// Answers that counted.
    answered,
    /// Answers that did not count: a second one, a late one, one of another scope, or to nothing.
    answers_refused,
    /// Script calls without an answer in time.
    timeouts,
    /// Connections opened again.
    reconnects,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    if n > 0 {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}
