//! The handle that programs hold.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::config::{self, Config};
use crate::connection::{Commands, Endpoint, Link};
use crate::core::{Clock, Core};
use crate::engine::{Drained, Engine};
use crate::keys::{Keys, Sid};
use crate::metrics::{Counters, Metrics, add};
use crate::script::{self, PushArgs, PushReply};
use crate::{Builder, Error, MessageId, Notification, Push, Pushed, Result, SessionId, SubscriberRegistry};

/// A connection to the queues: pushes, subscribes, looks.
///
/// Cheap to clone; clones share everything. A process needs one. It holds one connection to Redis, and a second one
/// from the first subscription on, whatever the number of sessions. When the last clone goes, its background tasks
/// end; sessions that were not given back ([`Courier::shutdown`]) are free for the next claim all the same.
#[derive(Clone)]
pub struct Courier {
    pub(crate) core: Arc<Core>,
    pub(crate) engine: Arc<Engine>,
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

/// The oldest server that has every command the scripts use.
const OLDEST_SERVER: (u32, u32) = (6, 2);

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
        check_version(&cmd).await?;
        let core = Arc::new(Core {
            keys: Keys::new(&config.prefix, 0),
            config,
            endpoint,
            cmd,
            node: uuid::Uuid::new_v4().simple().to_string(),
            counters,
            clock: Clock::new(),
            stop,
        });
        // A missing right shows here, by name, and not at the first message.
        script::overview(&core.cmd, &core.keys, 0, 0).await?;
        tracing::debug!(server = %core.endpoint.address, node = %core.node, "connected");
        Ok(Self { engine: Engine::new(core.clone()), core, _guard: Arc::new(guard) })
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
        let config = &core.config;
        if push.body.len() > config.max_body_bytes {
            add(&core.counters.refused_size, 1);
            return Err(Error::TooLarge {
                what: "body",
                actual: push.body.len(),
                limit: config.max_body_bytes,
            });
        }
        let coalesce = bounded("coalescing key", push.coalesce.as_deref(), 256)?;
        let trace = bounded("trace context", push.trace.as_deref(), 512)?;
        if push.coalesce.as_deref() == Some("") {
            return Err(Error::invalid("coalescing key", "is empty; leave it out instead"));
        }
        let dedupe = push.dedupe.unwrap_or(config.dedupe);
        let dedupe_ms = if dedupe.is_zero() { 0 } else { config::millis("dedupe window", dedupe)? };
        let max_pending = push.max_pending.unwrap_or(config.max_pending);
        if max_pending == 0 {
            return Err(Error::invalid("max pending", "is zero; nothing could ever be queued"));
        }
        let ttl_ms = config::millis("ttl", push.ttl.unwrap_or(config.ttl))?;
        let id = push.id.unwrap_or_else(MessageId::generate);
        let sid = Sid::of(&push.session);
        let on_full = push.on_full.unwrap_or(config.on_full);
        let reply = self
            .repeat(
                "push",
                || {
                    script::push(
                        &core.cmd,
                        &core.keys,
                        PushArgs {
                            sid: &sid,
                            id: &id,
                            body: &push.body,
                            ttl_ms,
                            dedupe_ms,
                            max_pending,
                            on_full,
                            coalesce,
                            trace,
                            look_again_ms: config::millis("look again", config.look_again).unwrap_or(1000),
                            handoff_bytes: config.handoff_bytes as u64,
                        },
                    )
                },
                dedupe_ms > 0,
            )
            .await?;
        match reply {
            PushReply::Full { pending } => {
                add(&core.counters.refused_full, 1);
                Err(Error::QueueFull { session: push.session, pending, limit: max_pending })
            }
            PushReply::Stored { status, pending, dropped } => {
                let counter = match status {
                    crate::PushStatus::Queued => &core.counters.pushed,
                    crate::PushStatus::Coalesced => &core.counters.coalesced,
                    crate::PushStatus::Duplicate => &core.counters.duplicates,
                };
                add(counter, 1);
                add(&core.counters.dropped, dropped);
                tracing::debug!(session = %push.session, id = %id, status = status.as_str(), pending, "push");
                Ok(Pushed { id, status, pending, dropped })
            }
        }
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
        let mut maybe_done = false;
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
            maybe_done |= e.is_ambiguous();
            let again =
                e.is_passing() && (idempotent || !e.is_ambiguous()) && Instant::now() + pause < deadline;
            if !again {
                return Err(e.or_done_before(maybe_done));
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
        self.engine.drain(grace).await
    }
}

fn bounded<'a>(what: &'static str, text: Option<&'a str>, limit: usize) -> Result<&'a str> {
    let text = text.unwrap_or("");
    if text.len() > limit {
        return Err(Error::TooLarge { what, actual: text.len(), limit });
    }
    Ok(text)
}

async fn check_version(cmd: &Commands) -> Result<()> {
    let mut info = redis::cmd("INFO");
    info.arg("server");
    let text = match cmd.raw("connect", info).await {
        Ok(Value::BulkString(text)) => String::from_utf8_lossy(&text).into_owned(),
        Ok(Value::VerbatimString { text, .. }) => text,
        Ok(_) => return Ok(()),
        // Managed services may forbid INFO; the scripts themselves will tell.
        Err(Error::Refused { code, .. }) if code == "NOPERM" => {
            tracing::warn!("the server's version cannot be read (no right to INFO)");
            return Ok(());
        }
        Err(e) => return Err(e),
    };
    let version = text.lines().find_map(|l| l.strip_prefix("redis_version:")).unwrap_or_default().trim();
    let mut numbers = version.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found != (0, 0) && found < OLDEST_SERVER {
        return Err(Error::Refused {
            op: "connect",
            code: "VERSION".into(),
            message: format!("the server is {version}, at least 6.2 is needed"),
        });
    }
    if text.lines().any(|l| l.trim() == "redis_mode:cluster") {
        return Err(Error::invalid(
            "url",
            "the server is a cluster node; this version needs a single server",
        ));
    }
    Ok(())
}
