//! Settings, and how a courier is made from them.

use std::time::Duration;

use crate::config::{Config, RetryOrder};
use crate::connection::{Credentials, Endpoint, Provider, Tls};
use crate::replicas::Replicas;
use crate::{Courier, OnFull, Result};

/// Settings of a [`Courier`]. Every one has a default that fits an MCP server; all processes that share queues
/// should use the same ones.
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until `connect`"]
pub struct Builder {
    config: Config,
    tls: Tls,
    credentials: Option<Provider>,
    sentinel_credentials: Option<Provider>,
}

macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $type:ty),* $(,)?) => {
        $($(#[$doc])* pub fn $name(mut self, $name: $type) -> Self {
            self.config.$name = $name;
            self
        })*
    };
}

impl Builder {
    /// Prefix of every key and channel; default `courier`. Couriers with different prefixes share nothing.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.config.prefix = prefix.into();
        self
    }

    /// Over how many partitions sessions are spread; default: what is stored, and if nothing is, 1, in a Cluster 64. The
    /// first process to use a prefix stores the number, and one that is set to another is refused: [`Error::Layout`](crate::Error::Layout). More partitions
    /// spread a Cluster's load more evenly and cost each process a little more when it idles.
    pub fn partitions(mut self, partitions: u16) -> Self {
        self.config.partitions = Some(partitions);
        self
    }

    settings! {
        /// A message's time to live when the push names none; default 300 s.
        ttl: Duration,
        /// The idempotence window of a push: how long an id is refused as a duplicate; default 60 s, zero for none.
        /// Each pushed message leaves a small key in Redis for so long.
        dedupe: Duration,
        /// Largest body; default 4 MiB.
        max_body_bytes: usize,
        /// Most pending messages of a session; default 10,000.
        max_pending: u64,
        /// Most sessions that this process serves at a time; default 1,000,000. One more is refused.
        max_sessions: usize,
        /// What a push does when the queue is full; default [`OnFull::Refuse`].
        on_full: OnFull,
        /// Attempts before a message becomes a dead letter; default 3.
        max_attempts: u32,
        /// Where a failed message waits; default [`RetryOrder::Fifo`].
        retry_order: RetryOrder,
        /// Pause before the second attempt, doubled for each further one, jittered by a quarter; default 200 ms.
        backoff: Duration,
        /// Longest pause between attempts; default 30 s.
        backoff_cap: Duration,
        /// Most dead letters of a session, oldest go first; default 1,000.
        dead_cap: u32,
        /// How long dead letters are kept after the newest one came; default 7 days.
        dead_ttl: Duration,
        /// Most messages fetched at a time for a session; default 64.
        batch: u32,
        /// About how many bytes of messages one script call may answer; default 1 MiB. One message is always answered.
        batch_bytes: usize,
        /// Largest record that travels in the doorbell itself; default 16 KiB.
        handoff_bytes: usize,
        /// How long a process counts as alive after its last heartbeat; default 10 s, at least three heartbeats.
        lease: Duration,
        /// Between heartbeats; default 1 s.
        heartbeat: Duration,
        /// After so long an unanswered doorbell is rung again; default 1 s.
        look_again: Duration,
        /// A process whose lease ended so long ago is forgotten as an owner; default 60 s.
        node_grace: Duration,
        /// How long a session that nobody owns still takes part in its topics, at most; at least half of that. Default
        /// 300 s.
        topic_keep: Duration,
        /// Messages to a topic with one coalescing key that come within this time become one, after the first; default
        /// 50 ms.
        topic_window: Duration,
        /// For opening one connection; default 2 s.
        connect_timeout: Duration,
        /// For the answer to one script; default 3 s. A connection without an answer in time is opened again.
        call_timeout: Duration,
        /// For a whole operation with its retries; default 10 s.
        deadline: Duration,
    }

    /// What [`Push::wait_replicas`](crate::Push::wait_replicas) says, for every push of this courier that does not say
    /// otherwise. Default: nobody waits.
    pub fn wait_replicas(mut self, replicas: u32, within: Duration) -> Self {
        self.config.replicas = Some(Replicas { count: replicas, within });
        self
    }

    /// Encrypts what is in messages: bodies in Redis and in doorbells, the contents of answers to questions, and, with
    /// [`Courier::tasks`](crate::Courier::tasks), what [`Tasks::encrypted`](crate::tasks::Tasks::encrypted) says. The ring's
    /// first key seals; every process of the queues needs the ring.
    ///
    /// It fails closed: a body whose key is missing or wrong, one that belongs to another message, and one that is not
    /// sealed at all, become dead letters with the reason `rejected`, their bytes intact, and reach no sink; an answer like
    /// that is an error for whoever waits for it. Not encrypted are ids of sessions, messages and questions, coalescing
    /// keys, trace contexts, error texts, times, the requests that questions store, frames of topics, and what an MCP
    /// session keeps for another replica.
    #[cfg(feature = "encryption")]
    pub fn encryption(mut self, ring: crate::KeyRing) -> Self {
        self.config.bodies.ring = Some(ring);
        self
    }

    /// Certificates for `rediss://`, `rediss+sentinel://` (sentinels and servers) and `rediss+cluster://`.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self
    }

    /// Asks for user and password each time a connection is opened, instead of taking them from the URL: for passwords
    /// and tokens that change. An error's text becomes part of [`Error::Refused`](crate::Error::Refused) and of the log;
    /// the courier tries again, at most once a second.
    pub fn credentials<F, Fut>(mut self, ask: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Credentials, String>> + Send + 'static,
    {
        self.credentials = Some(Provider::new(ask));
        self
    }

    /// The same for sentinels, which are other servers with users of their own: asked each time a connection to the master
    /// is opened, instead of taking `sentinel_user` and `sentinel_pass` from the URL.
    pub fn sentinel_credentials<F, Fut>(mut self, ask: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Credentials, String>> + Send + 'static,
    {
        self.sentinel_credentials = Some(Provider::new(ask));
        self
    }

    /// Connects to `redis://[user:password@]host[:port][/db]`, `rediss://…` (feature `tls`),
    /// `redis+unix:///path[?db=0&user=…&pass=…]`, `redis+sentinel://[user:password@]host,host/name[/db]` (feature
    /// `sentinel`; `rediss+sentinel://…` with `tls`), `redis+cluster://[user:password@]host,host` (feature `cluster`;
    /// `rediss+cluster://…` with `tls`), `memory://` (private to this courier) or `memory://name` (shared in
    /// this process). All of them, with their options: `docs/operating.md`.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a bad setting or URL, [`Error::Unreachable`](crate::Error::Unreachable)
    /// or [`Error::Timeout`](crate::Error::Timeout) when no server answers,
    /// [`Error::Refused`](crate::Error::Refused) for a wrong password, a missing right, or a server before 6.2.
    ///
    /// # Cancel safety
    /// Dropping the future closes what it opened.
    pub async fn connect(self, url: impl AsRef<str>) -> Result<Courier> {
        self.config.check()?;
        let endpoint = Endpoint::parse(url.as_ref(), &self.tls)?
            .credentials(self.credentials, self.sentinel_credentials);
        Courier::start(self.config, endpoint).await
    }
}
