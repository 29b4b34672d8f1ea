//! What a producer may say about a message, and what it is told.

use std::time::Duration;

use bytes::Bytes;

use crate::replicas::Replicas;
use crate::{MessageId, Notification, Result, SessionId, TraceContext};

/// A message on its way into a session's queue. Defaults come from the courier's configuration.
#[derive(Clone, Debug)]
#[must_use = "a Push does nothing until it is given to `Courier::push`"]
pub struct Push {
    pub(crate) session: SessionId,
    pub(crate) body: Bytes,
    pub(crate) id: Option<MessageId>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) coalesce: Option<String>,
    pub(crate) trace: Option<String>,
    pub(crate) max_pending: Option<u64>,
    pub(crate) on_full: Option<OnFull>,
    pub(crate) dedupe: Option<Duration>,
    pub(crate) replicas: Option<Replicas>,
}

/// What a push does when the session's queue is at its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFull {
    /// Refuse the new message: [`Error::QueueFull`](crate::Error::QueueFull).
    #[default]
    Refuse,
    /// Remove the oldest pending messages; [`Pushed::dropped`] counts them.
    DropOldest,
}

impl Push {
    /// A message of opaque bytes: stored and delivered as they are.
    pub fn new(session: &SessionId, body: impl Into<Vec<u8>>) -> Self {
        Self {
            session: session.clone(),
            body: Bytes::from(body.into()),
            id: None,
            ttl: None,
            coalesce: None,
            trace: None,
            max_pending: None,
            on_full: None,
            dedupe: None,
            replicas: None,
        }
    }

    /// A notification, as JSON. A trace context in its `_meta` is also put into the record; with the feature `otel` one
    /// that has none gets that of the current span.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) or [`Error::TooLarge`](crate::Error::TooLarge) when the method is no name.
    pub fn notification(session: &SessionId, notification: &Notification) -> Result<Self> {
        if let Some(context) = notification.traced() {
            return Ok(Self::new(session, notification.to_json()?).trace_context(&context));
        }
        match TraceContext::current() {
            Some(context) => {
                let traced = notification.clone().trace_context(&context);
                Ok(Self::new(session, traced.to_json()?).trace_context(&context))
            }
            None => Ok(Self::new(session, notification.to_json()?)),
        }
    }

    /// This message's own time to live, 1 ms to 365 days. Other messages of the session are not affected.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// The caller's id. Within the idempotence window a second push with it queues nothing.
    pub fn id(mut self, id: MessageId) -> Self {
        self.id = Some(id);
        self
    }

    /// A newer message with the same key takes the place of one that is still pending. Never of the head, which may be
    /// on its way; one that an owner has fetched behind it is delivered as well, before the newer one. Up to 256 bytes.
    /// Costs a look through the newest 1,024 pending messages.
    pub fn coalesce(mut self, key: impl Into<String>) -> Self {
        self.coalesce = Some(key.into());
        self
    }

    /// Trace context that travels with the message, for instance a W3C `traceparent`. Up to 512 bytes.
    pub fn trace(mut self, context: impl Into<String>) -> Self {
        self.trace = Some(context.into());
        self
    }

    /// The trace that this message belongs to, in its record. [`Push::notification`] does it by itself.
    pub fn trace_context(self, context: &TraceContext) -> Self {
        self.trace(context.to_text())
    }

    /// Most pending messages of the session for this push.
    pub fn max_pending(mut self, limit: u64) -> Self {
        self.max_pending = Some(limit);
        self
    }

    /// What to do when the queue is full.
    pub fn on_full(mut self, policy: OnFull) -> Self {
        self.on_full = Some(policy);
        self
    }

    /// The idempotence window: how long the id is refused as a duplicate. Zero switches it off and makes a push
    /// cheaper; a retry after an unknown outcome may then queue the message twice.
    pub fn dedupe(mut self, window: Duration) -> Self {
        self.dedupe = Some(window);
        self
    }

    /// Answers once so many replicas have received the message (Redis's `WAIT`), or after `within` with
    /// [`Error::NotReplicated`](crate::Error::NotReplicated): then it is queued all the same, and pushing it again with
    /// the same [id](Self::id) queues nothing and waits again. Shorter than the deadline. [`Pushed::replicas`] tells how
    /// many have it.
    ///
    /// This narrows what a failover can lose and does not close it: Redis may promote a replica that does not have the
    /// message, when another one that has it is gone. And the wait is for pushes alone: an ack that the new primary never
    /// heard of brings its message again.
    ///
    /// Such pushes travel over a third connection, opened by the first of them (in a Cluster one to each master), so that
    /// nothing else waits; those that meet share one `WAIT`. An idempotence window of zero makes the second try a second
    /// message.
    pub fn wait_replicas(mut self, replicas: u32, within: Duration) -> Self {
        self.replicas = Some(Replicas { count: replicas, within });
        self
    }
}

/// What became of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pushed {
    /// The message's id: the caller's, or the one made for it.
    pub id: MessageId,
    /// What happened.
    pub status: PushStatus,
    /// Pending messages of the session, this one included.
    pub pending: u64,
    /// Older messages removed under [`OnFull::DropOldest`].
    pub dropped: u64,
    /// How many replicas have it, at least; known after [`Push::wait_replicas`].
    pub replicas: Option<u64>,
}

/// What happened to a pushed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushStatus {
    /// It stands at the end of the queue.
    Queued,
    /// It took the place of a pending message with the same coalescing key.
    Coalesced,
    /// Its id was known: an earlier call, or an earlier try of this one whose answer was lost, queued it.
    Duplicate,
}

impl PushStatus {
    /// As the command line prints it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Coalesced => "coalesced",
            Self::Duplicate => "duplicate",
        }
    }
}
