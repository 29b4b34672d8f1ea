//! The sink of a session that may come back.

use std::sync::Weak;

use rmcp::{Peer, RoleServer};

use super::PeerSink;
use super::hub::Hub;
use crate::{Delivery, NotificationSink, SinkError};

/// A peer's sink that is never closed for a session which another replica can take over: the end of the session here is
/// no end of the session. A closed sink would tell those who wait for the client's answers that it is gone.
pub(super) struct SessionSink {
    sink: PeerSink,
    /// Where to be stopped, for a session that may come back.
    resumable: Option<(Weak<Hub>, String)>,
}

impl SessionSink {
    pub(super) fn new(peer: Peer<RoleServer>, resumable: Option<(Weak<Hub>, String)>) -> Self {
        Self { sink: PeerSink::new(peer), resumable }
    }
}

impl NotificationSink for SessionSink {
    async fn deliver(&self, delivery: Delivery) -> Result<(), SinkError> {
        match (self.sink.send(delivery.body()).await, &self.resumable) {
            (Err(SinkError::Closed), Some((hub, session))) => {
                if let Some(hub) = hub.upgrade() {
                    hub.detach_closed(session);
                }
                // The subscription is being stopped, and the message stays.
                std::future::pending().await
            }
            (sent, _) => sent,
        }
    }

    fn is_closed(&self) -> bool {
        self.resumable.is_none() && self.sink.is_closed()
    }
}
