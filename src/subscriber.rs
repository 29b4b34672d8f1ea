//! `subscriber_loop`: serves one session until it is told to stop.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::engine::{Ended, Subscription};
use crate::{Courier, NotificationSink, Result, SessionId};

impl Courier {
    /// Claims a session and delivers its messages to `sink`, one after the other, until `cancel` is cancelled, another
    /// process claims the session, or the sink is closed.
    ///
    /// The newest claim wins: a client that comes back on another replica is served there, and this loop ends with
    /// [`Ended::Superseded`]. A refusal of the server (`MISCONF`, `LOADING`, `OOM`, `READONLY`, `BUSY`, a timeout, a lost
    /// connection) never ends the loop: it backs off, logs a warning once, and goes on. On the way out the session is
    /// given back; what was not delivered stays queued, without a counted attempt.
    ///
    /// Delivery: at least once, in order. Redis: `lua/claim.lua`, `lua/pop.lua`, `lua/ack.lua`, `lua/requeue.lua`,
    /// `lua/release.lua`, over the two connections that all sessions share.
    ///
    /// # Errors
    /// Only at the start: [`Error::Unreachable`](crate::Error::Unreachable) and others when the doorbell connection cannot
    /// be opened, [`Error::Closed`](crate::Error::Closed) after a shutdown.
    ///
    /// # Cancel safety
    /// Dropping the future at any point stops the subscription and gives the session back in the background. A message
    /// that was being delivered stays queued.
    pub async fn subscriber_loop(
        &self,
        session: &SessionId,
        sink: impl NotificationSink,
        cancel: CancellationToken,
    ) -> Result<Ended> {
        if cancel.is_cancelled() {
            return Ok(Ended::Stopped);
        }
        let (ended, mut end) = oneshot::channel();
        let subscribing = self.engine.subscribe(session, Arc::new(sink), Some(ended), false);
        let subscription = tokio::select! {
            subscription = subscribing => subscription?.map(Stopper),
            () = cancel.cancelled() => return Ok(Ended::Stopped),
        };
        tokio::select! {
            why = &mut end => return Ok(why.unwrap_or(Ended::Stopped)),
            () = cancel.cancelled() => {}
        }
        drop(subscription);
        Ok(end.await.unwrap_or(Ended::Stopped))
    }
}

/// Stops the subscription when the loop's future goes, in whatever way.
struct Stopper(Subscription);

impl Drop for Stopper {
    fn drop(&mut self) {
        // Outside of a runtime there is nobody left to give the session back; the next claim frees it.
        if tokio::runtime::Handle::try_current().is_ok() {
            let _ = self.0.stop(true);
        }
    }
}
