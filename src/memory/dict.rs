//! A hash table that can be walked in pieces while it changes.

use super::resp::Blob;
use std::collections::{BTreeMap, HashMap};

/// Key to value, walked in order of insertion.
///
/// A scan's cursor is the place of the next entry. An entry that is there during a whole scan is seen exactly once,
/// whatever else is added or removed meanwhile.
#[derive(Debug)]
pub(super) struct Dict<V> {
    entries: HashMap<Blob, (u64, V)>,
    order: BTreeMap<u64, Blob>,
    next: u64,
}

impl<V> Default for Dict<V> {
    fn default() -> Self {
        // Place 0 is never given away: as a cursor it means the beginning and the end.
        Self { entries: HashMap::new(), order: BTreeMap::new(), next: 1 }
    }
}

impl<V> Dict<V> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        self.entries.contains_key(key)
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, key: &[u8]) -> Option<&mut V> {
        self.entries.get_mut(key).map(|(_, value)| value)
    }

    /// Sets a value and returns the one before. A known key keeps its place.
    pub(super) fn insert(&mut self, key: &[u8], value: V) -> Option<V> {
        if let Some((_, old)) = self.entries.get_mut(key) {
            return Some(std::mem::replace(old, value));
        }
        let key = Blob::from(key);
        self.order.insert(self.next, key.clone());
        self.entries.insert(key, (self.next, value));
        self.next += 1;
        None
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> Option<V> {
        let (place, value) = self.entries.remove(key)?;
        self.order.remove(&place);
        Some(value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Blob, &V)> {
        self.from(0).map(|(_, key, value)| (key, value))
    }

    /// At most `count` entries from `cursor` on, and the cursor to go on with (0: the end).
    pub(super) fn scan(&self, cursor: u64, count: usize) -> (u64, Vec<(&Blob, &V)>) {
        let mut rest = self.from(cursor);
        let found = rest.by_ref().take(count).map(|(_, key, value)| (key, value)).collect();
        (rest.next().map_or(0, |(place, ..)| place), found)
    }

    fn from(&self, place: u64) -> impl Iterator<Item = (u64, &Blob, &V)> {
        let entries = &self.entries;
        self.order.range(place..).filter_map(move |(&place, key)| Some((place, key, &entries.get(key)?.1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_sees_what_stays_once_though_other_entries_come_and_go() {
        let mut dict = Dict::default();
        for n in 0..1000u32 {
            dict.insert(&n.to_be_bytes(), ());
        }
        let (mut cursor, mut seen) = (0, Vec::new());
        for round in 0.. {
            let (next, found) = dict.scan(cursor, 7);
            seen.extend(found.into_iter().map(|(key, ())| key.clone()));
            dict.remove(&(round * 3u32 + 1).to_be_bytes());
            dict.insert(&(5000 + round % 20).to_be_bytes(), ());
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        for n in (0..1000u32).filter(|n| n % 3 != 1) {
            assert_eq!(seen.iter().filter(|key| key[..] == n.to_be_bytes()).count(), 1, "{n}");
        }
    }

    #[test]
    fn a_new_value_keeps_the_place() {
        let mut dict = Dict::default();
        dict.insert(b"a", 1);
        dict.insert(b"b", 2);
        assert_eq!(dict.insert(b"a", 3), Some(1));
        assert_eq!(dict.iter().map(|(_, v)| *v).collect::<Vec<_>>(), [3, 2]);
        assert_eq!(dict.remove(b"a"), Some(3));
        assert_eq!((dict.len(), dict.contains(b"a")), (1, false));
    }
}
