//! From our queues to FastMCP 3 subscribers.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{FastMcp, KNOWN, Sessions, THEIR_TTL, convert};
use crate::{Delivery, NotificationSink, Result, SessionId, SinkError, script};

/// How often sessions with a FastMCP subscriber are looked for.
const DISCOVER_EVERY: Duration = Duration::from_secs(1);

/// Hands a session's messages to its FastMCP 3 subscriber.
///
/// A message is acked when it is in FastMCP's list; one that is repeated is put there once. What FastMCP 3 would drop
/// (any method but `notifications/tasks/status`, a status without `taskId` or `status`, a body that is no notification) is
/// rejected and becomes a dead letter on our side.
#[derive(Clone, Debug)]
pub struct FastMcpSink {
    bridge: FastMcp,
}

impl NotificationSink for FastMcpSink {
    async fn deliver(&self, delivery: Delivery) -> Result<(), SinkError> {
        let notification = delivery.notification().map_err(SinkError::rejected)?;
        let text =
            convert::to_fastmcp(&notification, delivery.enqueued_at_ms).map_err(SinkError::rejected)?;
        let keys = &self.bridge.keys;
        let session = delivery.session.as_str();
        let (list, known) = (keys.queue(session), keys.put(session, delivery.id.as_str()));
        let put = script::fastmcp_put(&self.bridge.theirs, (&list, &known), &text, THEIR_TTL, KNOWN).await;
        put.map(|_new| ()).map_err(SinkError::retry)
    }
}

impl FastMcp {
    /// A sink for sessions whose client hangs on a FastMCP 3 server: for
    /// [`ensure_running`](crate::SubscriberRegistry::ensure_running).
    pub fn sink(&self) -> FastMcpSink {
        FastMcpSink { bridge: self.clone() }
    }

    /// Serves sessions of ours by handing their messages to FastMCP 3 subscribers, until `cancel` is cancelled; then gives
    /// them back. [`Sessions::All`] are those that have such a subscriber: they come and go with it.
    ///
    /// Failures of either server are logged and tried again.
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed) after a shutdown of the courier.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the sessions being served: stop them in the registry.
    pub async fn run_to_fastmcp(&self, sessions: Sessions, cancel: &CancellationToken) -> Result<()> {
        let registry = self.courier.subscribers();
        let mut wanted: BTreeSet<SessionId> = BTreeSet::new();
        let mut ours: BTreeSet<SessionId> = BTreeSet::new();
        loop {
            match &sessions {
                Sessions::These(these) => wanted.extend(these.iter().cloned()),
                Sessions::All => match self.find(&self.keys.subscribers()).await {
                    Ok(found) => wanted = found,
                    Err(e) => tracing::warn!(error = %e, "FastMCP's subscribers are not found, trying on"),
                },
            }
            for gone in ours.difference(&wanted) {
                registry.stop(gone).await;
            }
            ours.retain(|session| wanted.contains(session));
            for session in &wanted {
                // One that another process took is not taken back: the newest claim wins.
                if ours.contains(session) {
                    continue;
                }
                match registry.ensure_running(session, self.sink()).await {
                    Ok(_) => {
                        ours.insert(session.clone());
                    }
                    Err(e @ crate::Error::Closed { .. }) => return Err(e),
                    Err(e) => tracing::warn!(%session, error = %e, "not served for FastMCP, trying on"),
                }
            }
            tokio::select! {
                () = tokio::time::sleep(DISCOVER_EVERY) => {}
                () = cancel.cancelled() => break,
            }
        }
        for session in &ours {
            registry.stop(session).await;
        }
        Ok(())
    }
}
