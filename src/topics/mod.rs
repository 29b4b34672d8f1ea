//! Topics: one message to many sessions and listeners, on every replica.
//!
//! Who takes part stands in Redis: sessions in `t:<topic>`, listening nodes in `l:<topic>`. A durable message is pushed
//! into each session's own queue, some hundreds in a round trip. A hint goes to the inboxes of the listening nodes in one
//! script call, and each node hands it to its own sessions and streams.

mod frame;
mod hub;
mod interest;
mod publish;
mod stream;
mod window;

pub(crate) use self::hub::Hub;
pub use self::publish::{Publish, Published, TopicDelivery};
pub use self::stream::{TopicEvent, TopicMessage, TopicStream};
use crate::keys::{Sid, Tid};
use crate::{Courier, Notification, Result, SessionId, Topic, script};

/// Publishes to topics, and says who takes part: made by [`Courier::topics`].
#[derive(Clone, Debug)]
pub struct Topics {
    courier: Courier,
}

impl Courier {
    /// The topics of this courier. Every call answers the same.
    pub fn topics(&self) -> Topics {
        Topics { courier: self.clone() }
    }
}

impl Topics {
    /// A session takes part in topics from now on: it gets what is published to them.
    ///
    /// It does so until it leaves them, or has had no owner for [`Builder::topic_keep`](crate::Builder::topic_keep) (at
    /// least half of that): a client that comes back on another replica in time has missed no durable message. Hints
    /// reach it in the process that serves it and in which this was called, after
    /// [`ensure_running`](crate::SubscriberRegistry::ensure_running): call it in each process that takes the session
    /// over. Any other process may call it as well, as far as durable messages go.
    ///
    /// Redis: `lua/topic_join.lua`, and `lua/topic_listen.lua` for topics that are new in this process.
    ///
    /// # Errors
    /// As [`Courier::push`]. The session may then take part in some of the topics; repeating it is safe.
    ///
    /// # Cancel safety
    /// A dropped call may have been done. Repeating it is safe.
    pub async fn subscribe(
        &self,
        session: &SessionId,
        topics: impl IntoIterator<Item = Topic>,
    ) -> Result<()> {
        let (sid, topics) = (Sid::of(session), encoded(topics));
        let core = &self.courier.core;
        let keys = core.keys_of(session.as_str());
        for chunk in topics.chunks(hub::CHUNK) {
            let join = || script::topic_join(&core.cmd, keys, &sid, core.config.topic_keep, chunk);
            self.courier.repeat("topic_join", join, true).await?;
        }
        self.courier.topic_hub.join(&sid, &topics).await?;
        Ok(())
    }

    /// A session takes part in topics no more. What is in its queue stays there.
    ///
    /// # Errors
    /// As [`Courier::push`].
    ///
    /// # Cancel safety
    /// A dropped call may have been done. Repeating it is safe.
    pub async fn unsubscribe(
        &self,
        session: &SessionId,
        topics: impl IntoIterator<Item = Topic>,
    ) -> Result<()> {
        self.part(session, encoded(topics)).await
    }

    /// A session that has ended for good leaves the topics that it joined in this process. Those that it joined in
    /// others forget it when it has had no owner for long enough.
    ///
    /// # Errors
    /// As [`Courier::push`].
    ///
    /// # Cancel safety
    /// A dropped call may have been done. Repeating it is safe.
    pub async fn forget(&self, session: &SessionId) -> Result<()> {
        let topics = self.courier.topic_hub.topics_of(&Sid::of(session));
        self.part(session, topics).await
    }

    async fn part(&self, session: &SessionId, topics: Vec<Tid>) -> Result<()> {
        let sid = Sid::of(session);
        let core = &self.courier.core;
        let keys = core.keys_of(session.as_str());
        self.courier.topic_hub.part(&sid, &topics);
        for chunk in topics.chunks(hub::CHUNK) {
            let leave = || script::topic_leave(&core.cmd, keys, &sid, chunk);
            self.courier.repeat("topic_leave", leave, true).await?;
        }
        Ok(())
    }

    /// Publishes a notification: to every session that takes part in the topic, and to every stream that listens, on
    /// every replica. See [`TopicDelivery`] for the two ways.
    ///
    /// A `list_changed` and a `resources/updated` coalesce: a burst of them arrives as few. A durable one that comes
    /// within [`Builder::topic_window`](crate::Builder::topic_window) of one before it waits for the end of that window,
    /// and goes out together with those that came meanwhile. Hints coalesce in the process that hears them.
    ///
    /// Redis: durable, `lua/topic_members.lua` and `lua/push.lua`, two round trips for each 512 sessions, then
    /// `lua/topic_ring.lua`; hint, `lua/topic_ring.lua` alone.
    ///
    /// # Errors
    /// As [`Courier::push`]. Some of the sessions may have it then. A session whose queue is full is no error:
    /// [`Published::refused`] counts it.
    ///
    /// # Cancel safety
    /// A dropped call may have reached some, or go on reaching all.
    pub async fn publish(
        &self,
        topic: &Topic,
        notification: &Notification,
        delivery: TopicDelivery,
    ) -> Result<Published> {
        self.send(Publish::notification(topic, notification)?.delivery(delivery)).await
    }

    /// Publishes a message with more to say about it.
    ///
    /// # Errors
    /// As [`Topics::publish`]; [`Error::TooLarge`](crate::Error::TooLarge) for a body of more than 64 KiB.
    ///
    /// # Cancel safety
    /// As [`Topics::publish`].
    pub async fn send(&self, publish: Publish) -> Result<Published> {
        publish::send(&self.courier, publish).await
    }

    /// Listens to topics without a session, until the stream is dropped: for a client that holds a stream open on this
    /// process and has no queue. Returns when every later message is heard.
    ///
    /// Redis: `lua/topic_listen.lua` for topics that are new in this process; nothing for a stream.
    ///
    /// # Errors
    /// [`Error::Unreachable`](crate::Error::Unreachable) and others when the doorbell connection cannot be opened or the
    /// server does not answer, [`Error::Closed`](crate::Error::Closed) after a shutdown.
    ///
    /// # Cancel safety
    /// A dropped call listens to nothing.
    pub async fn listen(&self, topics: impl IntoIterator<Item = Topic>) -> Result<TopicStream> {
        self.courier.topic_hub.open(&encoded(topics)).await
    }
}

fn encoded(topics: impl IntoIterator<Item = Topic>) -> Vec<Tid> {
    topics.into_iter().map(|topic| Tid::of(&topic)).collect()
}
