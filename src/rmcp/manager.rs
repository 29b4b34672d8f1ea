//! rmcp's session manager for several replicas.

use std::sync::Arc;

use futures_util::{Stream, StreamExt};
use rmcp::RoleServer;
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, InitializedNotification, JsonRpcMessage, ServerJsonRpcMessage,
};
use rmcp::transport::Transport;
use rmcp::transport::common::server_side_http::{ServerSseMessage, SessionId as HttpSessionId};
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError, SessionConfig,
};
use rmcp::transport::streamable_http_server::session::{EventStore, RestoreOutcome, SessionManager};

use super::events::{self, Events};
use super::hub::Hub;
use super::{mail, tail, wire};
use crate::Error;

/// A session manager for rmcp's Streamable HTTP service whose sessions any replica can serve.
///
/// It is rmcp's own [`LocalSessionManager`] with what that one leaves to a single process taken to Redis:
///
/// - What is sent on the standalone (GET) stream is read from the shared log: it arrives whichever replica holds the
///   connection, and whichever sends.
/// - The ids of requests to the client name the replica that asks, and an answer that comes in elsewhere is handed to it.
/// - A client that resumes with `Last-Event-ID`, at any replica, gets what it missed and then what follows. Only ids of
///   the session's own standalone stream, or of a single request's stream, are taken.
///
/// Of two GET streams of one session the newest gets the messages; the older one stays open and gets nothing.
#[derive(Clone)]
pub struct Manager(Arc<Local>);

impl std::fmt::Debug for Manager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Manager").field("hub", &self.0.hub.name).finish_non_exhaustive()
    }
}

/// The sessions of this process.
pub(super) struct Local {
    hub: Arc<Hub>,
    sessions: LocalSessionManager,
}

/// Names the session of a message in its extensions.
#[derive(Clone, Debug)]
pub(super) struct OfSession(pub(super) HttpSessionId);

/// Why a session cannot do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// In this process.
    #[error(transparent)]
    Local(#[from] LocalSessionManagerError),
    /// In Redis.
    #[error(transparent)]
    Courier(#[from] Error),
}

type Result<T> = std::result::Result<T, ManagerError>;

impl Manager {
    pub(super) fn new(hub: Arc<Hub>, config: SessionConfig) -> Self {
        let mut sessions = LocalSessionManager::default().with_event_store(Arc::new(Events(hub.clone())));
        sessions.session_config = config;
        let local = Arc::new(Local { hub: hub.clone(), sessions });
        hub.set_local(&local);
        Self(local)
    }
}

impl Local {
    /// Ends a session here.
    pub(super) async fn close(&self, session: &str) {
        if let Err(error) = self.sessions.close_session(&session.into()).await {
            tracing::debug!(%error, session, "a session did not close");
        }
    }

    pub(super) async fn has(&self, session: &str) -> bool {
        self.sessions.has_session(&session.into()).await.unwrap_or(false)
    }

    /// What a client answered, from another replica.
    pub(super) async fn hand_in(&self, session: &str, message: ClientJsonRpcMessage) {
        if let Err(error) = self.sessions.accept_message(&session.into(), message).await {
            tracing::debug!(%error, session, "an answer for a session that is not here any more");
        }
    }

    /// Does for the handler what the client's `initialized` would have done, had it come in here.
    pub(super) async fn initialize(&self, session: &str) {
        let id: HttpSessionId = session.into();
        let initialized = ClientNotification::InitializedNotification(InitializedNotification::default());
        self.hand_in(session, self.mark(&id, ClientJsonRpcMessage::notification(initialized))).await;
    }

    /// Names the session in the message's extensions.
    fn mark(&self, id: &HttpSessionId, mut message: ClientJsonRpcMessage) -> ClientJsonRpcMessage {
        if let JsonRpcMessage::Notification(notification) = &message
            && matches!(notification.notification, ClientNotification::InitializedNotification(_))
        {
            self.hub.with(id, |here| here.initialized = true);
        }
        message.insert_extension(OfSession(id.clone()));
        message
    }

    /// The session's standalone stream, from where its last reader stood.
    async fn standalone(
        &self,
        id: &HttpSessionId,
        from: tail::From,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + use<>> {
        let end = self.hub.with(id, |here| here.end.child_token());
        Ok(tail::open(&self.hub, &Hub::standalone(id), from, end).await?)
    }
}

impl SessionManager for Manager {
    type Error = ManagerError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(HttpSessionId, Self::Transport)> {
        // Whatever is sent is stored first: find out now whether that works.
        self.0.hub.start().await?;
        let (id, transport) = self.0.sessions.create_session().await?;
        self.0.hub.with(&id, |_| ());
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &HttpSessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage> {
        let message = self.0.mark(id, message);
        Ok(self.0.sessions.initialize_session(id, message).await?)
    }

    async fn has_session(&self, id: &HttpSessionId) -> Result<bool> {
        Ok(self.0.sessions.has_session(id).await?)
    }

    async fn close_session(&self, id: &HttpSessionId) -> Result<()> {
        self.0.hub.forget(id);
        Ok(self.0.sessions.close_session(id).await?)
    }

    async fn create_stream(
        &self,
        id: &HttpSessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static> {
        let stream = self.0.sessions.create_stream(id, self.0.mark(id, message)).await?;
        let hub = self.0.hub.clone();
        Ok(stream.map(move |mut event| {
            if let Some(message) = &mut event.message {
                wire::name_requests(&hub.name, Arc::make_mut(message));
            }
            event
        }))
    }

    async fn accept_message(&self, id: &HttpSessionId, mut message: ClientJsonRpcMessage) -> Result<()> {
        let hub = &self.0.hub;
        match wire::take_name(&mut message) {
            Some(asked) if asked != hub.name => Ok(mail::send(hub, &asked, id, message).await?),
            _ => Ok(self.0.sessions.accept_message(id, self.0.mark(id, message)).await?),
        }
    }

    async fn create_standalone_stream(
        &self,
        id: &HttpSessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static> {
        self.0.standalone(id, tail::From::Given).await
    }

    async fn resume(
        &self,
        id: &HttpSessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static> {
        // rmcp gives this id to events that are in no log.
        if last_event_id == "0" {
            return Ok(self.0.standalone(id, tail::From::Given).await?.left_stream());
        }
        let (stream, number) = events::parse(&last_event_id)?;
        let from = tail::From::Event(number);
        if stream == Hub::standalone(id) {
            return Ok(self.0.standalone(id, from).await?.left_stream());
        }
        if Hub::home_of(&stream) != stream {
            return Err(Error::invalid("event id", "is another session's").into());
        }
        let end = self.0.hub.with(id, |here| here.end.child_token());
        Ok(tail::open(&self.0.hub, &stream, from, end).await?.right_stream())
    }

    async fn restore_session(&self, id: HttpSessionId) -> Result<RestoreOutcome<Self::Transport>> {
        self.0.hub.start().await?;
        let restored = self.0.sessions.restore_session(id.clone()).await?;
        self.0.hub.with(&id, |_| ());
        Ok(restored)
    }

    fn event_store(&self) -> Option<Arc<dyn EventStore>> {
        // rmcp goes on working for a request whose client is gone when its stream is kept: a listen request would then
        // never end. So the streams of single requests without a session are kept on demand only.
        let hub = &self.0.hub;
        hub.limits.persist_stateless.then(|| Arc::new(Events(hub.clone())) as Arc<dyn EventStore>)
    }
}

/// Not used by name; holds the transport to what a service can serve.
const _: fn() = || {
    fn serves<T: Transport<RoleServer>>() {}
    serves::<<Manager as SessionManager>::Transport>();
};
