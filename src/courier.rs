//! The handle that programs hold.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::config::Config;
use crate::connection::{Commands, Endpoint, Link};
use crate::core::{Clock, Core};
use crate::engine::{Drained, Engine};
use crate::keys::Keys;
use crate::metrics::{Counters, Metrics, add};
use crate::prepared::Prepared;
use crate::relay::Hub;
use crate::script;
use crate::server_info;
use crate::{Builder, Error, Notification, Push, Pushed, Result, SessionId, SubscriberRegistry};

/// A connection to the queues: pushes, subscribes, looks.
///
/// Cheap to clone; clones share everything. A process needs one. It holds one connection to Redis, and a second one
/// from the first subscription on, whatever the number of sessions. When the last clone goes, its background tasks
/// end; sessions that were not given back ([`Courier::shutdown`]) are free for the next claim all the same.
#[derive(Clone)]
pub struct Courier {
    pub(crate) core: Arc<Core>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) topic_hub: Arc<crate::topics::Hub>,
    _guard: Arc<DropGuard>,
}

impl std::fmt::Debug for Courier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Courier")
            .field("server", &self.core.endpoint.address)
            .field("prefix", &self.core.config.prefix)
            .field("node", &self.core.node)
            .finish_non_exhaustive()
    }
}

impl Courier {
    /// Connects with default settings; see [`Builder::connect`] for URLs and errors.
    ///
    /// # Errors
    /// As [`Builder::connect`].
    ///
    /// # Cancel safety
    /// Dropping the future closes what it opened.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self> {
        Builder::default().connect(url).await
    }

    /// Settings other than the defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) async fn start(config: Config, endpoint: Endpoint) -> Result<Self> {
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        let link = Link::open("cmd", endpoint.clone(), config.connect_timeout, None, stop.clone()).await?;
        let counters = Arc::new(Counters::default());
        let cmd = Commands::new(link, config.call_timeout, counters.clone());
        server_info::check(&cmd).await?;
        let core = Arc::new(Core {
            keys: Keys::new(&config.prefix, 0),
            config,
            endpoint,
            cmd,
            node: uuid::Uuid::new_v4().simple().to_string(),
            counters,
            clock: Clock::new(),
            made_ids: AtomicU64::new(0),
            stop,
        });
        // A missing right shows here, by name, and not at the first message.
        script::overview(&core.cmd, &core.keys, 0, 0).await?;
        tracing::debug!(server = %core.endpoint.address, node = %core.node, "connected");
        let engine = Engine::new(core.clone());
        Ok(Self {
            hub: Hub::new(core.clone(), &engine),
            topic_hub: crate::topics::Hub::new(core.clone(), engine.clone()),
            engine,
            core,
            _guard: Arc::new(guard),
        })
    }

    /// Queues a notification for a session, with the default time to live.
    ///
    /// Delivery: at least once, in order within the session. Redis: `lua/push.lua`, one round trip.
    ///
    /// # Errors
    /// As [`Courier::push`].
    ///
    /// # Cancel safety
    /// A dropped call may still have queued the message, once. To be able to repeat it, give it an id: [`Push::id`].
    pub async fn push_notification(
        &self,
        session: &SessionId,
        notification: &Notification,
    ) -> Result<Pushed> {
        self.push(Push::notification(session, notification)?).await
    }

    /// Queues a message.
    ///
    /// Delivery: at least once, in order within the session. Redis: `lua/push.lua`, one round trip; with a coalescing
    /// key a look through the newest pending messages. After a lost connection, and while a server loads or fails
    /// over, the push is repeated with the same id until [`Builder::deadline`]; that never queues it twice within the
    /// idempotence window.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::TooLarge`]: nothing was sent. [`Error::QueueFull`] and [`Error::Refused`] (as `OOM`):
    /// nothing was queued. [`Error::Unreachable`], [`Error::Timeout`]: see [`Error::is_ambiguous`].
    ///
    /// # Cancel safety
    /// A dropped call may still have queued the message, once. To be able to repeat it, give it an id: [`Push::id`].
    pub async fn push(&self, push: Push) -> Result<Pushed> {
        let core = &self.core;
        let prepared = Prepared::check(core, push)?;
        let push = || script::push(&core.cmd, &core.keys, prepared.args(core));
        let reply = self.repeat("push", push, prepared.is_idempotent()).await?;
        prepared.settle(core, reply)
    }

    /// Queues many messages in one round trip; answers each of them, in the order given.
    ///
    /// Messages of one session stand in its queue in the order given, also when the connection is lost on the way:
    /// then the whole batch is repeated with the same ids, until [`Builder::deadline`], and what had arrived is answered
    /// as a duplicate. The one exception is a server that refuses the first messages of a batch and takes the later
    /// ones, as while its scripts are flushed or its data is loaded: the refused ones then stand behind. A message that
    /// is refused for itself stops no other. Redis: `lua/push.lua`, once for each message, pipelined. A thousand messages a call are plenty.
    ///
    /// # Errors
    /// For each message as [`Courier::push`].
    ///
    /// # Cancel safety
    /// A dropped call may still have queued some of the messages, each once. To be able to repeat it, give them ids.
    pub async fn push_many(&self, pushes: impl IntoIterator<Item = Push>) -> Vec<Result<Pushed>> {
        let core = &self.core;
        let checked: Vec<_> = pushes.into_iter().map(|push| Prepared::check(core, push)).collect();
        let good: Vec<&Prepared> = checked.iter().filter_map(|one| one.as_ref().ok()).collect();
        let idempotent = good.iter().all(|p| p.is_idempotent());
        let push = || script::push_many(&core.cmd, &core.keys, good.iter().map(|p| p.args(core)).collect());
        let replies = match self.repeat("push", push, idempotent).await {
            Ok(replies) => replies,
            Err(e) => good.iter().map(|_| Err(e.clone())).collect(),
        };
        let mut replies = replies.into_iter();
        checked
            .into_iter()
            .map(|one| {
                let prepared = one?;
                let missing = || Err(Error::Reply { op: "push", got: "fewer answers than pushes".into() });
                prepared.settle(core, replies.next().unwrap_or_else(missing)?)
            })
            .collect()
    }

    /// Repeats an operation after passing failures until the deadline. One that may have been done is repeated only
    /// when doing it twice does no harm.
    pub(crate) async fn repeat<T, F>(
        &self,
        op: &'static str,
        mut operation: impl FnMut() -> F,
        idempotent: bool,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let deadline = Instant::now() + self.core.config.deadline;
        let mut pause = Duration::from_millis(10);
        let mut unknown: Option<Error> = None;
        loop {
            let e = match tokio::time::timeout_at(deadline, operation()).await {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(e)) => e,
                Err(_) => {
                    let address = self.core.endpoint.address.clone();
                    let after = self.core.config.deadline;
                    return Err(Error::Timeout { op, address, after, ambiguous: true });
                }
            };
            if e.is_ambiguous() {
                unknown.get_or_insert_with(|| e.clone());
            }
            let again =
                e.is_passing() && (idempotent || !e.is_ambiguous()) && Instant::now() + pause < deadline;
            if !again {
                // An earlier try may have done it: then a later refusal does not mean that it was not done.
                return Err(unknown.unwrap_or(e));
            }
            add(&self.core.counters.push_retries, 1);
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }

    /// The registry of this courier's subscriptions. Every call answers the same registry.
    pub fn subscribers(&self) -> SubscriberRegistry {
        SubscriberRegistry::new(self.clone())
    }

    /// What this process did so far.
    pub fn metrics(&self) -> Metrics {
        let mut metrics = self.core.counters.snapshot();
        metrics.reconnects = self.core.cmd.link().reconnects() + self.engine.bell_reconnects();
        metrics
    }

    /// Stops in good order: no new subscriptions and no new deliveries; those in progress may finish within `grace`;
    /// then every session is given back, without a counted attempt. Pushing goes on working. Returns within `grace`
    /// plus one second, also when Redis is out of reach.
    ///
    /// # Cancel safety
    /// Dropping the future leaves sessions being given back in the background.
    pub async fn shutdown(&self, grace: Duration) -> Drained {
        self.topic_hub.close();
        self.engine.drain(grace).await
    }
}
