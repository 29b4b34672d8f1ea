//! What gives an idle session something to do: doorbells, sweeps, claims. As long as it comes to nothing, no task is made.

use std::sync::Arc;

use bytes::Bytes;

use super::Engine;
use super::calls::Answer;
use super::runner::{Runner, Start};
use super::sessions::{Active, Ended};
use crate::Result;
use crate::delivery::{Claim, tell};
use crate::keys::Sid;
use crate::metrics::add;
use crate::script::{ClaimMode, Claimed, Denied, Next, PopItem};

impl Engine {
    /// Gives a session the record that its doorbell carried; a busy one looks by itself when it is done. False when the
    /// session is not ours.
    pub(super) fn wake(self: &Arc<Self>, sid: &str, record: &[u8]) -> bool {
        let runner = {
            let mut sessions = self.sessions.lock();
            let Some(slot) = sessions.get_mut(sid) else { return false };
            if let Some(busy) = &slot.active {
                busy.ring();
                return true;
            }
            let active = Arc::<Active>::default();
            slot.active = Some(active.clone());
            Runner::new(self.clone(), Sid::encoded(sid), slot, active)
        };
        // Heard of a session that we hold but have no token for: the claim's answer was lost.
        let record = Bytes::copy_from_slice(record);
        let start = if runner.is_claimed() { Start::Record(record) } else { Start::Claim(ClaimMode::Keep) };
        tokio::spawn(runner.run(start));
        true
    }

    /// Fetches for an idle session, without a task for as long as there is nothing to do. With `unheard` a busy one is left
    /// alone: it looks by itself before it ends. False when the session is not ours.
    pub(super) fn look(self: &Arc<Self>, sid: &str, unheard: bool) -> bool {
        let (sid, serial, epoch) = {
            let mut sessions = self.sessions.lock();
            let Some(slot) = sessions.get_mut(sid) else { return false };
            if let Some(busy) = &slot.active {
                if !unheard {
                    busy.ring();
                }
                return true;
            }
            slot.active = Some(Arc::default());
            (Sid::encoded(sid), slot.serial, slot.epoch)
        };
        if epoch == 0 {
            self.claim(&sid, serial, ClaimMode::Keep);
            return true;
        }
        let engine = self.clone();
        let request = PopItem { sid: sid.clone(), epoch, want: self.core.config.batch };
        self.calls.pops.tell(request, move |answer| engine.looked(&sid, serial, unheard, answer));
        true
    }

    fn looked(self: &Arc<Self>, sid: &Sid, serial: u64, unheard: bool, answer: Result<Answer<Next>>) {
        let start = match answer {
            Ok(Ok(next)) => {
                let found = !next.records.is_empty();
                add(&self.core.counters.doorbells_missed, u64::from(unheard && found));
                if next.is_nothing() && self.rest(sid, serial) {
                    return;
                }
                Start::Answer(next)
            }
            Ok(Err(Denied::Fenced)) => return self.superseded(sid, serial),
            _ => Start::Fetch,
        };
        self.go_on(sid, serial, start);
    }

    /// Claims a session whose slot is busy with nothing else, again without a task for it.
    pub(super) fn claim(self: &Arc<Self>, sid: &Sid, serial: u64, mode: ClaimMode) {
        let (engine, sid) = (self.clone(), sid.clone());
        self.calls.claims.tell((sid.clone(), mode), move |answer| match answer {
            Ok(Ok(claimed)) => {
                let nothing = claimed.pending == 0;
                engine.got(&sid, serial, claimed);
                if !(nothing && engine.rest(&sid, serial)) {
                    engine.go_on(&sid, serial, Start::Fetch);
                }
            }
            _ => engine.go_on(&sid, serial, Start::Claim(mode)),
        });
    }

    /// A claim succeeded: the slot has its token; its sink, and those who wait for it, hear so.
    pub(super) fn got(&self, sid: &Sid, serial: u64, claimed: Claimed) {
        add(&self.core.counters.claims, 1);
        let told = self.sessions.with(sid, serial, |slot| {
            slot.epoch = claimed.epoch;
            let claim = Claim { session: slot.session.clone(), epoch: claimed.epoch };
            (std::mem::take(&mut slot.claimed), slot.sink.clone(), claim)
        });
        let Some((waiting, sink, claim)) = told else { return };
        tell(&*sink, |sink| sink.claimed_any(&claim));
        for first in waiting {
            let _ = first.send(());
        }
    }

    /// Leaves a session idle, unless it rang or was told to end meanwhile. True as well when its slot is another's by now.
    fn rest(&self, sid: &Sid, serial: u64) -> bool {
        let rests = self.sessions.with(sid, serial, |slot| {
            let busy = slot.active.as_ref().is_some_and(|active| active.rang() || active.must_end());
            if !busy {
                slot.active = None;
            }
            !busy
        });
        rests.unwrap_or(true)
    }

    /// Another owner claimed an idle session.
    pub(super) fn superseded(&self, sid: &Sid, serial: u64) {
        add(&self.core.counters.superseded, 1);
        tracing::info!(session = %sid.as_str(), "another owner claimed the session");
        self.sessions.end(sid, serial, Ended::Superseded);
    }

    /// A task for a session that has something to do.
    pub(super) fn go_on(self: &Arc<Self>, sid: &Sid, serial: u64, start: Start) {
        let runner = self.sessions.with(sid, serial, |slot| {
            let active = slot.active.get_or_insert_default().clone();
            Runner::new(self.clone(), sid.clone(), slot, active)
        });
        if let Some(runner) = runner {
            tokio::spawn(runner.run(start));
        }
    }

    /// Claims everything of these partitions again that nobody else has taken: the stored owners were lost.
    pub(super) fn reclaim(self: &Arc<Self>, lost: &[bool]) {
        let idle: Vec<(Sid, u64)> = {
            let mut sessions = self.sessions.lock();
            sessions
                .iter_mut()
                .filter(|(sid, slot)| slot.active.is_none() && lost[self.core.partitions.of(sid.as_str())])
                .map(|(sid, slot)| {
                    slot.active = Some(Arc::default());
                    (sid.clone(), slot.serial)
                })
                .collect()
        };
        add(&self.core.counters.state_lost, 1);
        tracing::warn!(sessions = idle.len(), "the stored owners were lost, claiming again");
        for (sid, serial) in idle {
            self.claim(&sid, serial, ClaimMode::Keep);
        }
    }
}
