//! After a reconnect of the bell: look at what is pending. Doorbells that rang meanwhile are lost, their messages are
//! not. Only sessions with pending work are visited, whatever the number of sessions.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Engine;
use crate::connection::Heard;
use crate::each::each;
use crate::keys::Keys;
use crate::{Result, script};

/// Sessions in one look.
const PAGE: u64 = 1000;
/// The looks of many processes spread over so long.
const JITTER: Duration = Duration::from_millis(50);

/// `seen`: the generations in which the inboxes were heard before any session was served.
pub(super) async fn run(engine: Weak<Engine>, mut heard: Heard, mut seen: Vec<u64>, stop: CancellationToken) {
    loop {
        let Some(now) = heard.now(seen.len()) else { return };
        let again: Vec<usize> = (0..seen.len()).filter(|&p| now[p] > seen[p]).collect();
        if !again.is_empty() {
            // Many processes come back at the same moment.
            tokio::time::sleep(JITTER.mul_f64(fastrand::f64())).await;
            let Some(engine) = engine.upgrade() else { return };
            engine.signals.look_again();
            let looks = again.iter().map(|&p| resync(&engine, &engine.core.partitions[p].keys));
            let (mut found, mut failed) = (0, None);
            for answer in each(looks).await {
                match answer {
                    Ok(sessions) => found += sessions,
                    Err(e) => failed = failed.or(Some(e)),
                }
            }
            again.iter().for_each(|&p| seen[p] = now[p]);
            match failed {
                None => {
                    tracing::info!(sessions = found, "looked at what is pending after the reconnect");
                }
                // The sweep rings for the same sessions: this is the fast way, not the only one.
                Some(e) => {
                    tracing::warn!(error = %e, "no look at what is pending, the sweep will do it");
                }
            }
            continue;
        }
        tokio::select! {
            more = heard.changed() => if !more { return },
            () = stop.cancelled() => return,
        }
    }
}

async fn resync(engine: &Arc<Engine>, keys: &Keys) -> Result<u64> {
    let mut found = 0;
    let mut offset = 0;
    loop {
        let page = script::overview(&engine.core.cmd, keys, offset, PAGE).await?.page;
        for sid in &page {
            found += u64::from(engine.look(sid.as_str(), true));
        }
        if (page.len() as u64) < PAGE {
            return Ok(found);
        }
        offset += PAGE;
    }
}
