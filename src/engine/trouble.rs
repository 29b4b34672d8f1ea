//! Says what is wrong once: a server that refuses refuses every session, and ten thousand warnings say no more than one.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::Error;

/// After an end of the trouble: answers that were on their way may still tell of it.
const STRAGGLERS: Duration = Duration::from_secs(1);
/// Whoever meets trouble tries again within a few seconds. Not heard of for so long: it is over, or nobody asks any more.
const FORGOTTEN: Duration = Duration::from_secs(15);

/// The troubles that were told and have not ended. Shared by all who meet the same server.
#[derive(Default)]
pub(super) struct Trouble(Mutex<State>);

#[derive(Default)]
struct State {
    told: BTreeSet<String>,
    heard: Option<Instant>,
    over: BTreeSet<String>,
    ended: Option<Instant>,
}

impl Trouble {
    /// Whether this kind of trouble is news.
    pub(super) fn is_news(&self, e: &Error) -> bool {
        self.is_news_at(Instant::now(), e)
    }

    fn is_news_at(&self, now: Instant, e: &Error) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.heard.is_some_and(|at| now - at > FORGOTTEN) {
            state.told.clear();
        }
        let kind = e.trouble();
        if state.ended.is_some_and(|at| now - at < STRAGGLERS) && state.over.contains(&kind) {
            return false;
        }
        state.heard = Some(now);
        state.told.insert(kind)
    }

    /// Somebody who met trouble was served: whether that is news.
    pub(super) fn is_over(&self) -> bool {
        self.is_over_at(Instant::now())
    }

    fn is_over_at(&self, now: Instant) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.told.is_empty() {
            return false;
        }
        state.over = std::mem::take(&mut state.told);
        state.ended = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: &str) -> Error {
        Error::Refused { op: "pop", code: code.into(), message: format!("at {:?}", Instant::now()) }
    }

    #[test]
    fn each_kind_is_told_once_until_it_ends_and_stragglers_are_not_news() {
        let trouble = Trouble::default();
        let now = Instant::now();
        assert!(!trouble.is_over_at(now));
        assert!(trouble.is_news_at(now, &refused("MISCONF")));
        assert!(!trouble.is_news_at(now, &refused("MISCONF")));
        assert!(trouble.is_news_at(now, &refused("LOADING")));
        assert!(!trouble.is_news_at(now, &refused("MISCONF")));
        assert!(trouble.is_over_at(now));
        assert!(!trouble.is_over_at(now));
        assert!(!trouble.is_news_at(now, &refused("MISCONF")), "on its way since before");
        assert!(trouble.is_news_at(now, &refused("OOM")), "new");
        let later = now + STRAGGLERS;
        assert!(trouble.is_news_at(later, &refused("MISCONF")), "it came back");
        assert!(trouble.is_news_at(later + FORGOTTEN * 2, &refused("MISCONF")), "nobody met it for long");
    }
}
