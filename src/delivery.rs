//! What a session's owner receives, and the trait of those who take it.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;

use crate::record::Record;
use crate::{Ended, Error, MessageId, Notification, Result, SessionId, TraceContext};

/// One message on its way to the client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Delivery {
    /// The session it belongs to.
    pub session: SessionId,
    /// Its id: the same at every attempt.
    pub id: MessageId,
    /// 1 at the first attempt.
    pub attempt: u32,
    /// When it was queued, by the server's clock, in Unix milliseconds.
    pub enqueued_at_ms: u64,
    /// When it expires, by the server's clock, in Unix milliseconds.
    pub expires_at_ms: u64,
    record: Body,
}

/// Keeps bodies out of `Debug`.
#[derive(Clone)]
struct Body {
    body: Bytes,
    trace: Bytes,
    coalesce: Bytes,
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.body.len())
    }
}

impl Delivery {
    pub(crate) fn new(session: SessionId, r: &Record) -> Self {
        Self {
            session,
            id: r.id.clone(),
            attempt: r.attempts.saturating_add(1),
            enqueued_at_ms: r.enqueued_ms,
            expires_at_ms: r.expires_ms,
            record: Body { body: r.body.clone(), trace: r.trace.clone(), coalesce: r.coalesce.clone() },
        }
    }

    /// A delivery that comes from no queue, to test a sink with.
    pub fn synthetic(session: &SessionId, id: &MessageId, attempt: u32, body: impl Into<Vec<u8>>) -> Self {
        let none = Bytes::new();
        let record = Body { body: body.into().into(), trace: none.clone(), coalesce: none };
        let (session, id) = (session.clone(), id.clone());
        Self { session, id, attempt, enqueued_at_ms: 0, expires_at_ms: u64::MAX, record }
    }

    /// The body, byte for byte as it was pushed.
    pub fn body(&self) -> &[u8] {
        &self.record.body
    }

    /// The trace context that came with the message; empty when there was none.
    pub fn trace(&self) -> &[u8] {
        &self.record.trace
    }

    /// The trace that the message belongs to: from its record, else from the notification's `_meta`.
    pub fn trace_context(&self) -> Option<TraceContext> {
        if !self.record.trace.is_empty() {
            return TraceContext::from_text(&self.record.trace);
        }
        // Most messages have none: these are not parsed.
        let named = self.body().windows(11).any(|w| w == b"traceparent");
        named.then(|| Notification::parse(self.body()).ok()?.traced()).flatten()
    }

    /// The coalescing key; empty when there was none.
    pub fn coalesce_key(&self) -> &[u8] {
        &self.record.coalesce
    }

    /// The body as a notification.
    ///
    /// # Errors
    /// [`Error::NotANotification`] when the body is not a JSON object with a `method`. A sink that gets this should
    /// answer [`SinkError::Rejected`]: no later attempt can succeed.
    pub fn notification(&self) -> Result<Notification> {
        Notification::parse(self.body()).map_err(|why| Error::NotANotification { id: self.id.clone(), why })
    }
}

/// Why a sink did not take a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// It may work later. The attempt counts; the message is tried again after a pause, and is a dead letter after
    /// the last attempt. The text is kept with the message.
    #[error("delivery failed: {0}")]
    Retry(String),
    /// It can never work. The message is a dead letter at once.
    #[error("message rejected: {0}")]
    Rejected(String),
    /// The client is gone. The loop ends, the attempt does not count, the message stays.
    #[error("the sink is closed")]
    Closed,
}

impl SinkError {
    /// A failure that may pass.
    pub fn retry(why: impl std::fmt::Display) -> Self {
        Self::Retry(why.to_string())
    }

    /// A failure that will not.
    pub fn rejected(why: impl std::fmt::Display) -> Self {
        Self::Rejected(why.to_string())
    }
}

/// Takes a session's messages: the seam between the queue and an MCP implementation.
///
/// `Ok` means that the client has it (or that nothing better can be known), and the message is acked. A sink is
/// called with one message at a time; the next one comes when this one was taken. A slow sink holds up its own
/// session and no other. The future is dropped when the subscription is stopped or superseded: that loses nothing,
/// the message then counts as not delivered.
///
/// A sink that holds a [`Courier`](crate::Courier) keeps it, and its connections, alive until its session is stopped.
///
/// Every `Fn(Delivery) -> Future<Output = Result<(), SinkError>>` is a sink.
pub trait NotificationSink: Send + Sync + 'static {
    /// Hands one message to the client.
    fn deliver(&self, delivery: Delivery) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// True once the client is gone for good. Asked before each delivery and by
    /// [`SubscriberRegistry::ensure_running`](crate::SubscriberRegistry::ensure_running).
    fn is_closed(&self) -> bool {
        false
    }

    /// The session is this process's from now on. Called again, with a higher epoch, when the stored owner was lost and
    /// the session claimed once more. Must not block.
    ///
    /// A sink around another sink passes this and [`NotificationSink::ended`] on.
    fn claimed(&self, _claim: &Claim) {}

    /// The subscription is over. Called once, with the newest claim; its epoch is 0 when there never was one. Must not
    /// block.
    fn ended(&self, _claim: &Claim, _why: Ended) {}
}

/// This process's ownership of a session, as a sink hears of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// The session.
    pub session: SessionId,
    /// Grows with each claim of the session, whoever claims.
    pub epoch: u64,
}

impl<F, Fut> NotificationSink for F
where
    F: Fn(Delivery) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), SinkError>> + Send,
{
    fn deliver(&self, delivery: Delivery) -> impl Future<Output = Result<(), SinkError>> + Send {
        self(delivery)
    }
}

impl<S: NotificationSink> NotificationSink for Arc<S> {
    fn deliver(&self, delivery: Delivery) -> impl Future<Output = Result<(), SinkError>> + Send {
        (**self).deliver(delivery)
    }

    fn is_closed(&self) -> bool {
        (**self).is_closed()
    }

    fn claimed(&self, claim: &Claim) {
        (**self).claimed(claim);
    }

    fn ended(&self, claim: &Claim, why: Ended) {
        (**self).ended(claim, why);
    }
}

type BoxedDelivery<'a> = Pin<Box<dyn Future<Output = Result<(), SinkError>> + Send + 'a>>;

/// The same trait, usable behind a pointer.
pub(crate) trait AnySink: Send + Sync {
    fn deliver_boxed(&self, delivery: Delivery) -> BoxedDelivery<'_>;
    fn is_closed_any(&self) -> bool;
    fn claimed_any(&self, claim: &Claim);
    fn ended_any(&self, claim: &Claim, why: Ended);
}

impl<S: NotificationSink> AnySink for S {
    fn deliver_boxed(&self, delivery: Delivery) -> BoxedDelivery<'_> {
        Box::pin(self.deliver(delivery))
    }

    fn is_closed_any(&self) -> bool {
        self.is_closed()
    }

    fn claimed_any(&self, claim: &Claim) {
        self.claimed(claim);
    }

    fn ended_any(&self, claim: &Claim, why: Ended) {
        self.ended(claim, why);
    }
}

/// A sink's panic is a failed attempt, like its error: it must not end the loop of its session unseen.
pub(crate) async fn without_panic(sink: &dyn AnySink, delivery: Delivery) -> Result<(), SinkError> {
    let started = std::panic::catch_unwind(AssertUnwindSafe(|| sink.deliver_boxed(delivery)));
    let Ok(mut delivering) = started else { return Err(panicked()) };
    std::future::poll_fn(move |cx| {
        match std::panic::catch_unwind(AssertUnwindSafe(|| delivering.as_mut().poll(cx))) {
            Ok(poll) => poll,
            Err(_) => Poll::Ready(Err(panicked())),
        }
    })
    .await
}

/// A sink that panics when asked is taken for closed.
pub(crate) fn is_closed(sink: &dyn AnySink) -> bool {
    std::panic::catch_unwind(AssertUnwindSafe(|| sink.is_closed_any())).unwrap_or(true)
}

/// Tells a sink something; its panic is its own affair.
pub(crate) fn tell(sink: &dyn AnySink, what: impl FnOnce(&dyn AnySink)) {
    if std::panic::catch_unwind(AssertUnwindSafe(|| what(sink))).is_err() {
        tracing::warn!("a sink panicked when it was told of its session");
    }
}

fn panicked() -> SinkError {
    SinkError::Retry("the sink panicked".into())
}
