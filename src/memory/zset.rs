//! The sorted set.

use super::resp::Blob;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;

/// A score that orders. NaN never gets in; -0 and 0 are the same place.
#[derive(Debug, Clone, Copy)]
struct Score(f64);

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.partial_cmp(&other.0).unwrap_or(Ordering::Equal)
    }
}
impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Score {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Score {}

/// One end of a score range.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    pub(super) score: f64,
    pub(super) excluded: bool,
}

/// Members ordered by score, then by their bytes.
#[derive(Debug, Default)]
pub(super) struct Zset {
    scores: HashMap<Blob, f64>,
    ordered: BTreeSet<(Score, Blob)>,
}

impl Zset {
    pub(super) fn len(&self) -> usize {
        self.scores.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.scores.is_empty()
    }

    pub(super) fn score(&self, member: &[u8]) -> Option<f64> {
        self.scores.get(member).copied()
    }

    /// Sets a member's score. Zero loses its sign, as in the short sets of Redis.
    pub(super) fn insert(&mut self, member: &[u8], score: f64) {
        let score = score + 0.0;
        let member = match self.scores.get_key_value(member) {
            Some((known, &old)) => {
                let known = known.clone();
                self.ordered.remove(&(Score(old), known.clone()));
                known
            }
            None => Blob::from(member),
        };
        self.ordered.insert((Score(score), member.clone()));
        self.scores.insert(member, score);
    }

    /// Whether the member was there.
    pub(super) fn remove(&mut self, member: &[u8]) -> bool {
        let Some((member, score)) = self.scores.remove_entry(member) else {
            return false;
        };
        self.ordered.remove(&(Score(score), member));
        true
    }

    /// All members in order.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (&Blob, f64)> {
        self.ordered.iter().map(|(score, member)| (member, score.0))
    }

    /// Members whose score lies between the limits, in order.
    pub(super) fn between(
        &self,
        min: Limit,
        max: Limit,
    ) -> Box<dyn DoubleEndedIterator<Item = (&Blob, f64)> + '_> {
        let empty = min.score > max.score || (min.score == max.score && (min.excluded || max.excluded));
        if empty {
            return Box::new(std::iter::empty());
        }
        // The empty member sorts before all others: it is the place where a score begins. Where the range must end
        // behind a score, it ends where the next larger one begins.
        let first: Blob = Blob::from(&b""[..]);
        let start = if min.excluded { min.score.next_up() } else { min.score };
        let end = if max.excluded { max.score } else { max.score.next_up() };
        let end = if max.score == f64::INFINITY && !max.excluded {
            Bound::Unbounded
        } else {
            Bound::Excluded((Score(end), first.clone()))
        };
        if min.score == f64::INFINITY && min.excluded {
            return Box::new(std::iter::empty());
        }
        let range = self.ordered.range((Bound::Included((Score(start), first)), end));
        Box::new(range.map(|(score, member)| (member, score.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(score: f64) -> Limit {
        Limit { score, excluded: false }
    }
    fn past(score: f64) -> Limit {
        Limit { score, excluded: true }
    }
    fn names(zset: &Zset, min: Limit, max: Limit) -> String {
        zset.between(min, max).map(|(m, _)| String::from_utf8_lossy(m).into_owned()).collect()
    }

    #[test]
    fn ranges_honour_excluded_and_infinite_limits() {
        let mut z = Zset::default();
        for (member, score) in [
            ("a", f64::NEG_INFINITY),
            ("c", 1.0),
            ("b", 1.0),
            ("d", 2.0),
            ("e", f64::INFINITY),
            ("", -0.0),
            ("0", 0.0),
        ] {
            z.insert(member.as_bytes(), score);
        }
        let (low, high) = (f64::NEG_INFINITY, f64::INFINITY);
        assert_eq!(names(&z, at(low), at(high)), "a0bcde");
        assert_eq!(names(&z, past(low), past(high)), "0bcd");
        assert_eq!(names(&z, at(1.0), at(1.0)), "bc");
        assert_eq!(names(&z, past(1.0), at(2.0)), "d");
        assert_eq!(names(&z, at(1.0), past(2.0)), "bc");
        assert_eq!(names(&z, past(1.0), past(1.0)), "");
        assert_eq!(names(&z, at(2.0), at(1.0)), "");
        assert_eq!(names(&z, at(high), at(high)), "e");
        assert_eq!(names(&z, past(high), at(high)), "");
        assert_eq!(names(&z, at(low), at(low)), "a");
        assert_eq!(z.between(at(0.0), at(-0.0)).count(), 2);
    }

    #[test]
    fn a_new_score_moves_the_member() {
        let mut z = Zset::default();
        z.insert(b"a", 1.0);
        z.insert(b"b", 2.0);
        z.insert(b"a", 3.0);
        assert_eq!((names(&z, at(0.0), at(9.0)), z.score(b"a"), z.len()), ("ba".into(), Some(3.0), 2));
        assert!(z.remove(b"a") && !z.remove(b"a"));
        assert_eq!(z.iter().count(), 1);
    }
}
