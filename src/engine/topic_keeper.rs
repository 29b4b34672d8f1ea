//! Keeps the sessions of topics true: those that somebody owns stay, those that nobody owned for too long go. Any number
//! of processes may do it; each topic is looked at by one of them at a time.

use std::sync::Weak;

use tokio_util::sync::CancellationToken;

use super::Engine;
use crate::keys::Keys;
use crate::{Error, Result, script};

/// Topics in one look.
const TOPICS: u64 = 64;

pub(super) async fn run(engine: Weak<Engine>, stop: CancellationToken) {
    loop {
        // A look is due each quarter of the time, and taken by whoever comes first.
        let Some(every) = engine.upgrade().map(|e| e.core.config.topic_keep / 8) else { return };
        tokio::select! {
            () = tokio::time::sleep(every.mul_f64(0.75 + fastrand::f64() / 4.0)) => {}
            () = stop.cancelled() => return,
        }
        let Some(engine) = engine.upgrade() else { return };
        for keys in engine.core.partitions() {
            match look(&engine, keys).await {
                Ok(0) => {}
                Ok(dropped) => {
                    tracing::debug!(sessions = dropped, "dropped from topics: nobody owns them any more")
                }
                Err(Error::Closed { .. }) => return,
                Err(e) => {
                    tracing::debug!(error = %e, "no look at topics, trying again later");
                    break;
                }
            }
        }
    }
}

async fn look(engine: &Engine, keys: &Keys) -> Result<u64> {
    let core = &engine.core;
    let keep = core.config.topic_keep;
    let mut dropped = 0;
    loop {
        let due = script::topic_due(&core.cmd, keys, keep, TOPICS).await?;
        if due.is_empty() {
            return Ok(dropped);
        }
        let mut walks: Vec<_> = due.into_iter().map(|topic| (topic, "0".to_owned())).collect();
        while !walks.is_empty() {
            let looked = script::topic_tidy(&core.cmd, keys, keep, &walks).await?;
            for (walk, (cursor, gone)) in walks.iter_mut().zip(looked) {
                walk.1 = cursor;
                dropped += gone;
            }
            walks.retain(|(_, cursor)| cursor != "0");
        }
    }
}
