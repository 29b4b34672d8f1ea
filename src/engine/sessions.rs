//! The sessions that this process serves. An idle one is an entry here and nothing else: no task, no timer, no
//! channel, no key.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, oneshot};

use crate::SessionId;
use crate::delivery::{AnySink, Claim, tell};
use crate::keys::Sid;

/// Why a subscription ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// Another process, or a newer subscription of this one, claimed the session.
    Superseded,
    /// The sink said that its client is gone.
    SinkClosed,
    /// It was stopped: by its token, by the registry, or by shutting down.
    Stopped,
}

/// A running task's ears. Only a session with something to do has one. Small, since one is made for most messages.
#[derive(Default)]
pub(super) struct Active {
    flags: AtomicU8,
    /// Wakes a runner that waits; what for is in the flags.
    changed: Notify,
}

/// Stop now: drop a delivery in progress.
const STOP: u8 = 1;
/// Stop after the delivery in progress.
const DRAIN: u8 = 2;
/// A doorbell rang meanwhile.
const AGAIN: u8 = 4;
/// The same, and the owner's token was not checked since.
const UNCHECKED: u8 = 32;
/// The sink has a message in its hands.
const DELIVERING: u8 = 8;
/// The subscription has ended and gives its session back.
const FINISHING: u8 = 16;

pub(super) struct Slot {
    /// Tells this subscription from an earlier one of the same session.
    pub(super) serial: u64,
    pub(super) session: SessionId,
    pub(super) sink: Arc<dyn AnySink>,
    /// Of our claim; 0 as long as there is none.
    pub(super) epoch: u64,
    pub(super) active: Option<Arc<Active>>,
    pub(super) recent: Option<Box<[u128]>>,
    pub(super) ended: Option<oneshot::Sender<Ended>>,
    /// Those who wait for the first claim.
    pub(super) claimed: Vec<oneshot::Sender<()>>,
    /// Those who wait for the end.
    pub(super) gone: Vec<oneshot::Sender<()>>,
}

/// The table, behind one lock that is held for a look-up at a time and never across an await.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<Sid, Slot>>);

impl Sessions {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<Sid, Slot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of one subscription, unless a newer one took its place.
    pub(super) fn with<T>(&self, sid: &Sid, serial: u64, f: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        self.lock().get_mut(sid).filter(|slot| slot.serial == serial).map(f)
    }

    /// Takes a subscription out and tells everybody who waits.
    pub(super) fn end(&self, sid: &Sid, serial: u64, why: Ended) {
        let slot = {
            let mut sessions = self.lock();
            match sessions.get(sid) {
                Some(slot) if slot.serial == serial => sessions.remove(sid),
                _ => None,
            }
        };
        if let Some(slot) = slot {
            slot.tell_end(why);
        }
    }

    /// Up to `most` sessions whose claims can be checked against the stored owners, from the `from`th on; and how many
    /// there are.
    pub(super) fn sample(&self, from: usize, most: usize) -> (Vec<(Sid, u64)>, usize) {
        let sessions = self.lock();
        let from = if from >= sessions.len() { 0 } else { from };
        let page = sessions.iter().skip(from).take(most).filter(|(_, slot)| slot.epoch > 0);
        (page.map(|(sid, slot)| (sid.clone(), slot.epoch)).collect(), sessions.len())
    }
}

impl Slot {
    /// It was told to stop, and has not stopped yet; or its sink is closed and it gives the session back.
    pub(super) fn is_ending(&self) -> bool {
        self.active.as_ref().is_some_and(|a| a.has(STOP | DRAIN | FINISHING))
    }

    pub(super) fn tell_end(mut self, why: Ended) {
        let claim = Claim { session: self.session, epoch: self.epoch };
        tell(&*self.sink, |sink| sink.ended_any(&claim, why));
        if let Some(ended) = self.ended.take() {
            let _ = ended.send(why);
        }
        for gone in self.gone {
            let _ = gone.send(());
        }
    }
}

impl Active {
    fn has(&self, any: u8) -> bool {
        self.flags.load(Ordering::Acquire) & any != 0
    }

    fn tell(&self, flag: u8) {
        self.flags.fetch_or(flag, Ordering::AcqRel);
        self.changed.notify_one();
    }

    pub(super) fn ring(&self) {
        self.tell(AGAIN | UNCHECKED);
    }

    pub(super) fn stop(&self) {
        self.tell(STOP);
    }

    pub(super) fn drain(&self) {
        self.tell(DRAIN);
    }

    /// Whether it rang since the last look.
    pub(super) fn rang(&self) -> bool {
        self.flags.fetch_and(!(AGAIN | UNCHECKED), Ordering::AcqRel) & AGAIN != 0
    }

    /// Until it must stop, or the token should be checked because it rang.
    pub(super) async fn told_to_stop_or_check(&self) {
        while !self.has(STOP) && self.flags.fetch_and(!UNCHECKED, Ordering::AcqRel) & UNCHECKED == 0 {
            self.changed.notified().await;
        }
    }

    pub(super) async fn told_to_stop(&self) {
        while !self.has(STOP) {
            self.changed.notified().await;
        }
    }

    pub(super) fn must_stop(&self) -> bool {
        self.has(STOP)
    }

    /// To stop now, or after the delivery in progress.
    pub(super) fn must_end(&self) -> bool {
        self.has(STOP | DRAIN)
    }

    /// Until one of the above may have changed.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    pub(super) fn set_delivering(&self, is: bool) {
        if is {
            self.flags.fetch_or(DELIVERING, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!DELIVERING, Ordering::Relaxed);
        }
    }

    pub(super) fn is_delivering(&self) -> bool {
        self.has(DELIVERING)
    }

    pub(super) fn finishing(&self) {
        self.flags.fetch_or(FINISHING, Ordering::Relaxed);
    }
}
