//! rmcp's session store, in Redis: any replica can take a session over.

use std::sync::Arc;

use rmcp::transport::streamable_http_server::session::{SessionState, SessionStore, SessionStoreError};

use super::hub::Hub;
use super::limits::ms;
use crate::keys::Sid;
use crate::{SessionId, script};

/// The session states of [`Sessions`](super::Sessions).
pub(super) struct States(pub(super) Arc<Hub>);

#[async_trait::async_trait]
impl SessionStore for States {
    async fn load(&self, session_id: &str) -> Result<Option<SessionState>, SessionStoreError> {
        let hub = &self.0;
        let (core, sid) = (&hub.courier.core, Sid::of_text(session_id));
        let ttl_ms = ms(hub.limits.session_ttl);
        let load = || script::session_load(&core.cmd, hub.keys_of(session_id), &sid, ttl_ms);
        let Some(bytes) = hub.courier.repeat("session_load", load, true).await? else { return Ok(None) };
        let state = serde_json::from_slice(&bytes)?;
        hub.with(session_id, |here| {
            here.saved = true;
            here.restored = true;
        });
        Ok(Some(state))
    }

    async fn store(&self, session_id: &str, state: &SessionState) -> Result<(), SessionStoreError> {
        let hub = &self.0;
        let (core, sid) = (&hub.courier.core, Sid::of_text(session_id));
        let (bytes, ttl_ms) = (serde_json::to_vec(state)?, ms(hub.limits.session_ttl));
        let save = || script::session_save(&core.cmd, hub.keys_of(session_id), &sid, &bytes, ttl_ms);
        hub.courier.repeat("session_save", save, true).await?;
        hub.with(session_id, |here| here.saved = true);
        Ok(())
    }

    /// The client ended the session: every replica that works for it hears so.
    async fn delete(&self, session_id: &str) -> Result<(), SessionStoreError> {
        let hub = &self.0;
        let (core, sid) = (&hub.courier.core, Sid::of_text(session_id));
        let log = Hub::stream_key(&Hub::standalone(session_id));
        let drop = || script::session_drop(&core.cmd, hub.keys_of(session_id), &sid, &log);
        hub.courier.repeat("session_drop", drop, true).await?;
        // Whoever waits for this client's answers waits for nothing.
        if let Ok(session) = SessionId::new(session_id) {
            hub.courier.relay().end_session(&session).await?;
            hub.courier.topics().forget(&session).await?;
        }
        Ok(())
    }
}
