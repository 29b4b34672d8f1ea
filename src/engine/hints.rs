//! Hints: messages for a session that are in no queue. Best effort, to the sink between two messages of the queue.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::Engine;
use super::runner::{Runner, Start};
use super::sessions::Active;
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
    pub(super) fn all(self) -> impl Iterator<Item = Hint> {
        self.0.into_iter()
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
        let runner = {
            let mut sessions = self.sessions.lock();
            let Some(slot) = sessions.get_mut(sid) else { return false };
            if slot.epoch == 0 || slot.is_ending() {
                return false;
            }
            add(&self.core.counters.hints_dropped, slot.hints.get_or_insert_default().add(hint));
            if let Some(busy) = &slot.active {
                // It looks before the next message, and before it rests. No bell: that would cost it its batch.
                busy.hint();
                return true;
            }
            let active = Arc::<Active>::default();
            slot.active = Some(active.clone());
            Runner::new(self.clone(), Sid::encoded(sid), slot, active)
        };
        tokio::spawn(runner.run(Start::Hint));
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
        let bodies: Vec<Bytes> = std::mem::take(&mut hints).all().map(|h| h.body).collect();
        assert_eq!(bodies, ["3", "2", "4"]);
        let dropped: u64 = (0..MOST + 3).map(|_| hints.add(hint("", "x"))).sum();
        assert_eq!((dropped, hints.0.len()), (3, MOST));
    }
}
