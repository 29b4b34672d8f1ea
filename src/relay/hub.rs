//! What all questions of a process share: one listener in its inbox, one batch for each verb, one slow re-look.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, OnceCell};
use tokio_util::sync::CancellationToken;

use super::calls::Calls;
use crate::core::Core;
use crate::engine::{Engine, Listening, Signal};
use crate::keys::Spot;
use crate::{Error, Result};

/// The name in the inbox; the scripts have the same.
const SIGNAL: &str = "question";
/// Every waiting question is looked at again so often, in case its signal was lost.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

pub(crate) struct Hub {
    pub(super) core: Arc<Core>,
    /// Not the owner of it: the engine's sinks hold a hub.
    engine: Weak<Engine>,
    pub(super) calls: Calls,
    listening: OnceCell<Listening>,
    ears: Mutex<Ears>,
}

#[derive(Default)]
struct Ears {
    next: u64,
    by_spot: HashMap<Spot, Vec<Ear>>,
}

struct Ear {
    number: u64,
    /// Is rung by the slow re-look as well.
    waits: bool,
    bell: Arc<Notify>,
}

/// Hears of one question until it is dropped.
pub(super) struct Hearing {
    hub: Arc<Hub>,
    spot: Spot,
    number: u64,
    bell: Arc<Notify>,
}

impl Hub {
    pub(crate) fn new(core: Arc<Core>, engine: &Arc<Engine>) -> Arc<Self> {
        Arc::new(Self {
            calls: Calls::new(&core),
            engine: Arc::downgrade(engine),
            listening: OnceCell::new(),
            ears: Mutex::default(),
            core,
        })
    }

    pub(super) fn engine(&self, op: &'static str) -> Result<Arc<Engine>> {
        self.engine.upgrade().ok_or(Error::Closed { op })
    }

    /// Whether the process is on its way down: what its clients do now says nothing about them.
    pub(super) fn is_closing(&self) -> bool {
        self.engine.upgrade().is_none_or(|engine| engine.is_closing())
    }

    /// Cancelled when nobody in this process can wait any more.
    pub(super) fn stopped(&self) -> CancellationToken {
        match self.engine.upgrade() {
            Some(engine) => engine.stopped(),
            None => self.core.stop.clone(),
        }
    }

    /// Listens from the first question on: before it is stored, so that no answer rings unheard.
    pub(super) async fn listen(self: &Arc<Self>) -> Result<()> {
        self.listening
            .get_or_try_init(|| async {
                let hub = Arc::downgrade(self);
                let hear = move |signal: Signal<'_>| {
                    if let Some(hub) = hub.upgrade() {
                        hub.hear_signal(signal);
                    }
                };
                let listening = self.engine("listen")?.listen(SIGNAL, hear).await?;
                tokio::spawn(look_again(Arc::downgrade(self), self.core.stop.clone()));
                Ok(listening)
            })
            .await?;
        Ok(())
    }

    pub(super) fn hear(self: &Arc<Self>, spot: &Spot, waits: bool) -> Hearing {
        let bell = Arc::new(Notify::new());
        let mut ears = self.ears();
        ears.next += 1;
        let number = ears.next;
        ears.by_spot.entry(spot.clone()).or_default().push(Ear { number, waits, bell: bell.clone() });
        Hearing { hub: self.clone(), spot: spot.clone(), number, bell }
    }

    /// How many calls wait for answers here.
    pub(super) fn waiting(&self) -> usize {
        self.ears().by_spot.values().flatten().filter(|ear| ear.waits).count()
    }

    fn hear_signal(&self, signal: Signal<'_>) {
        let ears = self.ears();
        match signal {
            Signal::LookAgain => ears.by_spot.values().flatten().for_each(|ear| ear.bell.notify_one()),
            Signal::Rang(payload) => {
                let mut words = std::str::from_utf8(payload).unwrap_or_default().split(' ');
                let (Some(sid), Some(rid)) = (words.next(), words.next()) else { return };
                let heard = ears.by_spot.get(&Spot::encoded(sid, rid));
                heard.into_iter().flatten().for_each(|ear| ear.bell.notify_one());
            }
        }
    }

    fn ring_waiting(&self) {
        self.ears().by_spot.values().flatten().filter(|ear| ear.waits).for_each(|ear| ear.bell.notify_one());
    }

    fn ears(&self) -> MutexGuard<'_, Ears> {
        self.ears.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Signals are hints. One timer for all questions; the looks that it causes meet in batches.
async fn look_again(hub: Weak<Hub>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK_AGAIN.mul_f64(0.75 + fastrand::f64() / 4.0)) => {}
            () = stop.cancelled() => return,
        }
        let Some(hub) = hub.upgrade() else { return };
        hub.ring_waiting();
    }
}

impl Hearing {
    pub(super) async fn rang(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        let mut ears = self.hub.ears();
        if let Some(all) = ears.by_spot.get_mut(&self.spot) {
            all.retain(|ear| ear.number != self.number);
            if all.is_empty() {
                ears.by_spot.remove(&self.spot);
            }
        }
    }
}
