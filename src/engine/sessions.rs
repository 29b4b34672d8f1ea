//! The sessions that this process serves. An idle one is an entry here and nothing else: no task, no timer, no
//! channel, no key.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::hints::Hints;
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

/// A running task's ears. Only a session with something to do has one.
pub(super) struct Active {
    /// Stop now: drop a delivery in progress.
    pub(super) stop: CancellationToken,
    /// Stop after the delivery in progress.
    pub(super) drain: CancellationToken,
    /// A doorbell rang meanwhile.
    pub(super) again: AtomicBool,
    /// A hint came meanwhile.
    pub(super) hinted: AtomicBool,
    /// Wakes a runner that pauses.
    pub(super) bell: Notify,
    /// The sink has a message in its hands.
    pub(super) delivering: AtomicBool,
    /// The subscription has ended and gives its session back.
    pub(super) finishing: AtomicBool,
}

pub(super) struct Slot {
    /// Tells this subscription from an earlier one of the same session.
    pub(super) serial: u64,
    pub(super) session: SessionId,
    pub(super) sink: Arc<dyn AnySink>,
    /// Of our claim; 0 as long as there is none.
    pub(super) epoch: u64,
    pub(super) active: Option<Arc<Active>>,
    pub(super) recent: Option<Box<[u128]>>,
    pub(super) hints: Hints,
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
        self.active.as_ref().is_some_and(|a| {
            a.stop.is_cancelled() || a.drain.is_cancelled() || a.finishing.load(Ordering::Relaxed)
        })
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
    pub(super) fn ring(&self) {
        self.again.store(true, Ordering::Release);
        self.bell.notify_one();
    }

    /// Whether it rang since the last look.
    pub(super) fn rang(&self) -> bool {
        self.again.swap(false, Ordering::AcqRel)
    }
}
