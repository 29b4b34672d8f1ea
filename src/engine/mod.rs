//! The delivery engine: one for a process, whatever the number of sessions.
//!
//! ```text
//! doorbell ──> ring: look the session up, wake it ──> runner: deliver, ack and fetch, … until nothing is left
//! sweep, resync, claims ──────────────┘                  │ batches: acks of many sessions in one script call
//! ```
//!
//! A runner is a task that lives as long as its session has something to do. The list in Redis is the truth: a lost
//! doorbell, reply or process costs time, never a message.

pub(crate) mod batch;
mod beat;
mod calls;
mod hints;
mod recent;
mod resync;
mod runner;
mod sessions;
mod shutdown;
mod signals;
mod sweeper;
mod topic_keeper;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use tokio::sync::{Notify, OnceCell, oneshot};
use tokio_util::sync::CancellationToken;

use self::calls::Calls;
pub(crate) use self::hints::Hint;
use self::recent::Identities;
use self::runner::{Runner, Start};
pub use self::sessions::Ended;
use self::sessions::{Active, Sessions, Slot};
pub use self::shutdown::Drained;
use self::signals::Signals;
pub(crate) use self::signals::{Listening, Signal};
use crate::connection::Link;
use crate::core::Core;
use crate::delivery::{AnySink, is_closed};
use crate::keys::Sid;
use crate::metrics::add;
use crate::script::{self, ClaimMode};
use crate::{Error, Health, Result, SessionId};

pub(crate) struct Engine {
    core: Arc<Core>,
    sessions: Sessions,
    identities: Identities,
    serials: AtomicU64,
    bell: OnceCell<Link>,
    /// The newest heartbeat that came back.
    beat_heard: AtomicU64,
    /// The newest heartbeat that was sent: nobody else's number is taken for it.
    beat_sent: AtomicU64,
    health: beat::Pulse,
    closing: AtomicBool,
    /// A session was found without its owner: others may have lost theirs as well.
    owners_lost: AtomicBool,
    /// Ends the background roles, at the latest with the courier.
    serving: CancellationToken,
    calls: Calls,
    signals: Arc<Signals>,
}

impl Engine {
    pub(crate) fn new(core: Arc<Core>) -> Arc<Self> {
        Arc::new(Self {
            sessions: Sessions::default(),
            identities: Identities::default(),
            serials: AtomicU64::new(1),
            bell: OnceCell::new(),
            beat_heard: AtomicU64::new(0),
            beat_sent: AtomicU64::new(0),
            health: beat::Pulse::default(),
            closing: AtomicBool::new(false),
            owners_lost: AtomicBool::new(false),
            serving: core.stop.child_token(),
            calls: Calls::new(&core),
            signals: Arc::default(),
            core,
        })
    }

    /// Opens the bell connection and starts the background roles, once. A process that only pushes never does.
    pub(crate) async fn start(self: &Arc<Self>) -> Result<()> {
        self.bell
            .get_or_try_init(|| async {
                let engine: Weak<Self> = Arc::downgrade(self);
                let hear = Arc::new(move |payload: &[u8]| {
                    if let Some(engine) = engine.upgrade() {
                        engine.doorbell(payload);
                    }
                });
                let inbox = self.core.keys.inbox(&self.core.node);
                // Until all of it is there, a failure or a dropped call closes the connection again.
                let serving = self.serving.child_token();
                let unless_started = serving.clone().drop_guard();
                let bell = Link::open(
                    "bell",
                    self.core.endpoint.clone(),
                    self.core.config.connect_timeout,
                    Some((inbox, hear)),
                    serving.clone(),
                )
                .await?;
                // The lease is there before the first claim, or a claim would look like that of a dead node.
                let first = script::heartbeat(
                    &self.core.cmd,
                    &self.core.keys,
                    &self.core.config,
                    &self.core.node,
                    0,
                    &[],
                );
                self.core.clock.set(first.await?.now_ms);
                tokio::spawn(beat::run(Arc::downgrade(self), bell.clone(), serving.clone()));
                tokio::spawn(sweeper::run(Arc::downgrade(self), serving.clone()));
                tokio::spawn(topic_keeper::run(Arc::downgrade(self), serving.clone()));
                tokio::spawn(resync::run(Arc::downgrade(self), bell.clone(), serving.clone()));
                unless_started.disarm();
                Ok(bell)
            })
            .await?;
        Ok(())
    }

    /// Puts a subscription into the table and starts claiming its session. An older subscription of the same
    /// session in this process ends as superseded; with `unless_open` one whose sink is open stays, and the answer is
    /// `None`.
    pub(crate) async fn subscribe(
        self: &Arc<Self>,
        session: &SessionId,
        sink: Arc<dyn AnySink>,
        ended: Option<oneshot::Sender<Ended>>,
        unless_open: bool,
    ) -> Result<Option<Subscription>> {
        let closed = || self.is_closing();
        if closed() {
            return Err(Error::Closed { op: "subscribe" });
        }
        self.start().await?;
        let sid = Sid::of(session);
        let mut known_closed = None;
        loop {
            // Asked outside of the lock: a sink's own code runs here.
            if unless_open && let Some(ending) = self.ending(&sid) {
                // What it delivered is acked, and the session given back, before it is claimed again.
                let _ = ending.await;
                continue;
            }
            let open = self.sink_of(&sid).filter(|(serial, _)| known_closed != Some(*serial));
            if let (true, Some((serial, sink))) = (unless_open, open) {
                if !is_closed(&*sink) {
                    return Ok(None);
                }
                known_closed = Some(serial);
            }
            let serial = self.serials.fetch_add(1, Ordering::Relaxed);
            let (claimed, first_claim) = oneshot::channel();
            let active = self.active();
            let old = {
                let mut sessions = self.sessions.lock();
                if closed() {
                    return Err(Error::Closed { op: "subscribe" });
                }
                if unless_open && sessions.get(&sid).is_some_and(|slot| known_closed != Some(slot.serial)) {
                    continue; // Somebody else was faster: ask that one.
                }
                let slot = Slot {
                    serial,
                    session: session.clone(),
                    sink,
                    epoch: 0,
                    active: Some(active.clone()),
                    recent: None,
                    hints: hints::Hints::default(),
                    ended,
                    claimed: vec![claimed],
                    gone: Vec::new(),
                };
                sessions.insert(sid.clone(), slot)
            };
            if let Some(old) = old {
                if let Some(active) = &old.active {
                    active.stop.cancel();
                }
                old.tell_end(Ended::Superseded);
            }
            self.spawn(&sid, serial, active, Start::Claim(ClaimMode::Take));
            return Ok(Some(Subscription {
                engine: self.clone(),
                sid,
                serial,
                first_claim: Some(first_claim),
            }));
        }
    }

    /// Cancelled when this process has stopped serving, at the latest with the courier.
    pub(crate) fn stopped(&self) -> CancellationToken {
        self.serving.clone()
    }

    /// It was told to shut down.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire) || self.core.stop.is_cancelled()
    }

    /// When a subscription is on its way out: its end.
    fn ending(&self, sid: &Sid) -> Option<oneshot::Receiver<()>> {
        let mut sessions = self.sessions.lock();
        let slot = sessions.get_mut(sid).filter(|slot| slot.is_ending())?;
        let (gone, wait) = oneshot::channel();
        slot.gone.push(gone);
        Some(wait)
    }

    fn sink_of(&self, sid: &Sid) -> Option<(u64, Arc<dyn AnySink>)> {
        self.sessions.lock().get(sid).map(|slot| (slot.serial, slot.sink.clone()))
    }

    /// Has a session checked against the stored owners.
    pub(crate) fn check(self: &Arc<Self>, session: &SessionId) {
        self.wake(&Sid::of(session), Start::Look);
    }

    fn active(&self) -> Arc<Active> {
        Arc::new(Active {
            stop: self.core.stop.child_token(),
            drain: CancellationToken::new(),
            again: AtomicBool::new(false),
            hinted: AtomicBool::new(false),
            bell: Notify::new(),
            delivering: AtomicBool::new(false),
            finishing: AtomicBool::new(false),
        })
    }

    fn spawn(self: &Arc<Self>, sid: &Sid, serial: u64, active: Arc<Active>, start: Start) {
        if let Some(runner) = Runner::new(self.clone(), sid.clone(), serial, active) {
            tokio::spawn(runner.run(start));
        }
    }

    /// A frame came in on the bell connection: `!<beat>`, `<sid>`, `<sid> <record>`, `?<sid>` from a sweep, or
    /// `@<name> <payload>` for whoever listens to a name.
    fn doorbell(self: &Arc<Self>, payload: &[u8]) {
        if let Some(beat) = payload.strip_prefix(b"!") {
            let beat = std::str::from_utf8(beat).ok().and_then(|b| b.parse().ok());
            if let Some(beat) = beat.filter(|beat| *beat <= self.beat_sent.load(Ordering::Relaxed)) {
                self.beat_heard.fetch_max(beat, Ordering::Relaxed);
                add(&self.core.counters.heartbeats, 1);
            }
            return;
        }
        if let Some(frame) = payload.strip_prefix(b"@") {
            return self.signals.ring(frame);
        }
        if let Some(sid) = payload.strip_prefix(b"?") {
            if let Ok(sid) = std::str::from_utf8(sid) {
                self.wake(&Sid::encoded(sid), Start::Look);
            }
            return;
        }
        let end = payload.iter().position(|&b| b == b' ').unwrap_or(payload.len());
        let Ok(sid) = std::str::from_utf8(&payload[..end]) else { return };
        let record = payload.get(end + 1..).map(Bytes::copy_from_slice);
        if self.wake(&Sid::encoded(sid), record.map_or(Start::Fetch, Start::Record)) {
            add(&self.core.counters.doorbells, 1);
        }
    }

    /// Listens to a name in this process's inbox, from the next frame on. Opens the bell connection when it is the first
    /// to need it.
    pub(crate) async fn listen(
        self: &Arc<Self>,
        name: &str,
        hear: impl Fn(Signal<'_>) + Send + Sync + 'static,
    ) -> Result<Listening> {
        self.start().await?;
        Ok(self.signals.listen(name, hear))
    }

    /// Gives a session something to do; a busy one looks again by itself when it is done. False when the session is
    /// not ours.
    fn wake(self: &Arc<Self>, sid: &Sid, start: Start) -> bool {
        let active = self.active();
        let (serial, start) = {
            let mut sessions = self.sessions.lock();
            let Some(slot) = sessions.get_mut(sid) else { return false };
            if let Some(busy) = &slot.active {
                // A runner looks by itself before it ends: what a sweep has to say it finds out anyway.
                if !matches!(start, Start::Look) {
                    busy.ring();
                }
                return true;
            }
            slot.active = Some(active.clone());
            // Heard of a session that we hold but have no token for: the claim's answer was lost.
            (slot.serial, if slot.epoch == 0 { Start::Claim(ClaimMode::Keep) } else { start })
        };
        self.spawn(sid, serial, active, start);
        true
    }

    /// Claims everything again that nobody else has taken: the stored owners were lost.
    fn reclaim_all(self: &Arc<Self>) {
        let idle: Vec<(Sid, u64, Arc<Active>)> = {
            let mut sessions = self.sessions.lock();
            let engine = self;
            sessions
                .iter_mut()
                .filter(|(_, slot)| slot.active.is_none())
                .map(|(sid, slot)| {
                    let active = engine.active();
                    slot.active = Some(active.clone());
                    (sid.clone(), slot.serial, active)
                })
                .collect()
        };
        add(&self.core.counters.state_lost, 1);
        tracing::warn!(sessions = idle.len(), "the stored owners were lost, claiming again");
        for (sid, serial, active) in idle {
            self.spawn(&sid, serial, active, Start::Claim(ClaimMode::Keep));
        }
    }

    /// Ends a subscription: `now` drops a delivery in progress, else it may finish. Answers a future that ends when
    /// the session was given back, or nothing when the subscription is not there.
    pub(crate) fn stop(
        self: &Arc<Self>,
        sid: &Sid,
        serial: Option<u64>,
        now: bool,
    ) -> Option<oneshot::Receiver<()>> {
        let fresh = self.active();
        let (gone, wait) = oneshot::channel();
        let idle = {
            let mut sessions = self.sessions.lock();
            let slot = sessions.get_mut(sid).filter(|slot| serial.is_none_or(|s| s == slot.serial))?;
            slot.gone.push(gone);
            let idle = slot.active.is_none();
            let active = slot.active.get_or_insert(fresh).clone();
            if now {
                active.stop.cancel();
            } else {
                active.drain.cancel();
            }
            idle.then_some((slot.serial, active))
        };
        if let Some((serial, active)) = idle {
            self.spawn(sid, serial, active, Start::End);
        }
        Some(wait)
    }

    /// The sessions in the table.
    pub(crate) fn sessions(&self) -> Vec<SessionId> {
        self.sessions.lock().values().map(|slot| slot.session.clone()).collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.sessions.lock().len()
    }

    /// Whether the session is in the table, not on its way out of it, and its sink still open.
    pub(crate) fn is_running(&self, session: &SessionId) -> bool {
        let sink = {
            let sessions = self.sessions.lock();
            sessions.get(&Sid::of(session)).filter(|slot| !slot.is_ending()).map(|slot| slot.sink.clone())
        };
        sink.is_some_and(|sink| !is_closed(&*sink))
    }

    /// Until a session in the table is claimed. False when its subscription ended before.
    pub(crate) async fn claimed(&self, session: &SessionId) -> bool {
        let waiting = {
            let mut sessions = self.sessions.lock();
            let Some(slot) = sessions.get_mut(&Sid::of(session)) else { return false };
            if slot.epoch > 0 {
                return true;
            }
            let (claimed, waiting) = oneshot::channel();
            slot.claimed.push(claimed);
            waiting
        };
        waiting.await.is_ok()
    }
}

impl Engine {
    pub(crate) fn bell_reconnects(&self) -> u64 {
        self.bell.get().map_or(0, Link::reconnects)
    }

    /// What fails, as far as the connections and the heartbeat know.
    pub(crate) fn health(&self) -> Health {
        let pulse = self.health.state();
        let silent = pulse.bell_silent.then(|| Error::Timeout {
            op: "doorbell",
            address: self.core.endpoint.address.clone(),
            after: beat::BEAT_LOST,
            ambiguous: false,
        });
        Health {
            commands: self.core.cmd.link().down().or(pulse.failing),
            doorbell: self.bell.get().and_then(Link::down).or(silent),
        }
    }

    pub(crate) fn unhealthy(&self) -> Option<Error> {
        let health = self.health();
        health.doorbell.or(health.commands)
    }
}

/// A subscription in the table. Dropping the handle changes nothing.
pub(crate) struct Subscription {
    engine: Arc<Engine>,
    pub(crate) sid: Sid,
    pub(crate) serial: u64,
    first_claim: Option<oneshot::Receiver<()>>,
}

impl Subscription {
    /// Until the session is ours. False when the subscription ended before.
    pub(crate) async fn claimed(&mut self) -> bool {
        match self.first_claim.take() {
            Some(first) => first.await.is_ok(),
            None => true,
        }
    }

    /// Ends this subscription, and no newer one.
    pub(crate) fn stop(&self, now: bool) -> Option<oneshot::Receiver<()>> {
        self.engine.stop(&self.sid, Some(self.serial), now)
    }
}
