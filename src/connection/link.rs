//! One supervised connection: opened, watched, and opened again with jittered backoff for as long as it is wanted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Endpoint;
use super::endpoint::Place;
use super::failure::from_redis;
use crate::{Error, Result};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Before the first try when connections keep going: no more than two a second to a server that lets us in and then
/// cannot do what we ask.
const FLAPPING_PAUSE: Duration = Duration::from_millis(700);
/// Between tries that the server answers with a refusal: at most one a second, and back within two of a good one.
const REFUSED_PAUSE: Duration = Duration::from_millis(1400);
/// Between two looks at whether the server is still the right one.
const DOUBT_PAUSE: Duration = Duration::from_millis(300);
/// A connection that lived so long was a good one.
const STABLE: Duration = Duration::from_secs(2);

/// Hears what comes in by itself on this connection. Runs inside the connection's driver: it must not block.
pub(crate) type OnMessage = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// What a link is doing.
#[derive(Clone)]
pub(crate) enum LinkState {
    Down(Error),
    Up(Up),
    Closed,
}

/// A connection that is up.
#[derive(Clone)]
pub(crate) struct Up {
    pub(crate) generation: u64,
    pub(crate) connection: MultiplexedConnection,
    /// Where it leads, when that was asked for.
    place: Option<Place>,
    /// Cancelled when the connection is given up: what waits for an answer over it need not wait to the end.
    pub(crate) over: CancellationToken,
}

/// A supervised connection. Clones share it.
#[derive(Clone)]
pub(crate) struct Link(Arc<Inner>);

struct Inner {
    name: &'static str,
    endpoint: Endpoint,
    connect_timeout: Duration,
    /// The channels this link listens to, and who hears them.
    inbox: Option<(Vec<String>, OnMessage)>,
    state: watch::Sender<LinkState>,
    generation: AtomicU64,
    /// The newest generation that somebody found broken.
    broken: AtomicU64,
    /// The newest generation that leads to a server which does not do what it is for.
    misled: AtomicU64,
    trouble: Notify,
    /// Somebody doubts that the server is still the right one.
    doubt: Notify,
    reconnects: AtomicU64,
}

impl Link {
    /// Opens the first connection, so that a wrong address or password is an error here and now, then keeps it up
    /// until `stop` is cancelled.
    pub(crate) async fn open(
        name: &'static str,
        endpoint: Endpoint,
        connect_timeout: Duration,
        inbox: Option<(Vec<String>, OnMessage)>,
        stop: CancellationToken,
    ) -> Result<Self> {
        let inner = Inner::new(name, endpoint, connect_timeout, inbox);
        let first = inner.connect().await?;
        tokio::spawn(inner.clone().supervise(first, stop));
        Ok(Self(inner))
    }

    /// Opens the connection in the background, and keeps it up until `stop` is cancelled.
    #[cfg(feature = "cluster")]
    pub(crate) fn keep(
        name: &'static str,
        endpoint: Endpoint,
        connect_timeout: Duration,
        stop: CancellationToken,
    ) -> Self {
        let inner = Inner::new(name, endpoint, connect_timeout, None);
        tokio::spawn(inner.clone().open_and_supervise(stop));
        Self(inner)
    }

    pub(crate) fn address(&self) -> &str {
        &self.0.endpoint.address
    }

    /// The connection, waiting for it until the deadline when it is down.
    pub(crate) async fn ready(&self, op: &'static str, deadline: Instant) -> Result<Up> {
        let mut states = self.0.state.subscribe();
        loop {
            let why_down = match &*states.borrow_and_update() {
                LinkState::Up(up) => return Ok(up.clone()),
                LinkState::Closed => return Err(Error::Closed { op }),
                LinkState::Down(why) => why.clone(),
            };
            match tokio::time::timeout_at(deadline, states.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Error::Closed { op }),
                Err(_) => return Err(why_down),
            }
        }
    }

    /// The connection, if there is one now.
    #[cfg(feature = "cluster")]
    pub(crate) fn connection(&self) -> Option<MultiplexedConnection> {
        match &*self.0.state.borrow() {
            LinkState::Up(up) => Some(up.connection.clone()),
            LinkState::Down(_) | LinkState::Closed => None,
        }
    }

    /// Tells the supervisor that this connection is of no use. Late words about an old one change nothing.
    pub(crate) fn broken(&self, generation: u64) {
        self.0.broken(generation);
    }

    /// The server answers as one that was replaced: whether it was is asked, where there is somebody to ask.
    pub(crate) fn doubt(&self) {
        self.0.doubt.notify_one();
    }

    /// Tells the supervisor that this connection leads to the wrong server, or as the wrong user: it is to be opened
    /// again, and serves what it can until then. Where another server takes over by itself (Sentinel, a Cluster) calls
    /// wait for that one: it is there sooner than they would try again.
    pub(crate) fn misled(&self, generation: u64) {
        if self.0.endpoint.is_replaceable() {
            return self.0.broken(generation);
        }
        self.0.misled.fetch_max(generation, Ordering::Relaxed);
        self.0.trouble.notify_one();
    }

    /// Changes of state, for those who act on a reconnect.
    pub(crate) fn states(&self) -> watch::Receiver<LinkState> {
        self.0.state.subscribe()
    }

    /// Why the link is down, if it is.
    pub(crate) fn down(&self) -> Option<Error> {
        match &*self.0.state.borrow() {
            LinkState::Down(why) => Some(why.clone()),
            LinkState::Closed => Some(Error::Closed { op: "connect" }),
            LinkState::Up(_) => None,
        }
    }

    /// How often the connection was opened again.
    pub(crate) fn reconnects(&self) -> u64 {
        self.0.reconnects.load(Ordering::Relaxed)
    }
}

impl Inner {
    fn new(
        name: &'static str,
        endpoint: Endpoint,
        connect_timeout: Duration,
        inbox: Option<(Vec<String>, OnMessage)>,
    ) -> Arc<Self> {
        let waiting = Error::Unreachable {
            op: "connect",
            address: endpoint.address.clone(),
            why: "not connected yet".into(),
            ambiguous: false,
        };
        Arc::new(Self {
            name,
            endpoint,
            connect_timeout,
            inbox,
            state: watch::Sender::new(LinkState::Down(waiting)),
            generation: AtomicU64::new(0),
            broken: AtomicU64::new(0),
            misled: AtomicU64::new(0),
            trouble: Notify::new(),
            doubt: Notify::new(),
            reconnects: AtomicU64::new(0),
        })
    }

    fn broken(&self, generation: u64) {
        self.broken.fetch_max(generation, Ordering::Relaxed);
        self.trouble.notify_one();
    }

    /// Opens a connection, listens to the inbox, and only then shows it to the callers.
    async fn connect(self: &Arc<Self>) -> Result<u64> {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        let watcher = Arc::downgrade(self);
        let on_message = self.inbox.as_ref().map(|(_, hear)| hear.clone());
        let on_push = Arc::new(move |info: PushInfo| match info.kind {
            PushKind::Disconnection => {
                if let Some(inner) = watcher.upgrade() {
                    inner.broken(generation);
                }
            }
            PushKind::Message | PushKind::SMessage => {
                if let (Some(hear), Some(redis::Value::BulkString(payload))) = (&on_message, info.data.get(1))
                {
                    hear(payload);
                }
            }
            _ => {}
        });
        let (mut connection, place) = self.endpoint.open(self.connect_timeout, on_push).await?;
        if let Some((channels, _)) = &self.inbox {
            let subscribed = tokio::time::timeout(self.connect_timeout, connection.subscribe(channels)).await;
            match subscribed {
                Ok(answer) => {
                    answer.map_err(|e| from_redis("subscribe", &self.endpoint.address, &e, false))?
                }
                Err(_) => {
                    return Err(Error::Timeout {
                        op: "subscribe",
                        address: self.endpoint.address.clone(),
                        after: self.connect_timeout,
                        ambiguous: false,
                    });
                }
            }
        }
        let over = CancellationToken::new();
        self.state.send_replace(LinkState::Up(Up { generation, connection, place, over }));
        Ok(generation)
    }

    #[cfg(feature = "cluster")]
    async fn open_and_supervise(self: Arc<Self>, stop: CancellationToken) {
        let first = tokio::select! {
            first = self.connect() => first,
            () = stop.cancelled() => Err(Error::Closed { op: "connect" }),
        };
        let generation = match first {
            Ok(generation) => generation,
            Err(e) => {
                self.state.send_replace(LinkState::Down(e));
                tokio::select! {
                    generation = self.reconnect(FIRST_PAUSE) => generation,
                    () = stop.cancelled() => {
                        self.state.send_replace(LinkState::Closed);
                        return;
                    }
                }
            }
        };
        self.supervise(generation, stop).await;
    }

    async fn supervise(self: Arc<Self>, mut generation: u64, stop: CancellationToken) {
        let mut pause = FIRST_PAUSE;
        let mut up_since = Instant::now();
        // The connection before this one did not last either.
        let mut flapped = false;
        // When another server was looked for, and the pause before that.
        let mut looked = None;
        loop {
            let place = match &*self.state.borrow() {
                LinkState::Up(up) => up.place.clone(),
                LinkState::Down(_) | LinkState::Closed => None,
            };
            let newest = |of: &AtomicU64| of.load(Ordering::Relaxed);
            while newest(&self.broken) < generation {
                let again = newest(&self.misled) >= generation;
                tokio::select! {
                    () = self.trouble.notified(), if !again => {}
                    () = self.endpoint.replaced(place.as_ref()) => self.broken(generation),
                    () = self.look_when_in_doubt() => {}
                    found = self.look_for_another(&mut looked), if again => {
                        if let Some(another) = found {
                            (generation, up_since, flapped) = (another, Instant::now(), true);
                        }
                    }
                    () = stop.cancelled() => {
                        self.state.send_replace(LinkState::Closed);
                        return;
                    }
                }
            }
            let lost = Error::Unreachable {
                op: "connect",
                address: self.endpoint.address.clone(),
                why: "the connection was lost".into(),
                ambiguous: false,
            };
            if let LinkState::Up(up) = self.state.send_replace(LinkState::Down(lost)) {
                up.over.cancel();
            }
            // A connection that did not last is not opened again at once, and not told of again: a refusing server is
            // not stormed, and neither is the log.
            let lasted = up_since.elapsed() > STABLE;
            if lasted || !flapped {
                tracing::warn!(link = self.name, server = %self.endpoint.address, "connection lost, reconnecting");
            } else {
                tracing::debug!(link = self.name, "connection lost once more, reconnecting");
            }
            pause = if lasted { FIRST_PAUSE } else { (pause * 2).min(FLAPPING_PAUSE) };
            flapped = !lasted;
            tokio::select! {
                up = self.reconnect(pause) => generation = up,
                () = stop.cancelled() => {
                    self.state.send_replace(LinkState::Closed);
                    return;
                }
            }
            up_since = Instant::now();
        }
    }

    /// Asks whether the server is still the right one, as often as there is doubt, and not in a hurry.
    async fn look_when_in_doubt(&self) {
        loop {
            self.doubt.notified().await;
            self.endpoint.look(self.connect_timeout).await;
            tokio::time::sleep(DOUBT_PAUSE).await;
        }
    }

    /// One try to replace a connection that leads to a server which refuses. The old one stays until it succeeds, and
    /// when it does not: whether it is any good is found by those who use it.
    async fn look_for_another(self: &Arc<Self>, looked: &mut Option<(Instant, Duration)>) -> Option<u64> {
        let before = looked.filter(|(at, _)| at.elapsed() < 3 * STABLE);
        let pause = before.map_or(FIRST_PAUSE, |(_, pause)| (pause * 2).min(FLAPPING_PAUSE));
        *looked = Some((Instant::now(), pause));
        tokio::time::sleep(pause.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        if before.is_none() {
            tracing::warn!(link = self.name, server = %self.endpoint.address, "refused by this server, connecting anew");
        }
        match self.connect().await {
            Ok(another) => {
                self.reconnects.fetch_add(1, Ordering::Relaxed);
                Some(another)
            }
            Err(e) => {
                tracing::debug!(link = self.name, error = %e, "no other connection yet");
                None
            }
        }
    }

    /// Tries until it succeeds. Each change of the reason is logged once, not each try.
    async fn reconnect(self: &Arc<Self>, mut pause: Duration) -> u64 {
        let mut told = String::new();
        loop {
            // Jitter, so that many processes do not come back in one moment.
            tokio::time::sleep(pause.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
            match self.connect().await {
                Ok(generation) => {
                    self.reconnects.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(link = self.name, server = %self.endpoint.address, "connected again");
                    return generation;
                }
                Err(e) => {
                    let why = e.trouble();
                    if why != told {
                        tracing::warn!(link = self.name, error = %e, "cannot connect, trying on");
                        told = why;
                    }
                    // One that will pass (a replica that is still named master) is looked at again soon.
                    pause = if matches!(&e, Error::Refused { .. }) && !e.is_passing() {
                        REFUSED_PAUSE
                    } else {
                        (pause * 2).min(self.endpoint.longest_pause())
                    };
                    self.state.send_replace(LinkState::Down(e));
                }
            }
        }
    }
}
