//! rmcp's peer as a sink.

use rmcp::model::{GetMeta, RequestId};
use rmcp::service::SubscriptionContext;
use rmcp::{Peer, RoleServer, ServiceError};
use tokio_util::sync::CancellationToken;

use super::wire;
use crate::{Delivery, NotificationSink, SinkError};

/// Sends a session's messages to the client of an rmcp [`Peer`].
///
/// A message must be a JSON-RPC notification (`method`, and `params` that are an object); anything else is a dead letter.
/// Methods and members that rmcp does not know pass through unchanged. The sink is closed when the peer's service has
/// ended: the client is gone, its session was deleted, or the server stops.
///
/// `Ok` means that the transport took the message. Over stdio that is the pipe; over Streamable HTTP the session's
/// stream, and with an event store ([`Sessions`](super::Sessions)) the stored event, so that a client which loses its
/// connection then can still read it.
#[derive(Clone, Debug)]
pub struct PeerSink {
    peer: Peer<RoleServer>,
    /// Of a `subscriptions/listen` request: its id marks every message, its end closes the sink.
    subscription: Option<(RequestId, CancellationToken)>,
}

impl PeerSink {
    /// For a client that initialized a session (2025-11-25 and older), over any transport.
    pub fn new(peer: Peer<RoleServer>) -> Self {
        Self { peer, subscription: None }
    }

    /// For the stream of a `subscriptions/listen` request (2026-07-28). Every message carries the request's id in
    /// `_meta`, as the protocol wants it.
    ///
    /// The sink sends what it is given. That it is only what the client asked for is the business of who feeds it; see
    /// [`Sessions::listen`](super::Sessions::listen).
    pub fn for_subscription(context: &SubscriptionContext) -> Self {
        let request = context.request_context();
        Self { peer: request.peer.clone(), subscription: Some((request.id.clone(), request.ct.clone())) }
    }

    fn ended(&self) -> bool {
        self.peer.is_transport_closed() || self.subscription.as_ref().is_some_and(|(_, ct)| ct.is_cancelled())
    }

    pub(super) async fn send(&self, body: &[u8]) -> Result<(), SinkError> {
        let mut notification = wire::notification(body).map_err(SinkError::rejected)?;
        if let Some((id, _)) = &self.subscription {
            notification.get_meta_mut().set_subscription_id(id.clone());
        }
        if self.ended() {
            return Err(SinkError::Closed);
        }
        match self.peer.send_notification(notification).await {
            Ok(()) => Ok(()),
            Err(ServiceError::TransportClosed) => Err(SinkError::Closed),
            // A store that is out of reach fails the message; a transport that is gone fails all of them.
            Err(_) if self.ended() => Err(SinkError::Closed),
            Err(e) => Err(SinkError::retry(e)),
        }
    }
}

impl NotificationSink for PeerSink {
    async fn deliver(&self, delivery: Delivery) -> Result<(), SinkError> {
        self.send(delivery.body()).await
    }

    fn is_closed(&self) -> bool {
        self.ended()
    }
}
