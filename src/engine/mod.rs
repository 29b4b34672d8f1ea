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
mod doorbell;
mod hints;
mod recent;
mod resync;
mod runner;
mod sessions;
mod shutdown;
mod signals;
mod sweeper;
mod topic_keeper;
mod trouble;
mod wake;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use tokio::sync::{OnceCell, oneshot};
use tokio_util::sync::CancellationToken;

use self::calls::Calls;
pub(crate) use self::hints::Hint;
use self::recent::Identities;
use self::runner::Start;
pub use self::sessions::Ended;
use self::sessions::{Sessions, Slot};
pub use self::shutdown::Drained;
use self::signals::Signals;
pub(crate) use self::signals::{Listening, Signal};
use crate::connection::Bell;
use crate::core::Core;
use crate::delivery::{AnySink, is_closed};
use crate::each::each;
use crate::keys::Sid;
use crate::metrics::add;
use crate::prepared::Prepared;
use crate::replicas::Stored;
use crate::script::{self, ClaimMode};
use crate::{Error, Health, Result, SessionId};

pub(crate) struct Engine {
    core: Arc<Core>,
    sessions: Sessions,
    identities: Identities,
    serials: AtomicU64,
    bell: OnceCell<Bell>,
    /// Heartbeats on their way, by partition.
    echoes: Box<[beat::Echo]>,
    health: beat::Pulse,
    /// What the server refuses to all sessions, told once.
    trouble: trouble::Trouble,
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
            echoes: core.partitions.iter().map(|_| beat::Echo::default()).collect(),
            health: beat::Pulse::default(),
            trouble: trouble::Trouble::default(),
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
                let core = &self.core;
                let keys = &core.partitions[0].keys;
                script::probe(&core.cmd, keys, script::Role::Owner).await?;
                let inboxes = core.partitions.iter().map(|p| (p.slot, p.keys.inbox(&core.node))).collect();
                // Until all of it is there, a failure or a dropped call closes the connection again.
                let serving = self.serving.child_token();
                let unless_started = serving.clone().drop_guard();
                let (endpoint, timeout) = (core.endpoint.clone(), core.config.connect_timeout);
                let bell = Bell::open(&core.cmd, endpoint, timeout, inboxes, hear, serving.clone())
                    .await
                    .map_err(|e| script::with_pattern(e, keys))?;
                let mut heard = bell.heard();
                let seen = heard.now(core.partitions.len()).unwrap_or_default();
                // The lease is there before the first claim, or a claim would look like that of a dead node.
                let first = core.partitions.iter().map(|p| async {
                    let beat =
                        script::heartbeat(&core.cmd, &p.keys, &core.config, &core.node, 0, &[]).await?;
                    p.clock.set(beat.now_ms);
                    Ok::<(), Error>(())
                });
                each(first).await.into_iter().collect::<Result<()>>()?;
                tokio::spawn(beat::run(Arc::downgrade(self), bell.clone(), serving.clone()));
                tokio::spawn(sweeper::run(Arc::downgrade(self), serving.clone()));
                tokio::spawn(topic_keeper::run(Arc::downgrade(self), serving.clone()));
                tokio::spawn(resync::run(Arc::downgrade(self), heard, seen, serving.clone()));
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
            let old = {
                let mut sessions = self.sessions.lock();
                if closed() {
                    return Err(Error::Closed { op: "subscribe" });
                }
                if unless_open && sessions.get(&sid).is_some_and(|slot| known_closed != Some(slot.serial)) {
                    continue; // Somebody else was faster: ask that one.
                }
                let limit = self.core.config.max_sessions;
                if sessions.len() >= limit && !sessions.contains_key(&sid) {
                    return Err(Error::TooManySessions { limit });
                }
                let slot = Slot {
                    serial,
                    session: session.clone(),
                    sink,
                    epoch: 0,
                    active: Some(Arc::default()),
                    recent: None,
                    hints: None,
                    ended,
                    claimed: vec![claimed],
                    gone: Vec::new(),
                };
                sessions.insert(sid.clone(), slot)
            };
            if let Some(old) = old {
                if let Some(active) = &old.active {
                    active.stop();
                }
                old.tell_end(Ended::Superseded);
            }
            self.claim(&sid, serial, ClaimMode::Take);
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
        self.look(Sid::of(session).as_str(), true);
    }

    /// A frame came in on the bell connection: `!<beat>`, `<sid>`, `<sid> <record>`, `?<sid>` from a sweep,
    /// `@<name> <payload>` for whoever listens to a name, or several doorbells, each behind `&<length> `.
    fn doorbell(self: &Arc<Self>, payload: &[u8]) {
        doorbell::each(payload, |one| self.ring(one));
    }

    fn ring(self: &Arc<Self>, payload: &[u8]) {
        if let Some(beat) = payload.strip_prefix(b"!") {
            let beat = std::str::from_utf8(beat).ok().and_then(|b| b.parse().ok());
            let echo =
                |beat: u64| &self.echoes[usize::try_from(beat % self.echoes.len() as u64).unwrap_or(0)];
            if beat.is_some_and(|beat| echo(beat).hear(beat)) {
                add(&self.core.counters.heartbeats, 1);
            }
            return;
        }
        if let Some(frame) = payload.strip_prefix(b"@") {
            return self.signals.ring(frame);
        }
        if let Some(sid) = payload.strip_prefix(b"?") {
            if let Ok(sid) = std::str::from_utf8(sid) {
                self.look(sid, true);
            }
            return;
        }
        let end = payload.iter().position(|&b| b == b' ').unwrap_or(payload.len());
        let Ok(sid) = std::str::from_utf8(&payload[..end]) else { return };
        let ours = match payload.get(end + 1..) {
            Some(record) => self.wake(sid, record),
            None => self.look(sid, false),
        };
        if ours {
            add(&self.core.counters.doorbells, 1);
        }
    }

    /// One try of a push, together with whatever else is pushed at the moment.
    pub(crate) async fn push(&self, prepared: Arc<Prepared>) -> Result<Stored> {
        let calls = if prepared.replicas().is_some() { &self.calls.replicated } else { &self.calls.pushes };
        calls.call(prepared).await
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

    /// Partitions to look at in this round: those with sessions of ours, and one in `turns` of the others.
    fn in_turn(&self, round: u64, turns: u64) -> Vec<bool> {
        let count = self.core.partitions.len();
        let sessions = self.sessions.lock();
        // With more sessions than partitions hardly any is without: not worth a walk through all of them.
        let mut due: Vec<bool> =
            (0..count).map(|p| sessions.len() > count || (p as u64 + round).is_multiple_of(turns)).collect();
        if sessions.len() <= count {
            sessions.keys().for_each(|sid| due[self.core.partitions.of(sid.as_str())] = true);
        }
        due
    }

    /// Ends a subscription: `now` drops a delivery in progress, else it may finish. Answers a future that ends when
    /// the session was given back, or nothing when the subscription is not there.
    pub(crate) fn stop(
        self: &Arc<Self>,
        sid: &Sid,
        serial: Option<u64>,
        now: bool,
    ) -> Option<oneshot::Receiver<()>> {
        let (gone, wait) = oneshot::channel();
        let idle = {
            let mut sessions = self.sessions.lock();
            let slot = sessions.get_mut(sid).filter(|slot| serial.is_none_or(|s| s == slot.serial))?;
            slot.gone.push(gone);
            let idle = slot.active.is_none();
            let active = slot.active.get_or_insert_default().clone();
            if now {
                active.stop();
            } else {
                active.drain();
            }
            idle.then_some(slot.serial)
        };
        if let Some(serial) = idle {
            self.go_on(sid, serial, Start::End);
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
        self.bell.get().map_or(0, Bell::reconnects)
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
            commands: self.core.cmd.down().or(pulse.failing),
            doorbell: self.bell.get().and_then(Bell::down).or(silent),
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
