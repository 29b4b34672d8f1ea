//! What can be set for the tasks of a server.

use std::time::Duration;

use super::{Tasks, id};
use crate::Result;

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) ttl: Duration,
    pub(super) fixed: bool,
    pub(super) longest: Duration,
    pub(super) poll_interval: Duration,
    pub(super) max_queued: u64,
    pub(super) headers_in_clear: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(300),
            fixed: false,
            longest: Duration::from_secs(7 * 24 * 3600),
            poll_interval: Duration::from_secs(1),
            max_queued: 100_000,
            headers_in_clear: false,
        }
    }
}

/// Settings.
impl Tasks {
    /// Another server's tasks: groups share nothing, not even the look-up of ids.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for an empty name or one of more than 64 bytes.
    pub fn group(mut self, name: &str) -> Result<Self> {
        id::check_group(name)?;
        self.group = name.into();
        Ok(self)
    }

    /// How long a task lives after its last change when it names no time of its own; default 300 s. While a leg runs,
    /// each renewal of its lease counts as a change. Asking for a task is none.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = ttl;
        self
    }

    /// Makes the time to live count from the creation, whatever happens to the task. Work that takes longer is lost.
    #[must_use]
    pub fn fixed_ttl(mut self) -> Self {
        self.settings.fixed = true;
        self
    }

    /// Longest life of a task, however often it is extended; default 7 days.
    #[must_use]
    pub fn longest(mut self, longest: Duration) -> Self {
        self.settings.longest = longest;
        self
    }

    /// Suggested pause between polls; default 1 s.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.settings.poll_interval = interval;
        self
    }

    /// Most legs of the group that wait or run; default 100,000. Parked and finished tasks do not count.
    #[must_use]
    pub fn max_queued(mut self, most: u64) -> Self {
        self.settings.max_queued = most;
        self
    }

    /// Allows headers in a [`ContextSnapshot`](super::ContextSnapshot) although there are no keys: everybody who can read Redis reads them.
    #[must_use]
    pub fn headers_in_clear(mut self) -> Self {
        self.settings.headers_in_clear = true;
        self
    }

    /// Encrypts calls, contexts and states at rest. From then on a task stored in clear, or with a key that is not in the
    /// ring, fails when a worker takes it. Results, requests and answers are not encrypted.
    #[cfg(feature = "encryption")]
    #[must_use]
    pub fn encrypted(mut self, ring: crate::KeyRing) -> Self {
        self.vault.ring = Some(ring);
        self
    }
}
