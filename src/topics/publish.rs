//! A message to a topic: to the sessions' own queues, or as a hint to the nodes.

use std::collections::HashSet;
use std::sync::PoisonError;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::frame::{Frame, Kind};
use super::hub::Hub;
use crate::keys::{Keys, Tid, decode};
use crate::{Courier, Error, MessageId, Notification, Push, Result, SessionId, Topic, TraceContext, script};

/// Largest body of a message to a topic.
const MAX_BODY: usize = 64 << 10;
/// About how many bytes go out in one round trip.
const BYTES: usize = 1 << 20;

/// How a message to a topic travels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TopicDelivery {
    /// Into the queue of every session that takes part, wherever it is served: at least once, in order with its other
    /// messages, and waiting while it is served nowhere. Streams get it as a hint. Costs a push for each session.
    #[default]
    Durable,
    /// Straight to the processes that serve such sessions or listen: best effort. One that is away misses it. Nothing is
    /// stored; costs one script call and one frame for each process.
    Hint,
}

/// A message on its way to a topic.
#[derive(Clone, Debug)]
#[must_use = "a Publish does nothing until it is given to `Topics::send`"]
pub struct Publish {
    topic: Topic,
    body: Bytes,
    delivery: TopicDelivery,
    coalesce: Option<String>,
    ttl: Option<Duration>,
    id: Option<MessageId>,
    trace: Option<TraceContext>,
}

impl Publish {
    /// A message of opaque bytes, durable, without a coalescing key.
    pub fn new(topic: &Topic, body: impl Into<Vec<u8>>) -> Self {
        Self {
            topic: topic.clone(),
            body: Bytes::from(body.into()),
            delivery: TopicDelivery::Durable,
            coalesce: None,
            ttl: None,
            id: None,
            trace: None,
        }
    }

    /// A notification, with the coalescing key that its kind has: see [`Notification::coalescing_key`].
    ///
    /// # Errors
    /// As [`Push::notification`].
    pub fn notification(topic: &Topic, notification: &Notification) -> Result<Self> {
        let mut publish = Self::new(topic, notification.to_json()?);
        publish.coalesce = notification.coalescing_key();
        publish.trace = notification.traced();
        Ok(publish)
    }

    /// How it travels.
    pub fn delivery(mut self, delivery: TopicDelivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// Of several messages with this key that a session or stream has not got yet only the newest arrives. Up to 256
    /// bytes.
    pub fn coalesce(mut self, key: impl Into<String>) -> Self {
        self.coalesce = Some(key.into());
        self
    }

    /// Every message counts, whatever its kind.
    pub fn keep_all(mut self) -> Self {
        self.coalesce = None;
        self
    }

    /// How long a durable one may wait in a queue.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// The caller's id of a durable one: publishing it again within the idempotence window reaches only sessions that
    /// have not got it.
    pub fn id(mut self, id: MessageId) -> Self {
        self.id = Some(id);
        self
    }
}

/// What became of a message to a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// Queues that have it now, or had it already. 0 for a hint.
    pub sessions: u64,
    /// Sessions that did not get it because their queue was full, or refused by the server.
    pub refused: u64,
    /// Processes that heard it at once, those that only serve sessions included.
    pub nodes: u64,
    /// It came within the window of an earlier one with its key, and went out together with the newest of those.
    pub merged: bool,
}

/// Those that wait for the end of a window: the newest message, and everybody who published one.
pub(crate) struct Waiting {
    publish: Publish,
    callers: Vec<oneshot::Sender<Result<Published>>>,
}

pub(super) async fn send(courier: &Courier, mut publish: Publish) -> Result<Published> {
    if publish.body.len() > MAX_BODY {
        return Err(Error::TooLarge {
            what: "body for a topic",
            actual: publish.body.len(),
            limit: MAX_BODY,
        });
    }
    if publish.coalesce.as_deref() == Some("") {
        return Err(Error::invalid("coalescing key", "is empty; leave it out instead"));
    }
    if publish.trace.is_none() {
        publish.trace = TraceContext::current();
    }
    let topic = Tid::of(&publish.topic);
    match (publish.delivery, publish.coalesce.clone()) {
        (TopicDelivery::Hint, _) => {
            let nodes = ring(courier, &topic, &publish).await?;
            Ok(Published { nodes, ..Published::default() })
        }
        (TopicDelivery::Durable, None) => everywhere(courier, &topic, &publish).await,
        (TopicDelivery::Durable, Some(key)) => in_window(courier, topic, key, publish).await,
    }
}

/// The first one goes at once; those that come before its window ends share one message. All of it in a task of its own,
/// so that an older message never goes out after a newer one, whoever stops waiting.
async fn in_window(courier: &Courier, topic: Tid, key: String, publish: Publish) -> Result<Published> {
    let (caller, answer) = oneshot::channel();
    let hub = &courier.topic_hub;
    let first = {
        let mut publishing = hub.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        match publishing.get_mut(&(topic.clone(), key.clone())) {
            Some(waiting) => {
                let callers = waiting.take().map_or_else(Vec::new, |earlier| earlier.callers);
                let mut newest = Waiting { publish, callers };
                newest.callers.push(caller);
                *waiting = Some(newest);
                None
            }
            None => {
                publishing.insert((topic.clone(), key.clone()), None);
                Some(Waiting { publish, callers: vec![caller] })
            }
        }
    };
    let merged = first.is_none();
    if let Some(first) = first {
        tokio::spawn(publish_in_order(courier.clone(), topic, key, first));
    }
    let answered = answer.await.unwrap_or(Err(Error::Closed { op: "publish" }))?;
    Ok(Published { merged, ..answered })
}

async fn publish_in_order(courier: Courier, topic: Tid, key: String, first: Waiting) {
    let at = (topic.clone(), key);
    let mut unmark = Unmark { hub: courier.topic_hub.clone(), at: Some(at.clone()) };
    let mut next = Some(first);
    while let Some(Waiting { publish, callers }) = next {
        let end = tokio::time::Instant::now() + courier.core.config.topic_window;
        let answer = everywhere(&courier, &topic, &publish).await;
        for caller in callers {
            let _ = caller.send(answer.clone());
        }
        tokio::time::sleep_until(end).await;
        let mut publishing = courier.topic_hub.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        next = publishing.get_mut(&at).and_then(Option::take);
        if next.is_none() {
            publishing.remove(&at);
            // From here on the window may be another task's.
            unmark.at = None;
        }
    }
}

/// A task that is torn down must not leave its window open for ever.
struct Unmark {
    hub: std::sync::Arc<Hub>,
    at: Option<(Tid, String)>,
}

impl Drop for Unmark {
    fn drop(&mut self) {
        if let Some(at) = self.at.take() {
            self.hub.publishing.lock().unwrap_or_else(PoisonError::into_inner).remove(&at);
        }
    }
}

/// Into every queue, then to the listeners.
async fn everywhere(courier: &Courier, topic: &Tid, publish: &Publish) -> Result<Published> {
    let id = publish.id.clone().unwrap_or_else(MessageId::generate);
    let mut published = Published::default();
    for keys in courier.core.partitions() {
        into_queues(courier, keys, topic, publish, &id, &mut published).await?;
    }
    published.nodes = ring(courier, topic, publish).await?;
    Ok(published)
}

async fn into_queues(
    courier: &Courier,
    keys: &Keys,
    topic: &Tid,
    publish: &Publish,
    id: &MessageId,
    published: &mut Published,
) -> Result<()> {
    let core = &courier.core;
    let at_a_time = (BYTES / (publish.body.len() + 512)).clamp(1, 512);
    let mut seen = HashSet::new();
    let mut cursor = "0".to_owned();
    loop {
        let members = || script::topic_members(&core.cmd, keys, topic, &cursor);
        let (next, page) = courier.repeat("topic_members", members, true).await?;
        let new: Vec<_> = page.into_iter().filter(|sid| seen.insert(sid.clone())).collect();
        for chunk in new.chunks(at_a_time) {
            // One whose id breaks our limits was put there by somebody else.
            let sessions = chunk.iter().filter_map(|sid| SessionId::new(decode(sid.as_str())).ok());
            let pushes = sessions.map(|session| publish.push(&session, id));
            for pushed in courier.push_many(pushes).await {
                match pushed {
                    Ok(_) => published.sessions += 1,
                    Err(Error::QueueFull { .. } | Error::Refused { .. }) => published.refused += 1,
                    Err(e) => return Err(e),
                }
            }
        }
        if next == "0" {
            return Ok(());
        }
        cursor = next;
    }
}

async fn ring(courier: &Courier, topic: &Tid, publish: &Publish) -> Result<u64> {
    let kind = match publish.delivery {
        TopicDelivery::Hint => Kind::Hint,
        TopicDelivery::Durable => Kind::Durable,
    };
    let key = publish.coalesce.as_deref().unwrap_or_default().into();
    let frame = Frame { kind, topic: topic.clone(), key, body: publish.body.clone() }.write();
    let core = &courier.core;
    let ring = || script::topic_ring(&core.cmd, core.keys_of(topic.as_str()), topic, &frame);
    courier.repeat("topic_ring", ring, true).await
}

impl Publish {
    fn push(&self, session: &SessionId, id: &MessageId) -> Push {
        let mut push = Push::new(session, self.body.clone()).id(id.clone());
        if let Some(key) = &self.coalesce {
            push = push.coalesce(key);
        }
        if let Some(ttl) = self.ttl {
            push = push.ttl(ttl);
        }
        match &self.trace {
            Some(trace) => push.trace_context(trace),
            None => push,
        }
    }
}
