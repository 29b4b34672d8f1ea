//! A session's sink whose client can be asked.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::{CancellationToken, DropGuard};

use super::asking;
use super::handle::question_of;
use super::hub::Hub;
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
    claims: Mutex<HashMap<Sid, Held>>,
}

/// A session that is served through this sink.
struct Held {
    claim: Claim,
    /// Questions that its client is being asked.
    asking: HashSet<Spot>,
    /// Ends with the subscription: nobody is asked any more.
    stop: CancellationToken,
    _guard: DropGuard,
}

/// The right to ask one question.
pub(super) struct Turn<A> {
    pub(super) shared: Arc<Shared<A>>,
    pub(super) spot: Spot,
    pub(super) stop: CancellationToken,
}

impl<S: NotificationSink, A: Asker> RelaySink<S, A> {
    pub(super) fn new(hub: Arc<Hub>, sink: S, asker: A) -> Self {
        Self { sink, shared: Arc::new(Shared { hub, asker: Arc::new(asker), claims: Mutex::default() }) }
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
        if let Some(stop) = self.shared.hold(claim) {
            tokio::spawn(asking::resume(self.shared.clone(), claim.session.clone(), stop));
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
    fn claims(&self) -> MutexGuard<'_, HashMap<Sid, Held>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers the token that ends with the subscription.
    fn hold(&self, claim: &Claim) -> Option<CancellationToken> {
        let mut claims = self.claims();
        let sid = Sid::of(&claim.session);
        match claims.get_mut(&sid) {
            // Claimed once more: whoever is being asked is still asked here.
            Some(held) if held.claim.epoch < claim.epoch => {
                held.claim = claim.clone();
                Some(held.stop.clone())
            }
            Some(_) => None,
            None => {
                let stop = self.hub.core.stop.child_token();
                let guard = stop.clone().drop_guard();
                let held =
                    Held { claim: claim.clone(), asking: HashSet::new(), stop: stop.clone(), _guard: guard };
                claims.insert(sid, held);
                Some(stop)
            }
        }
    }

    fn let_go(&self, claim: &Claim) {
        let mut claims = self.claims();
        let sid = Sid::of(&claim.session);
        if claims.get(&sid).is_some_and(|held| held.claim.epoch <= claim.epoch) {
            claims.remove(&sid);
        }
    }

    /// Once for a question at a time, and only while the session is served.
    pub(super) fn turn(self: &Arc<Self>, spot: &Spot) -> Option<Turn<A>> {
        let mut claims = self.claims();
        let held = claims.get_mut(&spot.sid)?;
        let stop = held.stop.clone();
        held.asking.insert(spot.clone()).then(|| Turn { shared: self.clone(), spot: spot.clone(), stop })
    }

    /// The owner token of the session, as long as it is served.
    pub(super) fn token(&self, sid: &Sid) -> Option<String> {
        let epoch = self.claims().get(sid)?.claim.epoch;
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
        if let Some(held) = self.shared.claims().get_mut(&self.spot.sid) {
            held.asking.remove(&self.spot);
        }
    }
}

impl<S, A> std::fmt::Debug for RelaySink<S, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelaySink").finish_non_exhaustive()
    }
}
