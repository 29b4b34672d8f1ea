//! A leg that this worker holds: the lease, what is known of the task meanwhile, and who waits for what.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Scope, TaskId};
use crate::keys::Address;
use crate::script::{Lost, Renewed};

/// What the parts that work on one leg share: its runner, the renewal, and the handler's [`TaskContext`].
///
/// [`TaskContext`]: super::TaskContext
#[derive(Debug)]
pub(super) struct HeldLeg {
    pub(super) address: Address,
    pub(super) id: TaskId,
    pub(super) scope: Scope,
    /// Who gets `notifications/tasks`; empty: nobody.
    pub(super) session: String,
    /// The token of the lease.
    pub(super) lease: String,
    /// The client wants the task to stop.
    pub(super) cancel: CancellationToken,
    /// The leg is not ours any more.
    pub(super) lost: CancellationToken,
    /// Something may have become of a request.
    pub(super) news: Notify,
    /// The budget was stopped or goes on.
    pub(super) paused: Notify,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    why_lost: Option<Lost>,
    /// When the task expires, by our clock, as of the last renewal.
    expires: Instant,
    /// Keys whose answers are waited for.
    waiting: Vec<String>,
    /// The place that the leg takes among those that run. Free for another one while it only waits.
    slot: Option<OwnedSemaphorePermit>,
    /// The last status message that is not stored yet, and whether somebody stores.
    message: Option<String>,
    storing: bool,
    /// Time worked so far, and since when it is working again.
    worked: Duration,
    working_since: Option<Instant>,
}

impl HeldLeg {
    pub(super) fn new(
        address: Address,
        id: TaskId,
        scope: Scope,
        session: String,
        lease: String,
        life: Duration,
        slot: OwnedSemaphorePermit,
    ) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            address,
            id,
            scope,
            session,
            lease,
            cancel: CancellationToken::new(),
            lost: CancellationToken::new(),
            news: Notify::new(),
            paused: Notify::new(),
            state: Mutex::new(State {
                why_lost: None,
                expires: now + life,
                waiting: Vec::new(),
                slot: Some(slot),
                message: None,
                storing: false,
                worked: Duration::ZERO,
                working_since: Some(now),
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what a renewal says.
    pub(super) fn learn(&self, renewed: Result<Renewed, Lost>) {
        match renewed {
            Ok(renewed) => {
                let answered = {
                    let mut state = self.lock();
                    state.expires = Instant::now() + renewed.life;
                    state.waiting.iter().any(|key| !renewed.open.split(' ').any(|open| open == key))
                };
                if renewed.cancel {
                    self.cancel.cancel();
                }
                if answered {
                    self.news.notify_waiters();
                }
            }
            Err(why) => self.lose(why),
        }
    }

    pub(super) fn lose(&self, why: Lost) {
        self.lock().why_lost.get_or_insert(why);
        self.lost.cancel();
        self.news.notify_waiters();
    }

    pub(super) fn why_lost(&self) -> Option<Lost> {
        self.lock().why_lost
    }

    pub(super) fn expires(&self) -> Instant {
        self.lock().expires
    }

    /// The leg waits for this answer. The first wait frees the slot and stops the budget.
    pub(super) fn begin_wait(&self, key: &str) {
        let slot = {
            let mut state = self.lock();
            state.waiting.push(key.to_owned());
            if let Some(since) = state.working_since.take() {
                state.worked += since.elapsed();
            }
            state.slot.take()
        };
        drop(slot);
        self.paused.notify_waiters();
    }

    /// True when that was the last wait: the leg needs a slot again.
    pub(super) fn end_wait(&self, key: &str) -> bool {
        let mut state = self.lock();
        if let Some(at) = state.waiting.iter().position(|k| k == key) {
            state.waiting.swap_remove(at);
        }
        state.waiting.is_empty() && state.slot.is_none()
    }

    /// It works again.
    pub(super) fn resume(&self, slot: Option<OwnedSemaphorePermit>) {
        {
            let mut state = self.lock();
            if slot.is_some() {
                state.slot = slot;
            }
            state.working_since.get_or_insert_with(Instant::now);
        }
        self.paused.notify_waiters();
    }

    /// When the budget will be used up; `None` while it stands still.
    pub(super) fn budget_ends(&self, budget: Duration) -> Option<Instant> {
        let state = self.lock();
        state.working_since.map(|since| since + budget.saturating_sub(state.worked))
    }

    /// Frees the slot, at the end.
    pub(super) fn leave_slot(&self) {
        drop(self.lock().slot.take());
    }

    /// Keeps a status message to be stored; true when nobody is storing yet.
    pub(super) fn put_message(&self, message: String) -> bool {
        let mut state = self.lock();
        state.message = Some(message);
        !std::mem::replace(&mut state.storing, true)
    }

    /// The message to store; with none left, nobody stores any more.
    pub(super) fn next_message(&self) -> Option<String> {
        let mut state = self.lock();
        let message = state.message.take();
        if message.is_none() {
            state.storing = false;
        }
        message
    }

    /// What is not stored yet, to go along with the leg's end.
    pub(super) fn last_message(&self) -> Option<String> {
        self.lock().message.take()
    }
}

/// The legs of one worker.
#[derive(Debug, Default)]
pub(super) struct HeldLegs(Mutex<HashMap<Address, Arc<HeldLeg>>>);

impl HeldLegs {
    fn lock(&self) -> MutexGuard<'_, HashMap<Address, Arc<HeldLeg>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, address: &Address) -> Option<Arc<HeldLeg>> {
        self.lock().get(address).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<HeldLeg>> {
        self.lock().values().cloned().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn insert(&self, leg: &Arc<HeldLeg>) {
        self.lock().insert(leg.address.clone(), leg.clone());
    }

    /// Takes this lease of the leg out, not a later one.
    pub(super) fn remove(&self, leg: &Arc<HeldLeg>) {
        let mut legs = self.lock();
        if legs.get(&leg.address).is_some_and(|held| Arc::ptr_eq(held, leg)) {
            legs.remove(&leg.address);
        }
    }
}
