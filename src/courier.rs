//! The handle that programs hold.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::config::Config;
use crate::connection::{Commands, Endpoint, until};
use crate::core::Core;
use crate::each::each;
use crate::engine::{Drained, Engine};
use crate::keys;
use crate::metrics::{Counters, Metrics, add};
use crate::partitions::{CLUSTER_PARTITIONS, MAX_PARTITIONS, Partitions};
use crate::prepared::Prepared;
use crate::relay::Hub;
use crate::replicas::{self, Stored};
use crate::script;
use crate::server_info;
use crate::topics::Hub as TopicHub;
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
    pub(crate) topic_hub: Arc<TopicHub>,
    pub(crate) watching: Arc<crate::tasks::Watching>,
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

/// The number of partitions in force: the stored one, and if nothing is stored, that of the settings, which is stored then.
/// Another number than the stored one is refused: sessions would be looked for where they are not.
async fn partitions(cmd: &Commands, config: &Config, cluster: bool) -> Result<u16> {
    let wanted = config.partitions.unwrap_or(if cluster { CLUSTER_PARTITIONS } else { 1 });
    let stored = script::layout(cmd, &keys::layout(&config.prefix), u64::from(wanted)).await?;
    let usable = u16::try_from(stored).ok().filter(|n| (1..=MAX_PARTITIONS).contains(n));
    match usable {
        Some(stored) if stored == wanted || config.partitions.is_none() => Ok(stored),
        _ => Err(Error::Layout { stored, configured: u64::from(wanted) }),
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
        let counters = Arc::new(Counters::default());
        let (connect, call) = (config.connect_timeout, config.call_timeout);
        let cmd = Commands::open(endpoint.clone(), connect, call, counters.clone(), stop.clone()).await?;
        server_info::check(&cmd, endpoint.is_cluster()).await?;
        // A missing right shows here, by name, and not in the middle of a script.
        let first = Partitions::new(&config.prefix, 1);
        script::probe(&cmd, &first[0].keys, script::Role::Producer).await?;
        let partitions = partitions(&cmd, &config, endpoint.is_cluster()).await?;
        let core = Arc::new(Core {
            partitions: Partitions::new(&config.prefix, partitions),
            config,
            endpoint,
            cmd,
            waiting: tokio::sync::OnceCell::new(),
            node: node_name(),
            counters,
            made_ids: AtomicU64::new(0),
            stop,
        });
        // A foreign key in the way of the indexes shows here, and not at the first message.
        script::overview(&core.cmd, &core.partitions[0].keys, 0, 0).await?;
        tracing::debug!(server = %core.endpoint.address, node = %core.node, "connected");
        let engine = Engine::new(core.clone());
        Ok(Self {
            hub: Hub::new(core.clone(), &engine),
            topic_hub: TopicHub::new(core.clone(), engine.clone()),
            engine,
            core,
            watching: Arc::default(),
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
        let prepared = Arc::new(Prepared::check(core, push)?);
        let push = || self.engine.push(prepared.clone());
        let reply = self.repeat("push", push, prepared.is_idempotent()).await?;
        prepared.settle(core, reply)
    }

    /// Queues many messages; answers each of them, in the order given. One round trip for up to 256 messages or a
    /// mebibyte of bodies, and one for each further such part.
    ///
    /// Messages of one session stand in its queue in the order given, also when the connection is lost on the way:
    /// then the part is repeated with the same ids, until [`Builder::deadline`], and what had arrived is answered as a
    /// duplicate. A part is one script call: the server takes it whole or, when it is full or refuses for another reason,
    /// not at all; what comes after a refused part is not sent and gets the same error. A message that is refused for
    /// itself (its queue is full) stops no other. Redis: `lua/push.lua`, and `lua/coalesce.lua` for each message with a
    /// coalescing key.
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
        let mut members: Vec<Vec<usize>> = vec![Vec::new(); core.partitions.len()];
        for (n, prepared) in good.iter().enumerate() {
            members[core.partitions.of(prepared.sid.as_str())].push(n);
        }
        members.retain(|members| !members.is_empty());
        let pushing =
            members.iter().map(|members| self.push_in_order(members.iter().map(|&n| good[n]).collect()));
        let mut replies: Vec<_> = good.iter().map(|_| None).collect();
        for (members, answers) in members.iter().zip(each(pushing).await) {
            for (&n, answer) in members.iter().zip(answers) {
                replies[n] = Some(answer);
            }
        }
        let mut replies = replies.into_iter();
        checked
            .iter()
            .map(|one| {
                let prepared = one.as_ref().map_err(Clone::clone)?;
                let missing = || Err(Error::Reply { op: "push", got: "fewer answers than pushes".into() });
                prepared.settle(core, replies.next().flatten().unwrap_or_else(missing)?)
            })
            .collect()
    }

    /// Messages of one partition, some in each call, one call after the other.
    async fn push_in_order(&self, good: Vec<&Prepared>) -> Vec<Result<Stored>> {
        let core = &self.core;
        let Some(first) = good.first() else { return Vec::new() };
        let keys = core.keys_of(first.sid.as_str());
        let mut replies = Vec::with_capacity(good.len());
        let mut rest = &good[..];
        while !rest.is_empty() {
            let (part, later) = rest.split_at(Prepared::part_of(rest));
            rest = later;
            let push = || replicas::push(core, keys, part);
            match self.repeat("push", push, part.iter().all(|p| p.is_idempotent())).await {
                Ok(answers) => replies.extend(answers),
                Err(e) => {
                    replies.extend((replies.len()..good.len()).map(|_| Err(e.clone())));
                    break;
                }
            }
        }
        replies
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
        let mut refused: Option<Error> = None;
        loop {
            let e = match until(deadline, operation()).await {
                Some(Ok(done)) => return Ok(done),
                Some(Err(e)) => e,
                None => {
                    let address = self.core.endpoint.address.clone();
                    let after = self.core.config.deadline;
                    return Err(Error::Timeout { op, address, after, ambiguous: true });
                }
            };
            if e.is_ambiguous() {
                unknown.get_or_insert_with(|| e.clone());
            } else if matches!(e, Error::Refused { .. }) {
                refused = Some(e.clone());
            }
            // A try that the deadline would cut off at once is not made: its outcome would be unknown for nothing.
            let wait = pause.mul_f64(0.5 + fastrand::f64());
            let in_time = Instant::now() + wait + Duration::from_millis(20) < deadline;
            if !(in_time && e.is_passing() && (idempotent || !e.is_ambiguous())) {
                // An earlier try may have done it: then a later refusal does not mean that it was not done.
                // And what the server said tells more than that there is no connection to it just now.
                return Err(unknown.or(refused).unwrap_or(e));
            }
            add(&self.core.counters.push_retries, 1);
            tokio::time::sleep(wait).await;
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
        let waiting = self.core.waiting.get().map_or(0, Commands::reconnects);
        metrics.reconnects = self.core.cmd.reconnects() + self.engine.bell_reconnects() + waiting;
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

/// Sixteen letters and digits, 95 bits of chance: a new name for each start. Short, because Redis keeps it with each
/// session.
fn node_name() -> String {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut chance = uuid::Uuid::new_v4().as_u128();
    let digit = || {
        let digit = DIGITS[(chance % 62) as usize];
        chance /= 62;
        char::from(digit)
    };
    std::iter::repeat_with(digit).take(16).collect()
}
