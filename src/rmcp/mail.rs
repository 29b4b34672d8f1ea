//! Answers of clients that came in at another replica than the one that asked.

use std::sync::{Arc, Weak};
use std::time::Duration;

use rmcp::model::ClientJsonRpcMessage;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::hub::Hub;
use crate::script::{self, Mailed};

#[derive(Serialize, Deserialize)]
struct Letter {
    session: String,
    message: ClientJsonRpcMessage,
}

/// Sends a client's answer to the hub that asked. One that is gone needs no answer any more: whoever serves the session
/// now asks again.
pub(super) async fn send(
    hub: &Hub,
    to: &str,
    session: &str,
    message: ClientJsonRpcMessage,
) -> crate::Result<()> {
    let letter = Letter { session: session.to_owned(), message };
    let letter = serde_json::to_vec(&letter).map_err(|e| crate::Error::invalid("answer", e.to_string()))?;
    let node = to.split('.').next().unwrap_or_default();
    let core = &hub.courier.core;
    let send = || script::mail_send(&core.cmd, hub.keys_of(to), node, to, &letter);
    match hub.courier.repeat("mail_send", send, true).await? {
        Mailed::Sent => {}
        Mailed::Gone => tracing::debug!(to, session, "an answer for a replica that is gone"),
        Mailed::Full => tracing::warn!(to, session, "an answer was dropped: too many wait for that replica"),
    }
    Ok(())
}

/// Hands in what came, until the courier goes.
pub(super) async fn run(hub: Weak<Hub>, stop: CancellationToken) {
    loop {
        let Some(strong) = hub.upgrade() else { return };
        if let Err(e) = take(&strong).await {
            tracing::debug!(error = %e, "could not fetch letters");
        }
        // The hub must not be held while nothing comes: its end is the end of this task.
        let post = strong.post.clone();
        drop(strong);
        tokio::select! {
            () = post.notified() => {}
            () = tokio::time::sleep(Duration::from_secs(5)) => {}
            () = stop.cancelled() => return,
        }
    }
}

async fn take(hub: &Arc<Hub>) -> crate::Result<()> {
    let core = &hub.courier.core;
    let mut done = Vec::new();
    loop {
        let (left, letters) = script::mail_take(&core.cmd, hub.keys_of(&hub.name), &hub.name, &done).await?;
        for letter in &letters {
            let Ok(Letter { session, message }) = serde_json::from_slice(letter) else {
                tracing::warn!("a letter that is not understood");
                continue;
            };
            if let Some(local) = hub.local() {
                local.hand_in(&session, message).await;
            }
        }
        if left == 0 && letters.is_empty() {
            return Ok(());
        }
        done = letters;
    }
}
