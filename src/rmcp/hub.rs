//! What one process's MCP sessions share: who is here, who listens, what is looked at again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use rmcp::{Peer, RoleServer};
use tokio::sync::{Notify, OnceCell};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::PeerAsker;
use super::limits::{Limits, ms};
use super::manager::Local;
use super::session_sink::SessionSink;
use super::tail::Tails;
use super::{mail, watch};
use crate::engine::{Listening, Signal, Subscription};
use crate::keys::{Keys, Sid};
use crate::script::{self, Party, Watched};
use crate::{Courier, Error, Result, SessionId};

pub(super) struct Hub {
    pub(super) courier: Courier,
    pub(super) limits: Limits,
    /// `<node>.<number>`: what answers of clients and readers of logs are told apart by.
    pub(super) name: String,
    pub(super) tails: Tails,
    pub(super) post: Arc<Notify>,
    started: OnceCell<Vec<Listening>>,
    local: OnceLock<Weak<Local>>,
    here: Mutex<HashMap<Arc<str>, Here>>,
    serials: AtomicU64,
}

/// A session that this process holds.
pub(super) struct Here {
    /// Ends the streams that are open for it here.
    pub(super) end: CancellationToken,
    /// Another replica had it before.
    pub(super) restored: bool,
    /// Its state was seen in Redis: when it is gone there, the session is over.
    pub(super) saved: bool,
    /// The client's `initialized` came in here.
    pub(super) initialized: bool,
    pub(super) since: Instant,
    attached: Option<Attached>,
}

/// Where its messages go.
struct Attached {
    serial: u64,
    peer: Peer<RoleServer>,
    /// None while another replica serves it.
    subscription: Option<Subscription>,
}

impl Hub {
    pub(super) fn new(courier: Courier, limits: Limits) -> Arc<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let name = format!("{}.{}", courier.core.node, NUMBERS.fetch_add(1, Ordering::Relaxed));
        Arc::new(Self {
            courier,
            limits,
            name,
            tails: Tails::default(),
            post: Arc::default(),
            started: OnceCell::new(),
            local: OnceLock::new(),
            here: Mutex::default(),
            serials: AtomicU64::new(1),
        })
    }

    /// The keys of what belongs to a session or to a stream.
    pub(super) fn keys_of(&self, id: &str) -> &Keys {
        self.courier.core.keys_of(Sid::of_text(id).as_str())
    }

    /// The sessions of Streamable HTTP, once there are some.
    pub(super) fn local(&self) -> Option<Arc<Local>> {
        self.local.get().and_then(Weak::upgrade)
    }

    pub(super) fn set_local(&self, local: &Arc<Local>) {
        let _ = self.local.set(Arc::downgrade(local));
    }

    /// Begins to listen, once.
    pub(super) async fn start(self: &Arc<Self>) -> Result<()> {
        self.started
            .get_or_try_init(|| async {
                let engine = &self.courier.engine;
                let hub = Arc::downgrade(self);
                let events = engine.listen("mcp.event", move |signal| {
                    if let Some(hub) = hub.upgrade() {
                        hub.tails.hear(signal);
                    }
                });
                let hub = Arc::downgrade(self);
                let orders = engine.listen("mcp", move |signal| {
                    if let Some(hub) = hub.upgrade() {
                        hub.hear(signal);
                    }
                });
                let listening = vec![events.await?, orders.await?];
                let stop = self.courier.core.stop.clone();
                tokio::spawn(mail::run(Arc::downgrade(self), stop.clone()));
                tokio::spawn(watch::run(Arc::downgrade(self), stop));
                Ok::<_, Error>(listening)
            })
            .await?;
        Ok(())
    }

    fn hear(self: &Arc<Self>, signal: Signal<'_>) {
        match signal {
            Signal::Rang(b"mail") | Signal::LookAgain => self.post.notify_one(),
            Signal::Rang(payload) => {
                let Some(sid) = payload.strip_prefix(b"end ").and_then(|s| std::str::from_utf8(s).ok())
                else {
                    return;
                };
                let (hub, session) = (self.clone(), crate::keys::decode(sid));
                tokio::spawn(async move { hub.end(&session).await });
            }
        }
    }

    pub(super) fn here(&self) -> MutexGuard<'_, HashMap<Arc<str>, Here>> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is known of a session, which this makes known if it was not.
    pub(super) fn with<T>(&self, session: &str, change: impl FnOnce(&mut Here) -> T) -> T {
        let mut here = self.here();
        let new = || Here {
            end: CancellationToken::new(),
            restored: false,
            saved: false,
            initialized: false,
            since: Instant::now(),
            attached: None,
        };
        change(here.entry(session.into()).or_insert_with(new))
    }

    /// Serves a session: its messages go to this peer from now on. Answers what [`Hub::detach`] takes.
    ///
    /// One that another replica serves stays there, whatever its client sends here: what that one sends reaches the
    /// client all the same. It is taken when that one is gone.
    pub(super) async fn attach(self: &Arc<Self>, session: &SessionId, peer: Peer<RoleServer>) -> Result<u64> {
        self.start().await?;
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        let restored = self.with(session.as_str(), |here| here.restored);
        let subscription = match restored && self.served_elsewhere(session).await? {
            true => None,
            false => Some(self.subscribe(session, &peer).await?),
        };
        self.with(session.as_str(), |here| here.attached = Some(Attached { serial, peer, subscription }));
        Ok(serial)
    }

    async fn served_elsewhere(&self, session: &SessionId) -> Result<bool> {
        let (sid, log) = (Sid::of(session), Self::stream_key(&Self::standalone(session.as_str())));
        let watched = [Watched { sid, log, token: String::new() }];
        let core = &self.courier.core;
        let ttls = (ms(self.limits.session_ttl), ms(self.limits.event_ttl));
        let keys = self.keys_of(session.as_str());
        let look = || script::session_watch(&core.cmd, keys, ttls, true, &watched);
        let standing = self.courier.repeat("session_watch", look, true).await?;
        let here = self.courier.engine.is_running(session);
        Ok(!here && standing.first().is_some_and(|standing| standing.owner == Party::Alive))
    }

    async fn subscribe(
        self: &Arc<Self>,
        session: &SessionId,
        peer: &Peer<RoleServer>,
    ) -> Result<Subscription> {
        // Whether its state is in Redis, where another replica finds it.
        let saved = self.with(session.as_str(), |here| here.saved);
        let resumable = saved.then(|| (Arc::downgrade(self), session.as_str().to_owned()));
        let sink = SessionSink::new(peer.clone(), resumable);
        let asker = PeerAsker::resumable(peer.clone(), saved);
        let sink = Arc::new(self.courier.relay().attach(sink, asker));
        let subscribed = self.courier.engine.subscribe(session, sink, None, false).await?;
        subscribed.ok_or(Error::Closed { op: "subscribe" })
    }

    /// Stops serving a session, unless it was attached anew meanwhile.
    pub(super) fn detach(&self, session: &str, serial: u64) {
        let gone = {
            let mut here = self.here();
            let Some(known) = here.get_mut(session) else { return };
            known.attached.take_if(|attached| attached.serial == serial)
        };
        stop(gone);
    }

    /// Ends what serves a session whose client is gone, although its handler may be held by somebody.
    pub(super) fn detach_closed(&self, session: &str) {
        let gone = {
            let mut here = self.here();
            let Some(known) = here.get_mut(session) else { return };
            known.attached.take_if(|attached| attached.peer.is_transport_closed())
        };
        stop(gone);
    }

    /// Whether anything here is done for the session.
    pub(super) async fn holds(&self, session: &str) -> bool {
        if self.here().get(session).is_some_and(|known| known.attached.is_some()) {
            return true;
        }
        match self.local() {
            Some(local) => local.has(session).await,
            None => false,
        }
    }

    /// Serves a session again that nobody serves any more, though its client is here.
    pub(super) async fn attach_again(self: &Arc<Self>, session: &str) {
        let Ok(id) = SessionId::new(session) else { return };
        let peer = {
            let here = self.here();
            let Some(attached) = here.get(session).and_then(|known| known.attached.as_ref()) else { return };
            if attached.peer.is_transport_closed() || self.courier.engine.is_running(&id) {
                return;
            }
            attached.peer.clone()
        };
        tracing::debug!(session = %id, "nobody serves the session, taking it");
        match self.subscribe(&id, &peer).await {
            Ok(subscription) => {
                let mut here = self.here();
                match here.get_mut(session).and_then(|known| known.attached.as_mut()) {
                    Some(attached) => attached.subscription = Some(subscription),
                    None => {
                        let _ = subscription.stop(true);
                    }
                }
            }
            Err(e) => tracing::warn!(session = %id, error = %e, "could not take the session"),
        }
    }

    /// The session is over, somebody said.
    pub(super) async fn end(&self, session: &str) {
        if !self.here().contains_key(session) {
            return;
        }
        self.forget(session);
        if let Some(local) = self.local() {
            local.close(session).await;
        }
    }

    /// The session is not here any more.
    pub(super) fn forget(&self, session: &str) {
        let Some(known) = self.here().remove(session) else { return };
        known.end.cancel();
        stop(known.attached);
    }

    /// Its standalone stream's log, which every replica writes to and reads from.
    pub(super) fn standalone(session: &str) -> String {
        format!("{session}:common")
    }

    /// The session that a log belongs to; a log of one request belongs to itself.
    pub(super) fn home_of(stream: &str) -> &str {
        stream.strip_suffix(":common").unwrap_or(stream)
    }

    pub(super) fn stream_key(stream: &str) -> Sid {
        Sid::of_text(stream)
    }
}

fn stop(attached: Option<Attached>) {
    // Outside of a runtime there is nobody left to give the session back; the next claim frees it.
    if let Some(subscription) = attached.and_then(|attached| attached.subscription)
        && tokio::runtime::Handle::try_current().is_ok()
    {
        let _ = subscription.stop(true);
    }
}
