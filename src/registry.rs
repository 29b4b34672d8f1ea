//! The registry: which sessions this process serves.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Drained;
use crate::keys::Sid;
use crate::{Courier, Error, NotificationSink, Result, SessionId};

/// The sessions that a courier serves in the background, without a task for each.
///
/// A value: clones, and every [`Courier::subscribers`], show the same sessions. Counts return to zero when every
/// session was stopped, superseded or closed.
#[derive(Clone, Debug)]
pub struct SubscriberRegistry {
    courier: Courier,
}

impl SubscriberRegistry {
    pub(crate) fn new(courier: Courier) -> Self {
        Self { courier }
    }

    /// Serves a session, if it is not served already; answers whether it had to be started. One whose sink is closed is
    /// replaced. Returns when the session is claimed.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Timeout`] or [`Error::Refused`] when the session could not be claimed within
    /// [`Builder::deadline`](crate::Builder::deadline); it is not served then. [`Error::Superseded`] when another process
    /// claimed it at the same moment. [`Error::Closed`] after a shutdown.
    ///
    /// # Cancel safety
    /// A dropped call leaves the session either not served, or being served: see [`SubscriberRegistry::is_running`].
    pub async fn ensure_running(&self, session: &SessionId, sink: impl NotificationSink) -> Result<bool> {
        let engine = &self.courier.engine;
        let deadline = tokio::time::Instant::now() + self.courier.core.config.deadline;
        let sink: Arc<dyn crate::delivery::AnySink> = Arc::new(sink);
        let mut subscription = loop {
            if let Some(subscription) = engine.subscribe(session, sink.clone(), None, true).await? {
                break subscription;
            }
            if let Some(e) = engine.unhealthy() {
                return Err(e);
            }
            // Served already, as far as this process knows; the stored owner may know better.
            engine.check(session);
            match tokio::time::timeout_at(deadline, engine.claimed(session)).await {
                Ok(true) => return Ok(false),
                Ok(false) => {} // It ended meanwhile.
                Err(_) => return Err(self.not_claimed()),
            }
        };
        match tokio::time::timeout_at(deadline, subscription.claimed()).await {
            Ok(true) => Ok(true),
            Ok(false) => Err(Error::Superseded { session: session.clone() }),
            Err(_) => {
                let _ = subscription.stop(true);
                Err(self.not_claimed())
            }
        }
    }

    fn not_claimed(&self) -> Error {
        self.courier.engine.unhealthy().unwrap_or_else(|| Error::Timeout {
            op: "claim",
            address: self.courier.core.endpoint.address.clone(),
            after: self.courier.core.config.deadline,
            ambiguous: false,
        })
    }

    /// Stops serving a session and gives it back; answers whether it was served. A delivery in progress is dropped, its
    /// message stays queued without a counted attempt.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the session being given back in the background.
    pub async fn stop(&self, session: &SessionId) -> bool {
        match self.courier.engine.stop(&Sid::of(session), None, true) {
            Some(gone) => {
                let _ = gone.await;
                true
            }
            None => false,
        }
    }

    /// How many sessions are served.
    pub fn count(&self) -> usize {
        self.courier.engine.count()
    }

    /// Whether a session is served and its sink is open.
    pub fn is_running(&self, session: &SessionId) -> bool {
        self.courier.engine.is_running(session)
    }

    /// The sessions that are served, in no order.
    pub fn sessions(&self) -> Vec<SessionId> {
        self.courier.engine.sessions()
    }

    /// As [`Courier::shutdown`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves sessions being given back in the background.
    pub async fn shutdown(&self, grace: Duration) -> Drained {
        self.courier.shutdown(grace).await
    }
}
