//! A task to be made.

use std::time::Duration;

use bytes::Bytes;

use super::{ContextSnapshot, Scope};
use crate::SessionId;

/// A task to be made: what to run, for whom, and for how long to keep it.
#[derive(Clone, Debug)]
#[must_use = "a task is not made until `Tasks::create`"]
pub struct NewTask {
    pub(super) scope: Scope,
    pub(super) call: Bytes,
    pub(super) context: ContextSnapshot,
    pub(super) ttl: Option<Duration>,
    pub(super) poll_interval: Option<Duration>,
    pub(super) message: String,
    pub(super) session: Option<SessionId>,
    pub(super) delay: Duration,
}

impl NewTask {
    /// `call` is what a worker gets: any bytes, as the params of a `tools/call`.
    pub fn new(scope: &Scope, call: impl Into<Bytes>) -> Self {
        Self {
            scope: scope.clone(),
            call: call.into(),
            context: ContextSnapshot::default(),
            ttl: None,
            poll_interval: None,
            message: String::new(),
            session: None,
            delay: Duration::ZERO,
        }
    }

    /// Facts of the request, for the legs.
    pub fn context(mut self, context: ContextSnapshot) -> Self {
        self.context = context;
        self
    }

    /// The time to live, other than [`Tasks::ttl`](super::Tasks::ttl).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// The suggested pause between polls, other than [`Tasks::poll_interval`](super::Tasks::poll_interval).
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = Some(interval);
        self
    }

    /// The first status message.
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }

    /// Has `notifications/tasks` queued for this session after each change: the newest state, at least once, as any
    /// notification. Best effort: a change whose process dies in that moment is not told. Clients poll beside it.
    pub fn notify(mut self, session: &SessionId) -> Self {
        self.session = Some(session.clone());
        self
    }

    /// The first leg starts no earlier.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }
}
