//! One message through a handler, outside of any connection: rmcp's dispatcher with a transport of one message.

use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::{RunningService, serve_directly_with_ct};
use rmcp::transport::OneshotTransport;
use rmcp::{RoleServer, ServerHandler};
use tokio::sync::mpsc;

use crate::CancellationToken;

/// A message that a handler works on. Dropped, the handler's request is cancelled.
pub(super) struct Once<H: ServerHandler> {
    _running: RunningService<RoleServer, H>,
    _cancel: tokio_util::sync::DropGuard,
    sent: mpsc::Receiver<ServerJsonRpcMessage>,
}

impl<H: ServerHandler> Once<H> {
    pub(super) fn start(handler: H, message: ClientJsonRpcMessage) -> Self {
        let cancel = CancellationToken::new();
        let (transport, sent) = OneshotTransport::<RoleServer>::new(message);
        let running = serve_directly_with_ct(handler, transport, None, cancel.clone());
        Self { _running: running, _cancel: cancel.drop_guard(), sent }
    }

    /// What the handler sends: notifications, then its answer. `None` at the end.
    ///
    /// # Cancel safety
    /// Nothing is lost by a dropped call.
    pub(super) async fn next(&mut self) -> Option<ServerJsonRpcMessage> {
        self.sent.recv().await
    }
}
