//! After a reconnect of the bell: look at what is pending. Doorbells that rang meanwhile are lost, their messages are
//! not. Only sessions with pending work are visited, whatever the number of sessions.

use std::sync::Weak;

use tokio_util::sync::CancellationToken;

use super::Engine;
use crate::connection::{Link, LinkState};
use crate::{Result, script};

/// Sessions in one look.
const PAGE: u64 = 1000;

pub(super) async fn run(engine: Weak<Engine>, bell: Link, stop: CancellationToken) {
    let mut states = bell.states();
    let mut seen = 1;
    loop {
        let up = match &*states.borrow_and_update() {
            LinkState::Up { generation, .. } => *generation,
            LinkState::Down(_) => seen,
            LinkState::Closed => return,
        };
        if up > seen {
            let Some(engine) = engine.upgrade() else { return };
            engine.signals.look_again();
            match resync(&engine).await {
                Ok(found) => {
                    seen = up;
                    tracing::info!(sessions = found, "looked at what is pending after the reconnect");
                }
                Err(e) => {
                    // The sweep rings for the same sessions: this is the fast way, not the only one.
                    tracing::warn!(error = %e, "no look at what is pending, the sweep will do it");
                    seen = up;
                }
            }
            continue;
        }
        tokio::select! {
            changed = states.changed() => if changed.is_err() { return },
            () = stop.cancelled() => return,
        }
    }
}

async fn resync(engine: &std::sync::Arc<Engine>) -> Result<u64> {
    let core = &engine.core;
    let mut found = 0;
    let mut offset = 0;
    loop {
        let page = script::overview(&core.cmd, &core.keys, offset, PAGE).await?.page;
        for sid in &page {
            found += u64::from(engine.look(sid.as_str(), true));
        }
        if (page.len() as u64) < PAGE {
            return Ok(found);
        }
        offset += PAGE;
    }
}
