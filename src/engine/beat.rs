//! The heartbeat: renews the node's lease, and proves the doorbell path by ringing the own bell.
//!
//! It beats only while the bell connection is up: what others see as alive is the part that receives.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Engine;
use crate::Error;
use crate::connection::{Link, LinkState};
use crate::script;

/// A beat that is not heard for so long means that the bell connection is dead, whatever TCP says.
pub(super) const BEAT_LOST: Duration = Duration::from_millis(2500);

/// Sessions whose owners are checked with each beat, in turn: one that was lost or taken without a word is found, and
/// one that was lost makes all be claimed again.
const SAMPLE: usize = 256;

/// What the heartbeat knows about the path.
#[derive(Default)]
pub(super) struct Pulse(Mutex<PulseState>);

#[derive(Default, Clone)]
pub(super) struct PulseState {
    pub(super) failing: Option<Error>,
    pub(super) bell_silent: bool,
}

impl Pulse {
    pub(super) fn state(&self) -> PulseState {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, change: impl FnOnce(&mut PulseState)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// One beat that is on its way through the bell.
struct Sent {
    beat: u64,
    at: Instant,
    generation: u64,
}

pub(super) async fn run(engine: Weak<Engine>, bell: Link, stop: CancellationToken) {
    let mut beat = 0_u64;
    let mut on_its_way: Option<Sent> = None;
    let mut told = String::new();
    let mut sampled = 0;
    loop {
        let Some(every) = engine.upgrade().map(|e| e.core.config.heartbeat) else { return };
        tokio::select! {
            () = tokio::time::sleep(every.mul_f64(0.9 + fastrand::f64() / 5.0)) => {}
            () = stop.cancelled() => return,
        }
        let Some(engine) = engine.upgrade() else { return };

        let heard = engine.beat_heard.load(Ordering::Relaxed);
        match &on_its_way {
            Some(sent) if heard >= sent.beat => {
                on_its_way = None;
                engine.health.set(|p| p.bell_silent = false);
            }
            Some(sent) if sent.at.elapsed() >= BEAT_LOST => {
                tracing::warn!(after = ?BEAT_LOST, "our own doorbell does not come back, opening the bell connection again");
                engine.health.set(|p| p.bell_silent = true);
                bell.broken(sent.generation);
                on_its_way = None;
            }
            _ => {}
        }
        let generation = match &*bell.states().borrow() {
            LinkState::Up { generation, .. } => *generation,
            LinkState::Down(_) => {
                on_its_way = None;
                continue;
            }
            LinkState::Closed => return,
        };

        beat += 1;
        engine.beat_sent.store(beat, Ordering::Relaxed);
        let core = &engine.core;
        let (sample, sessions) = engine.sessions.sample(sampled, SAMPLE);
        sampled = if sampled + SAMPLE >= sessions { 0 } else { sampled + SAMPLE };
        let at = Instant::now();
        match script::heartbeat(&core.cmd, &core.keys, &core.config, &core.node, beat, &sample).await {
            Ok(answer) => {
                told.clear();
                engine.health.set(|p| p.failing = None);
                core.clock.set(answer.now_ms);
                on_its_way.get_or_insert(Sent { beat, at, generation });
                let seen = engine.owners_lost.swap(false, Ordering::Relaxed);
                if seen || answer.lost || !answer.known {
                    engine.reclaim_all();
                }
                for sid in &answer.fenced {
                    engine.look(sid.as_str(), false);
                }
            }
            Err(Error::Closed { .. }) => return,
            Err(e) => {
                let why = e.to_string();
                if why != told {
                    tracing::warn!(error = %e, "no heartbeat, trying on");
                    told = why;
                }
                if matches!(e, Error::Timeout { .. }) {
                    // The bell leads to the same server: it would be found silent only after another wait.
                    bell.broken(generation);
                    on_its_way = None;
                }
                engine.health.set(|p| p.failing = Some(e));
            }
        }
    }
}
