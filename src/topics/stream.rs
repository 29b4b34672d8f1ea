//! What a listener without a session reads: messages to the topics that it asked for.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use super::hub::Hub;
use crate::keys::{self, Tid};
use crate::{Notification, Result, Topic};

/// Most messages that wait in one stream.
const MOST: usize = 1024;

/// One message to a topic.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicMessage {
    /// The topic.
    pub topic: Topic,
    pub(super) key: Arc<str>,
    pub(super) body: Bytes,
}

impl std::fmt::Debug for TopicMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (topic, bytes) = (&self.topic, self.body.len());
        f.debug_struct("TopicMessage").field("topic", topic).field("bytes", &bytes).finish_non_exhaustive()
    }
}

impl TopicMessage {
    /// The body, byte for byte as it was published.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The coalescing key; empty when there was none.
    pub fn coalesce_key(&self) -> &str {
        &self.key
    }

    /// The body as a notification.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when it is none.
    pub fn notification(&self) -> Result<Notification> {
        Notification::from_json(&self.body)
    }
}

/// What a stream has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TopicEvent {
    /// A message.
    Message(TopicMessage),
    /// Messages may have been missed: the connection was away, or the reader was too slow. What the topics are about
    /// should be taken for changed.
    Missed,
}

/// Listens to topics until it is dropped: made by [`Topics::listen`](crate::Topics::listen). It has no session and
/// nothing of it is stored: what comes while nobody listens is gone.
#[derive(Debug)]
#[must_use = "a stream that is dropped listens no more"]
pub struct TopicStream {
    pub(super) id: u64,
    pub(super) hub: Arc<Hub>,
    pub(super) shared: Arc<Shared>,
}

impl TopicStream {
    /// The next message. Messages of one topic come in the order in which this process heard them; of those with one
    /// coalescing key that the reader has not taken yet only the newest. None after a shutdown, when all was read.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn recv(&mut self) -> Option<TopicEvent> {
        loop {
            let more = self.shared.more.notified();
            if let Some(event) = self.shared.take() {
                return event;
            }
            more.await;
        }
    }

    /// A number that no other stream of this process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Listens to more topics, from when this returns.
    ///
    /// # Errors
    /// As [`Topics::listen`](crate::Topics::listen).
    ///
    /// # Cancel safety
    /// A dropped call may listen to the topics or not.
    pub async fn add(&self, topics: impl IntoIterator<Item = Topic>) -> Result<()> {
        let topics: Vec<Tid> = topics.into_iter().map(|topic| Tid::of(&topic)).collect();
        self.hub.listen(self.id, &topics).await
    }

    /// Listens to a topic no more. What of it waits already is still read.
    pub fn remove(&self, topic: &Topic) {
        self.hub.forget_stream(self.id, Some(&Tid::of(topic)));
    }
}

impl Drop for TopicStream {
    fn drop(&mut self) {
        self.hub.forget_stream(self.id, None);
    }
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    queue: Mutex<Queue>,
    more: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<TopicMessage>,
    /// Keys of what waits, so that most messages need no search.
    keys: HashSet<(Topic, Arc<str>)>,
    missed: bool,
    closed: bool,
}

impl Shared {
    /// Nothing now; or the next event; or the end.
    fn take(&self) -> Option<Option<TopicEvent>> {
        let mut queue = self.lock();
        if std::mem::take(&mut queue.missed) {
            return Some(Some(TopicEvent::Missed));
        }
        if let Some(message) = queue.waiting.pop_front() {
            queue.keys.remove(&(message.topic.clone(), message.key.clone()));
            return Some(Some(TopicEvent::Message(message)));
        }
        queue.closed.then_some(None)
    }

    pub(super) fn push(&self, topic: &Tid, key: &Arc<str>, body: &Bytes) {
        let Ok(topic) = Topic::new(keys::decode(topic.as_str())) else { return };
        let message = TopicMessage { topic, key: key.clone(), body: body.clone() };
        {
            let mut queue = self.lock();
            if queue.closed {
                return;
            }
            let named = (message.topic.clone(), message.key.clone());
            if !key.is_empty() && !queue.keys.insert(named) {
                let same = |m: &&mut TopicMessage| m.topic == message.topic && m.key == message.key;
                if let Some(older) = queue.waiting.iter_mut().find(same) {
                    *older = message;
                }
                return;
            }
            queue.waiting.push_back(message);
            if queue.waiting.len() > MOST
                && let Some(oldest) = queue.waiting.pop_front()
            {
                queue.keys.remove(&(oldest.topic, oldest.key));
                queue.missed = true;
            }
        }
        self.more.notify_one();
    }

    pub(super) fn missed(&self) {
        self.lock().missed = true;
        self.more.notify_one();
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.more.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
