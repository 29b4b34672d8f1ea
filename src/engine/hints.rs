//! Hints: messages for a session that are in no queue. Best effort, to the sink between two messages of the queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::Engine;
use super::runner::Start;
use crate::keys::Sid;
use crate::metrics::add;

/// Most hints that wait for a session; the oldest goes first.
const MOST: usize = 256;

/// A message without a record.
#[derive(Clone)]
pub(crate) struct Hint {
    /// A newer one with the same key takes an older one's place; empty: none does.
    pub(crate) key: Arc<str>,
    pub(crate) body: Bytes,
}

/// What waits for one session.
#[derive(Default)]
pub(super) struct Hints(VecDeque<Hint>);

impl Hints {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take(&mut self) -> VecDeque<Hint> {
        std::mem::take(&mut self.0)
    }

    /// Answers how many were dropped for it.
    fn add(&mut self, hint: Hint) -> u64 {
        if !hint.key.is_empty()
            && let Some(older) = self.0.iter_mut().find(|older| older.key == hint.key)
        {
            *older = hint;
            return 0;
        }
        self.0.push_back(hint);
        if self.0.len() > MOST {
            self.0.pop_front();
            return 1;
        }
        0
    }
}

impl Engine {
    /// Hands a hint to a session that this process owns. False when it does not.
    pub(crate) fn hint(self: &Arc<Self>, sid: &str, hint: Hint) -> bool {
        let (sid, serial, active) = {
            let mut sessions = self.sessions.lock();
            let Some((sid, slot)) = sessions.get_key_value(sid) else { return false };
            if slot.epoch == 0 || slot.is_ending() {
                return false;
            }
            let sid: Sid = sid.clone();
            let Some(slot) = sessions.get_mut(&sid) else { return false };
            add(&self.core.counters.hints_dropped, slot.hints.add(hint));
            if let Some(busy) = &slot.active {
                // It looks before the next message, and before it rests. No bell: that would cost it its batch.
                busy.hinted.store(true, Ordering::Release);
                return true;
            }
            let active = self.active();
            slot.active = Some(active.clone());
            (sid, slot.serial, active)
        };
        self.spawn(&sid, serial, active, Start::Hint);
        true
    }

    /// Whether this process serves a session.
    pub(crate) fn serves(&self, sid: &str) -> bool {
        self.sessions.lock().get(sid).is_some_and(|slot| !slot.is_ending())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_hint_takes_the_place_of_one_with_its_key_and_the_oldest_goes_first() {
        let mut hints = Hints::default();
        let hint = |key: &str, body: &'static str| Hint {
            key: key.into(),
            body: Bytes::from_static(body.as_bytes()),
        };
        for (key, body) in [("a", "1"), ("", "2"), ("a", "3"), ("", "4")] {
            assert_eq!(hints.add(hint(key, body)), 0);
        }
        let bodies: Vec<Bytes> = hints.take().into_iter().map(|h| h.body).collect();
        assert_eq!(bodies, ["3", "2", "4"]);
        let dropped: u64 = (0..MOST + 3).map(|_| hints.add(hint("", "x"))).sum();
        assert_eq!((dropped, hints.take().len()), (3, MOST));
    }
}
