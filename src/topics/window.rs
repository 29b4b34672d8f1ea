//! Many messages with one key within a short time become two: the first at once, the newest at the end of the window.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// Most windows open at a time; beyond, messages pass as they come.
const MOST: usize = 65_536;

/// The windows of one process. Their length is the same for all, so that they end in the order in which they began.
pub(super) struct Windows<K, T> {
    length: Duration,
    open: HashMap<K, Option<T>>,
    ends: VecDeque<(Instant, K)>,
}

impl<K: Clone + Eq + Hash, T> Windows<K, T> {
    pub(super) fn new(length: Duration) -> Self {
        Self { length, open: HashMap::new(), ends: VecDeque::new() }
    }

    /// Answers the message when it is to go on now; else it waits, or takes the place of the one that waits.
    pub(super) fn offer(&mut self, key: K, message: T, now: Instant) -> Option<T> {
        if let Some(waiting) = self.open.get_mut(&key) {
            *waiting = Some(message);
            return None;
        }
        if self.open.len() < MOST {
            self.begin(key, now);
        }
        Some(message)
    }

    /// When the next window ends.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.ends.front().map(|(end, _)| *end)
    }

    /// What waited in windows that have ended. Each such message begins a window again.
    pub(super) fn ended(&mut self, now: Instant) -> Vec<T> {
        let mut out = Vec::new();
        while self.next_end().is_some_and(|end| end <= now) {
            let Some((_, key)) = self.ends.pop_front() else { break };
            if let Some(Some(message)) = self.open.remove(&key) {
                out.push(message);
                self.begin(key, now);
            }
        }
        out
    }

    fn begin(&mut self, key: K, now: Instant) {
        self.open.insert(key.clone(), None);
        self.ends.push_back((now + self.length, key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_its_first_and_its_newest_and_silence_closes_the_window() {
        let length = Duration::from_millis(50);
        let mut windows = Windows::new(length);
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!(windows.offer("a", 0, at(0)), Some(0));
        for n in 1..100 {
            assert_eq!(windows.offer("a", n, at(n)), None);
        }
        assert_eq!(windows.offer("b", 7, at(10)), Some(7), "another key is another window");
        assert_eq!((windows.next_end(), windows.ended(at(49))), (Some(at(50)), vec![]));
        assert_eq!(windows.ended(at(100)), [99]);
        assert_eq!(windows.offer("a", 100, at(120)), None, "the newest one began a window");
        assert_eq!(windows.ended(at(150)), [100]);
        assert_eq!((windows.ended(at(500)), windows.next_end()), (vec![], None));
        assert!(windows.open.is_empty());
        assert_eq!(windows.offer("a", 101, at(501)), Some(101));
    }
}
