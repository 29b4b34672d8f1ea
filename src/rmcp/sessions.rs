//! The public face: sessions of an rmcp server in a courier.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::Extensions;
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::transport::StreamableHttpServerConfig;
use rmcp::transport::streamable_http_server::session::local::SessionConfig;
use rmcp::transport::streamable_http_server::session::{EventStore, SessionRestoreMarker, SessionStore};
use rmcp::{Peer, RoleServer};

use super::Manager;
use super::events::Events;
use super::hub::Hub;
use super::limits::Limits;
use super::manager::OfSession;
use super::store::States;
use crate::{Courier, Error, Result, SessionId};

/// The header in which a client names its session.
const SESSION_HEADER: &str = "mcp-session-id";

/// The MCP sessions of one server process: makes what rmcp's Streamable HTTP service wants, and what a handler needs.
///
/// Cheap to clone; clones share everything. See [the module](super) for a whole server.
#[derive(Clone)]
pub struct Sessions {
    hub: Arc<Hub>,
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions").field("hub", &self.hub.name).finish_non_exhaustive()
    }
}

/// Settings of [`Sessions`]. All replicas should use the same ones.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct SessionsBuilder {
    courier: Courier,
    limits: Limits,
}

impl SessionsBuilder {
    /// How long a session can be taken over after its last sign of life at any replica; default 24 h.
    pub fn session_ttl(mut self, ttl: Duration) -> Self {
        self.limits.session_ttl = ttl;
        self
    }

    /// How long a stream's events are kept after the newest one, when no client reads them; default 10 min.
    pub fn event_ttl(mut self, ttl: Duration) -> Self {
        self.limits.event_ttl = ttl;
        self
    }

    /// Most events that are kept of one stream, the oldest go first; default 1,000.
    pub fn max_events(mut self, most: u32) -> Self {
        self.limits.max_events = most.max(1);
        self
    }

    /// Most bytes that are kept of one stream; default 4 MiB. The newest event is kept whatever its size.
    pub fn max_event_bytes(mut self, most: usize) -> Self {
        self.limits.max_event_bytes = most;
        self
    }

    /// Also keeps the streams of requests without a session (2026-07-28), so that they can be resumed; default no. rmcp
    /// then goes on with a request whose client is gone, since it may come back: a handler has to end by itself, a
    /// `subscriptions/listen` too.
    pub fn persist_stateless(mut self, persist: bool) -> Self {
        self.limits.persist_stateless = persist;
        self
    }

    /// The sessions.
    pub fn build(self) -> Sessions {
        Sessions { hub: Hub::new(self.courier, self.limits) }
    }
}

impl Sessions {
    /// With default settings. One for a process is enough.
    pub fn new(courier: &Courier) -> Self {
        Self::builder(courier).build()
    }

    /// Settings other than the defaults.
    pub fn builder(courier: &Courier) -> SessionsBuilder {
        SessionsBuilder { courier: courier.clone(), limits: Limits::default() }
    }

    /// The courier.
    pub fn courier(&self) -> &Courier {
        &self.hub.courier
    }

    /// The session manager for rmcp's Streamable HTTP service. Call it once; the sessions of the newest one are those
    /// that answers from other replicas go to.
    pub fn manager(&self) -> Arc<Manager> {
        self.manager_with(SessionConfig::default())
    }

    /// The same, with rmcp's settings for sessions.
    pub fn manager_with(&self, config: SessionConfig) -> Arc<Manager> {
        Arc::new(Manager::new(self.hub.clone(), config))
    }

    /// Adds the session store to rmcp's settings for the service.
    #[must_use]
    pub fn configure(&self, mut config: StreamableHttpServerConfig) -> StreamableHttpServerConfig {
        config.session_store = Some(self.session_store());
        config
    }

    /// rmcp's session store, for use with another session manager.
    pub fn session_store(&self) -> Arc<dyn SessionStore> {
        Arc::new(States(self.hub.clone()))
    }

    /// rmcp's event store, for use with another session manager.
    pub fn event_store(&self) -> Arc<dyn EventStore> {
        Arc::new(Events(self.hub.clone()))
    }

    /// For one handler: make one in the service's factory, keep it in the handler, and attach it in `on_initialized`.
    pub fn link(&self) -> SessionLink {
        SessionLink(Arc::new(Link { hub: self.hub.clone(), attached: Mutex::default() }))
    }
}

/// A handler's tie to its session: while the handler lives, the session's messages reach its client.
///
/// The last clone that goes ends it: the session is given back, and what is pushed waits for the replica that the client
/// comes to next.
#[derive(Clone)]
pub struct SessionLink(Arc<Link>);

struct Link {
    hub: Arc<Hub>,
    attached: Mutex<Option<(SessionId, u64)>>,
}

impl std::fmt::Debug for SessionLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionLink").field("session", &self.session()).finish_non_exhaustive()
    }
}

impl SessionLink {
    /// Serves the session whose client said `initialized`: the one line in a handler's `on_initialized`. Answers the
    /// session's id.
    ///
    /// A session that came from another replica, and is still served there, stays there: what that one sends reaches the
    /// client all the same. When that replica gives it back or dies, this one takes it.
    ///
    /// Over Streamable HTTP the id is the client's `Mcp-Session-Id`. Returns when the session is claimed, or after
    /// [`Builder::deadline`](crate::Builder::deadline), and goes on trying in the background then.
    ///
    /// # Errors
    /// [`Error::Invalid`] where there is no session id: over stdio, see [`SessionLink::attach_as`].
    /// [`Error::Unreachable`] and others when the doorbell connection cannot be opened, [`Error::Closed`] after a shutdown.
    ///
    /// # Cancel safety
    /// A dropped call may leave the session served until the client is gone.
    pub async fn attach(&self, context: &NotificationContext<RoleServer>) -> Result<SessionId> {
        let session = session_of(&context.extensions)
            .ok_or_else(|| Error::invalid("session id", "this transport names none; use attach_as"))?;
        self.attach_as(&session, context.peer.clone()).await?;
        Ok(session)
    }

    /// Serves a session under an id of the caller's choice: for transports without one, as stdio.
    ///
    /// # Errors
    /// As [`SessionLink::attach`].
    ///
    /// # Cancel safety
    /// As [`SessionLink::attach`].
    pub async fn attach_as(&self, session: &SessionId, peer: Peer<RoleServer>) -> Result<()> {
        if self.session().as_ref() == Some(session) && self.0.hub.courier.subscribers().is_running(session) {
            return Ok(()); // A client may say `initialized` twice, and a restored session does.
        }
        let serial = self.0.hub.attach(session, peer).await?;
        let old = {
            let mut attached = self.0.attached.lock().unwrap_or_else(PoisonError::into_inner);
            attached.replace((session.clone(), serial))
        };
        if let Some((old, serial)) = old {
            self.0.hub.detach(old.as_str(), serial);
        }
        let core = &self.0.hub.courier.core;
        let claimed = self.0.hub.courier.engine.claimed(session);
        let _ = tokio::time::timeout(core.config.deadline, claimed).await;
        Ok(())
    }

    /// The session, once it is attached.
    pub fn session(&self) -> Option<SessionId> {
        let attached = self.0.attached.lock().unwrap_or_else(PoisonError::into_inner);
        attached.as_ref().map(|(session, _)| session.clone())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let attached = self.attached.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some((session, serial)) = attached.take() {
            self.hub.detach(session.as_str(), serial);
        }
    }
}

/// The session that a request belongs to: where a worker sends what it has to say to this client. `None` over stdio, and
/// for requests of 2026-07-28, which has no sessions.
pub fn session_id(context: &RequestContext<RoleServer>) -> Option<SessionId> {
    session_of(&context.extensions)
}

fn session_of(extensions: &Extensions) -> Option<SessionId> {
    let id = if let Some(OfSession(id)) = extensions.get::<OfSession>() {
        id.to_string()
    } else if let Some(restored) = extensions.get::<SessionRestoreMarker>() {
        restored.id.to_string()
    } else {
        let parts = extensions.get::<http::request::Parts>()?;
        parts.headers.get(SESSION_HEADER)?.to_str().ok()?.to_owned()
    };
    SessionId::new(id).ok()
}
