//! The sweep: rings again for what stayed unanswered, and drops what is stale. Any number of processes may sweep.

use std::sync::Weak;

use tokio_util::sync::CancellationToken;

use super::Engine;
use crate::metrics::add;
use crate::{Error, Result, script};

pub(super) async fn run(engine: Weak<Engine>, stop: CancellationToken) {
    let mut cursor = "0".to_owned();
    let mut told = String::new();
    loop {
        let Some(every) = engine.upgrade().map(|e| e.core.config.look_again) else { return };
        tokio::select! {
            () = tokio::time::sleep(every.mul_f64(0.75 + fastrand::f64() / 4.0)) => {}
            () = stop.cancelled() => return,
        }
        let Some(engine) = engine.upgrade() else { return };
        match sweep(&engine, &cursor).await {
            Ok(next) => {
                cursor = next;
                told.clear();
            }
            Err(Error::Closed { .. }) => return,
            Err(e) => {
                let why = e.to_string();
                if why != told {
                    tracing::warn!(error = %e, "no sweep, trying on");
                    told = why;
                }
            }
        }
    }
}

async fn sweep(engine: &Engine, cursor: &str) -> Result<String> {
    let core = &engine.core;
    let found = script::sweep(&core.cmd, &core.keys, &core.config, cursor).await?;
    if found.rung > 0 {
        tracing::debug!(sessions = found.rung, "rang again");
    }
    if !found.unheard.is_empty() {
        add(&core.counters.expired, script::tidy(&core.cmd, &core.keys, &found.unheard).await?);
    }
    if !found.orphans.is_empty() {
        let reaped = script::reap(&core.cmd, &core.keys, &core.config, &found.orphans).await?;
        tracing::info!(sessions = reaped, "forgot owners whose node is gone");
    }
    Ok(found.cursor)
}
