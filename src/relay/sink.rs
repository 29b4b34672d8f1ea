//! A session's sink whose client can be asked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::{CancellationToken, DropGuard};

use super::asking;
use super::hub::Hub;
use super::store::question_of;
use super::{Asker, notice};
use crate::keys::{Sid, Spot};
use crate::script::{CloseArgs, Got};
use crate::{Claim, Delivery, Ended, NotificationSink, SessionId, SinkError};

/// Passes a session's messages on and asks its questions; see [`Relay::attach`](super::Relay::attach).
///
/// A question is announced in its place in the queue, and then asked in the background: later messages do not wait for
/// its answer. When this process becomes the session's owner, the questions that an earlier owner has announced are asked
/// once more.
pub struct RelaySink<S, A> {
    sink: S,
    shared: Arc<Shared<A>>,
}

/// What the asking tasks need.
pub(super) struct Shared<A> {
    pub(super) hub: Arc<Hub>,
    pub(super) asker: Arc<A>,
    /// One, unless the sink is shared by sessions: a list takes the least room for an idle session.
    held: Mutex<Vec<Held>>,
}

/// A session that is served through this sink.
struct Held {
    sid: Sid,
    epoch: u64,
    /// Only while its client is asked something.
    busy: Option<Box<Busy>>,
}

struct Busy {
    /// What is being asked, by which turn.
    turns: HashMap<Spot, u64>,
    next: u64,
    /// Ends with the subscription: nobody is asked any more.
    stop: CancellationToken,
    _guard: DropGuard,
}

/// The right to ask one question.
pub(super) struct Turn<A> {
    pub(super) shared: Arc<Shared<A>>,
    pub(super) spot: Spot,
    pub(super) stop: CancellationToken,
    number: u64,
}

impl<S: NotificationSink, A: Asker> RelaySink<S, A> {
    pub(super) fn new(hub: Arc<Hub>, sink: S, asker: A) -> Self {
        Self { sink, shared: Arc::new(Shared { hub, asker: Arc::new(asker), held: Mutex::default() }) }
    }

    /// A message that announces a question.
    async fn announce(&self, delivery: Delivery, spot: Spot) -> Result<(), SinkError> {
        let hub = &self.shared.hub;
        let got = hub.calls.gets.call((spot.clone(), true)).await;
        let known = match got {
            // Over before it was announced: the client need not hear of it.
            Ok(Got::Done) => return Ok(()),
            // A message of somebody else's, whose id only looks like a question's.
            Ok(Got::Unknown) => return self.sink.deliver(delivery).await,
            Ok(Got::Open(stored)) => question_of(&spot, stored).ok(),
            // The asking task looks again.
            Ok(Got::More) | Err(_) => None,
        };
        // Without a task there is nothing in it for the client.
        if known.as_ref().is_none_or(|question| question.task.is_some()) {
            let (session, last) =
                (delivery.session.clone(), delivery.attempt >= hub.core.config.max_attempts);
            if let Err(e) = self.sink.deliver(delivery).await {
                if matches!(e, SinkError::Rejected(_)) || last && matches!(e, SinkError::Retry(_)) {
                    self.shared.give_up(&session, &spot, &e.to_string()).await;
                }
                return Err(e);
            }
        }
        if let Some(turn) = self.shared.turn(&spot) {
            tokio::spawn(asking::run(turn, known));
        }
        Ok(())
    }
}

impl<S: NotificationSink, A: Asker> NotificationSink for RelaySink<S, A> {
    async fn deliver(&self, delivery: Delivery) -> Result<(), SinkError> {
        match notice::announced(delivery.id.as_str()) {
            Some(id) => {
                let spot = Spot::of(&delivery.session, &id);
                self.announce(delivery, spot).await
            }
            None => self.sink.deliver(delivery).await,
        }
    }

    fn is_closed(&self) -> bool {
        self.sink.is_closed()
    }

    fn claimed(&self, claim: &Claim) {
        self.sink.claimed(claim);
        if let Some(turn) = self.shared.hold(claim) {
            tokio::spawn(asking::resume(turn));
        }
    }

    fn ended(&self, claim: &Claim, why: Ended) {
        self.sink.ended(claim, why);
        self.shared.let_go(claim);
        // Outside of a runtime there is nobody to tell the workers; the grace of their questions does.
        if why == Ended::SinkClosed
            && !self.shared.hub.is_closing()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(asking::session_gone(self.shared.hub.clone(), claim.clone()));
        }
    }
}

impl<A> Shared<A> {
    fn held(&self) -> MutexGuard<'_, Vec<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session is ours; answers the turn to look for what an earlier owner has asked.
    fn hold(self: &Arc<Self>, claim: &Claim) -> Option<Turn<A>> {
        let sid = Sid::of(&claim.session);
        {
            let mut all = self.held();
            match all.iter_mut().find(|held| held.sid == sid) {
                // Claimed once more: who is being asked is still asked here.
                Some(held) => held.epoch = held.epoch.max(claim.epoch),
                None => {
                    all.reserve_exact(1);
                    all.push(Held { sid: sid.clone(), epoch: claim.epoch, busy: None });
                }
            }
        }
        // No question has an empty id.
        self.turn(&Spot { sid, rid: "".into() })
    }

    fn let_go(&self, claim: &Claim) {
        let sid = Sid::of(&claim.session);
        self.held().retain(|held| held.sid != sid || held.epoch > claim.epoch);
    }

    /// Once for a question at a time, and only while the session is served.
    pub(super) fn turn(self: &Arc<Self>, spot: &Spot) -> Option<Turn<A>> {
        let mut all = self.held();
        let held = all.iter_mut().find(|held| held.sid == spot.sid)?;
        let busy = held.busy.get_or_insert_with(|| {
            let stop = self.hub.core.stop.child_token();
            Box::new(Busy { turns: HashMap::new(), next: 0, _guard: stop.clone().drop_guard(), stop })
        });
        if busy.turns.contains_key(spot) {
            return None;
        }
        busy.next += 1;
        busy.turns.insert(spot.clone(), busy.next);
        Some(Turn { shared: self.clone(), spot: spot.clone(), stop: busy.stop.clone(), number: busy.next })
    }

    /// The owner token of the session, as long as it is served.
    pub(super) fn token(&self, sid: &Sid) -> Option<String> {
        let epoch = self.held().iter().find(|held| held.sid == *sid)?.epoch;
        Some(format!("{}:{epoch}", self.hub.core.node))
    }

    /// The client will never hear of the question.
    async fn give_up(&self, session: &SessionId, spot: &Spot, why: &str) {
        let Some(token) = self.token(&spot.sid) else { return };
        let how = CloseArgs { outcome: "cancelled", why, token: &token };
        if let Err(e) = self.hub.close(&how, std::slice::from_ref(spot)).await {
            tracing::warn!(%session, error = %e, "a question that cannot be announced stays open");
        }
    }
}

impl<A> Drop for Turn<A> {
    fn drop(&mut self) {
        // Of an earlier subscription: what is held now is none of its business.
        if self.stop.is_cancelled() {
            return;
        }
        let mut all = self.shared.held();
        let Some(held) = all.iter_mut().find(|held| held.sid == self.spot.sid) else { return };
        let Some(busy) = &mut held.busy else { return };
        if busy.turns.get(&self.spot) == Some(&self.number) {
            busy.turns.remove(&self.spot);
        }
        if busy.turns.is_empty() {
            held.busy = None;
        }
    }
}

impl<S, A> std::fmt::Debug for RelaySink<S, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelaySink").finish_non_exhaustive()
    }
}
