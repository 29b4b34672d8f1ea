//! Stopping in good order: intake, deliveries, sessions, background roles.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Engine;
use super::sessions::{Ended, Slot};
use crate::keys::Sid;
use crate::script;

/// What a shutdown did with the sessions of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Sessions that were served when it began.
    pub sessions: usize,
    /// Deliveries that did not finish within the grace period: their messages come again, without a counted attempt.
    pub interrupted: usize,
    /// Sessions that could not be given back because the server was out of reach: the next claim, or the end of the
    /// lease, frees them.
    pub abandoned: usize,
}

impl Engine {
    /// Refuses new subscriptions, lets deliveries in progress finish until the deadline, then drops them; gives every
    /// session back; ends the background roles.
    pub(crate) async fn drain(self: &Arc<Self>, grace: Duration) -> Drained {
        {
            // Under the lock of the table: a subscription is either in it by now, or refused.
            let _sessions = self.sessions.lock();
            self.closing.store(true, Ordering::Release);
        }
        let mut report = Drained { sessions: self.count(), interrupted: 0, abandoned: 0 };
        if tokio::time::timeout(grace, self.stop_all(false)).await.is_err() {
            report.interrupted = self.delivering();
            // Given back, or left to the lease: the server may be out of reach.
            let _ = tokio::time::timeout(Duration::from_millis(800), self.stop_all(true)).await;
        }
        report.abandoned = self.count();
        let rest: Vec<Slot> = self.sessions.lock().drain().map(|(_, slot)| slot).collect();
        for slot in rest {
            slot.tell_end(Ended::Stopped);
        }
        if self.bell.initialized() && !self.serving.is_cancelled() {
            // The heartbeat goes on until here: a node that drains is alive.
            self.serving.cancel();
            if report.abandoned == 0 {
                let leaving = script::leave(&self.core.cmd, &self.core.keys, &self.core.node);
                let _ = tokio::time::timeout(Duration::from_millis(150), leaving).await;
            }
        }
        report
    }

    async fn stop_all(self: &Arc<Self>, now: bool) {
        let sids: Vec<Sid> = self.sessions.lock().keys().cloned().collect();
        let waits: Vec<_> = sids.iter().filter_map(|sid| self.stop(sid, None, now)).collect();
        for wait in waits {
            let _ = wait.await;
        }
    }

    /// Sessions whose sink has a message in its hands.
    fn delivering(&self) -> usize {
        let busy = |slot: &Slot| slot.active.as_ref().is_some_and(|a| a.is_delivering());
        self.sessions.lock().values().filter(|slot| busy(slot)).count()
    }
}
