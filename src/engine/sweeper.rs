//! The sweep: rings again for what stayed unanswered, and drops what is stale. Any number of processes may sweep.

use std::sync::Weak;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Engine;
use crate::each::each;
use crate::keys::Keys;
use crate::metrics::add;
use crate::{Error, Result, script};

/// A partition without sessions of ours is swept in one round of so many: others may have sessions there, and sweep too.
const TURNS: u64 = 4;
/// How often the stored number of partitions is given a new life.
const KEEP_LAYOUT: Duration = Duration::from_secs(6 * 3600);

pub(super) async fn run(engine: Weak<Engine>, stop: CancellationToken) {
    let Some(count) = engine.upgrade().map(|e| e.core.partitions.len()) else { return };
    let mut cursors = vec!["0".to_owned(); count];
    let mut told = String::new();
    let (mut round, mut kept) = (0, Instant::now());
    loop {
        let Some(every) = engine.upgrade().map(|e| e.core.config.look_again) else { return };
        tokio::select! {
            () = tokio::time::sleep(every.mul_f64(0.75 + fastrand::f64() / 4.0)) => {}
            () = stop.cancelled() => return,
        }
        let Some(engine) = engine.upgrade() else { return };
        round += 1;
        let due: Vec<usize> = (engine.in_turn(round, TURNS).iter().enumerate())
            .filter_map(|(partition, due)| due.then_some(partition))
            .collect();
        let sweeps = due.iter().map(|&p| sweep(&engine, &engine.core.partitions[p].keys, &cursors[p]));
        let mut failing = None;
        for (partition, swept) in due.iter().zip(each(sweeps).await) {
            match swept {
                Ok(next) => cursors[*partition] = next,
                Err(Error::Closed { .. }) => return,
                Err(e) => failing = failing.or(Some(e)),
            }
        }
        if kept.elapsed() > KEEP_LAYOUT && engine.core.check_layout().await.is_ok() {
            kept = Instant::now();
        }
        match failing {
            None => told.clear(),
            Some(e) => {
                let why = e.trouble();
                if why != told {
                    tracing::warn!(error = %e, "no sweep, trying on");
                    told = why;
                }
            }
        }
    }
}

async fn sweep(engine: &Engine, keys: &Keys, cursor: &str) -> Result<String> {
    let core = &engine.core;
    let found = script::sweep(&core.cmd, keys, &core.config, cursor).await?;
    if found.rung > 0 {
        tracing::debug!(sessions = found.rung, "rang again");
    }
    if !found.unheard.is_empty() {
        add(&core.counters.expired, script::tidy(&core.cmd, keys, &found.unheard).await?);
    }
    if !found.orphans.is_empty() {
        let reaped = script::reap(&core.cmd, keys, &core.config, &found.orphans).await?;
        tracing::info!(sessions = reaped, "forgot owners whose node is gone");
    }
    Ok(found.cursor)
}
