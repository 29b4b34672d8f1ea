//! The heartbeat: renews the node's lease in each partition, and proves the doorbell path by ringing the own bell.
//!
//! It beats only while the inbox is heard: what others see as alive is the part that receives.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Engine;
use crate::Error;
use crate::connection::Bell;
use crate::each::each;
use crate::keys::Sid;
use crate::script;

/// A beat that is not heard for so long means that the bell connection is dead, whatever TCP says.
pub(super) const BEAT_LOST: Duration = Duration::from_millis(2500);

/// Sessions whose owners are checked with each beat, in turn: one that was lost or taken without a word is found, and
/// one that was lost makes all be claimed again.
const SAMPLE: usize = 256;

/// What was told when the server refuses to publish.
const MUTE: &str = "mute";

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

/// The newest beat of a partition that came back, and the newest that was sent: nobody else's number is taken for it.
#[derive(Default)]
pub(super) struct Echo {
    heard: AtomicU64,
    sent: AtomicU64,
}

impl Echo {
    /// A beat came in; false when it is none of ours.
    pub(super) fn hear(&self, beat: u64) -> bool {
        let ours = beat <= self.sent.load(Ordering::Relaxed);
        if ours {
            self.heard.fetch_max(beat, Ordering::Relaxed);
        }
        ours
    }
}

/// One beat that is on its way through the bell.
#[derive(Clone, Copy)]
struct Sent {
    beat: u64,
    at: Instant,
    generation: u64,
}

/// What is remembered of a partition from beat to beat.
#[derive(Clone, Copy, Default)]
struct Path {
    on_its_way: Option<Sent>,
    silent: bool,
}

pub(super) async fn run(engine: Weak<Engine>, bell: Bell, stop: CancellationToken) {
    let Some(count) = engine.upgrade().map(|e| e.core.partitions.len()) else { return };
    let mut heard = bell.heard();
    let mut paths = vec![Path::default(); count];
    let mut told = String::new();
    let (mut round, mut sampled) = (0_u64, 0);
    loop {
        let Some(every) = engine.upgrade().map(|e| e.core.config.heartbeat) else { return };
        tokio::select! {
            () = tokio::time::sleep(every.mul_f64(0.9 + fastrand::f64() / 5.0)) => {}
            () = stop.cancelled() => return,
        }
        let Some(engine) = engine.upgrade() else { return };
        for (partition, path) in paths.iter_mut().enumerate() {
            listen(&engine, &bell, partition, path);
        }
        let Some(generations) = heard.now(count) else { return };
        round += 1;

        let (sample, sessions) = engine.sessions.sample(sampled, SAMPLE);
        sampled = if sampled + SAMPLE >= sessions { 0 } else { sampled + SAMPLE };
        let samples = engine.core.partitions.sort(sample, |(sid, _)| sid);
        let due = due(&engine, round);
        let mut beats = Vec::new();
        for (partition, sample) in samples.into_iter().enumerate() {
            match generations[partition] {
                0 => paths[partition].on_its_way = None,
                generation if due[partition] => beats.push((partition, generation, sample)),
                _ => {}
            }
        }
        let answers =
            each(beats.iter().map(|(partition, _, sample)| beat(&engine, *partition, round, sample)));
        let answers = answers.await;

        let (mut failing, mut mute, mut lost) = (None, false, vec![false; count]);
        for ((partition, generation, _), answer) in beats.iter().zip(answers) {
            let path = &mut paths[*partition];
            match answer {
                Ok((sent, answer)) => {
                    engine.core.partitions[*partition].clock.set(answer.now_ms);
                    path.on_its_way.get_or_insert(Sent { generation: *generation, ..sent });
                    lost[*partition] = answer.lost || !answer.known;
                    mute |= answer.mute;
                    for sid in &answer.fenced {
                        engine.look(sid.as_str(), false);
                    }
                }
                Err(Error::Closed { .. }) => return,
                Err(e) => {
                    if matches!(e, Error::Timeout { .. }) {
                        // The bell leads to the same server: it would be found silent only after another wait.
                        bell.suspect(*partition, *generation);
                        path.on_its_way = None;
                    }
                    failing.get_or_insert(e);
                }
            }
        }
        if engine.owners_lost.swap(false, Ordering::Relaxed) {
            lost.fill(true);
        }
        if lost.contains(&true) {
            engine.reclaim(&lost);
        }
        let refused = (mute && failing.is_none()).then(|| Error::Refused {
            op: "heartbeat",
            code: "NOPERM".into(),
            message: "publish to the own inbox: doorbells ring for nobody, messages come with the sweep"
                .into(),
        });
        match (&failing, &refused) {
            (None, None) => told.clear(),
            (Some(e), _) if told != e.trouble() => {
                tracing::warn!(error = %e, "no heartbeat, trying on");
                told = e.trouble();
            }
            (None, Some(e)) if told != MUTE => {
                tracing::warn!(error = %e, "nobody hears a doorbell");
                told = MUTE.into();
            }
            _ => {}
        }
        let failing = failing.or(refused);
        let silent = paths.iter().any(|path| path.silent);
        engine.health.set(|p| *p = PulseState { failing, bell_silent: silent });
    }
}

/// Whether the last beat came back, and what follows from that.
fn listen(engine: &Engine, bell: &Bell, partition: usize, path: &mut Path) {
    let heard = engine.echoes[partition].heard.load(Ordering::Relaxed);
    match path.on_its_way {
        Some(sent) if heard >= sent.beat => *path = Path::default(),
        Some(sent) if sent.at.elapsed() >= BEAT_LOST => {
            tracing::warn!(partition, after = ?BEAT_LOST, "our own doorbell does not come back, opening the bell connection again");
            bell.suspect(partition, sent.generation);
            *path = Path { on_its_way: None, silent: true };
        }
        _ => {}
    }
}

/// Partitions that this round is for: those with sessions of ours each time, the others in turn, often enough for the
/// lease to be valid when a session comes. So idling costs little, whatever the number of partitions.
fn due(engine: &Engine, round: u64) -> Vec<bool> {
    let config = &engine.core.config;
    let fits = config.lease.as_millis() / config.heartbeat.as_millis().max(1);
    let turns = u64::try_from(fits / 3).unwrap_or(1).clamp(1, 8);
    engine.in_turn(round, turns)
}

/// One beat of one partition. Its number tells the partition by its remainder.
async fn beat(
    engine: &Engine,
    partition: usize,
    round: u64,
    sample: &[(Sid, u64)],
) -> Result<(Sent, script::Beat), Error> {
    let core = &engine.core;
    let count = core.partitions.len() as u64;
    let beat = round * count + partition as u64;
    engine.echoes[partition].sent.store(beat, Ordering::Relaxed);
    let at = Instant::now();
    let keys = &core.partitions[partition].keys;
    let answer = script::heartbeat(&core.cmd, keys, &core.config, &core.node, beat, sample).await?;
    Ok((Sent { beat, at, generation: 0 }, answer))
}
