//! Which partition an id belongs to, and which hash tag a partition has.
//!
//! A Cluster runs a script where all its keys are, so what belongs to one session shares a hash tag: that of its
//! partition. One server has one partition; a Cluster has 64, spread evenly over its slots. The formulas are part of the
//! protocol (`docs/protocol.md`) and never change for stored data.

use crate::core::Clock;
use crate::keys::{Keys, Sid};

/// Slots of a Cluster.
const SLOTS: u16 = 16_384;
/// Most partitions. With more, a process would do little else than look at them.
pub(crate) const MAX_PARTITIONS: u16 = 1024;

/// A Cluster's partitions, unless set otherwise.
pub(crate) const CLUSTER_PARTITIONS: u16 = 64;

/// One partition: its keys, and the clock of the server that has it.
pub(crate) struct Partition {
    pub(crate) keys: Keys,
    pub(crate) clock: Clock,
    /// Where a Cluster keeps its keys.
    pub(crate) slot: u16,
}

/// All partitions under one prefix.
pub(crate) struct Partitions(Box<[Partition]>);

impl Partitions {
    pub(crate) fn new(prefix: &str, count: u16) -> Self {
        let partition = |tag: u16| Partition {
            keys: Keys::new(prefix, tag),
            clock: Clock::new(),
            slot: slot_of(tag.to_string().as_bytes()),
        };
        Self(tags(count).into_iter().map(partition).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Partition> {
        self.0.iter()
    }

    /// The number of the partition of an id, as it stands in keys (encoded).
    pub(crate) fn of(&self, id: &str) -> usize {
        if self.0.len() == 1 { 0 } else { usize::from(crc16(id.as_bytes())) % self.0.len() }
    }

    pub(crate) fn of_id(&self, id: &str) -> &Partition {
        &self.0[self.of(id)]
    }

    /// Sorts things by the partition of their session, keeping their order.
    pub(crate) fn sort<T>(&self, things: Vec<T>, sid: impl Fn(&T) -> &Sid) -> Vec<Vec<T>> {
        let mut sorted: Vec<Vec<T>> = (0..self.len()).map(|_| Vec::new()).collect();
        for thing in things {
            sorted[self.of(sid(&thing).as_str())].push(thing);
        }
        sorted
    }
}

impl std::ops::Index<usize> for Partitions {
    type Output = Partition;
    fn index(&self, at: usize) -> &Partition {
        &self.0[at]
    }
}

/// The tag of each partition: the least number whose slot lies in its part of the slots, the parts being equal.
fn tags(count: u16) -> Vec<u16> {
    let count = usize::from(count);
    let mut tags: Vec<Option<u16>> = vec![None; count];
    let mut missing = count;
    for tag in 0..=u16::MAX {
        if missing == 0 {
            break;
        }
        let part = usize::from(slot_of(tag.to_string().as_bytes())) * count / usize::from(SLOTS);
        if tags[part].is_none() {
            tags[part] = Some(tag);
            missing -= 1;
        }
    }
    // A test shows that every count up to the limit finds all of its tags.
    tags.into_iter().map(Option::unwrap_or_default).collect()
}

/// The slot of a hash tag.
pub(crate) fn slot_of(tag: &[u8]) -> u16 {
    crc16(tag) % SLOTS
}

/// The slot of a key: that of what stands between its first braces.
#[cfg_attr(not(feature = "cluster"), allow(dead_code))]
pub(crate) fn slot_of_key(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&b| b == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|&b| b == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    slot_of(tag.unwrap_or(key))
}

/// CRC-16/XMODEM, which Redis Cluster uses.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let mut crc = (n as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[n] = crc;
        n += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_redis_cluster() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot_of(b"foo"), 12182);
        assert_eq!(slot_of_key(b"courier:{foo}:q:{bar}"), 12182);
        assert_eq!(slot_of_key(b"a{}{foo}"), slot_of(b"a{}{foo}"));
    }

    /// The vectors of `docs/protocol.md`.
    #[test]
    fn the_protocols_vectors_hold() {
        let page = include_str!("../docs/protocol.md");
        let rows = page.lines().skip_while(|l| !l.starts_with("| session | partition of 64")).skip(2);
        let (mut checked, partitions) = (0, Partitions::new("courier", 64));
        for row in rows.take_while(|l| l.starts_with('|')) {
            let cells: Vec<&str> =
                row.trim_matches('|').split('|').map(|c| c.trim().trim_matches('`')).collect();
            let session = crate::SessionId::new(cells[0]).expect("valid");
            let sid = Sid::of(&session);
            assert_eq!(partitions.of(sid.as_str()).to_string(), cells[1], "{row}");
            assert_eq!(partitions.of_id(sid.as_str()).keys.queue(&sid), cells[2], "{row}");
            assert_eq!(partitions.of_id(sid.as_str()).slot.to_string(), cells[3], "{row}");
            checked += 1;
        }
        assert!(checked >= 4, "{checked}");
    }

    #[test]
    fn one_partition_has_the_tag_0_and_many_are_spread_evenly() {
        assert_eq!(tags(1), [0]);
        for count in [2, 3, 16, 64, 100, MAX_PARTITIONS] {
            let tags = tags(count);
            let distinct: std::collections::HashSet<_> = tags.iter().collect();
            assert_eq!(distinct.len(), usize::from(count));
            for (n, tag) in tags.iter().enumerate() {
                let slot = usize::from(slot_of(tag.to_string().as_bytes()));
                assert_eq!(slot * usize::from(count) / 16_384, n, "{count}: {tag}");
            }
        }
        // Three masters with a third of the slots each, as `redis-cli --cluster create` makes them.
        let mut masters = [0; 3];
        for tag in tags(64) {
            masters[usize::from(slot_of(tag.to_string().as_bytes())) / 5462] += 1;
        }
        assert!(masters.iter().all(|n| (20..=22).contains(n)), "{masters:?}");
    }

    #[test]
    fn sessions_are_spread_evenly() {
        let partitions = Partitions::new("courier", 64);
        let mut counts = vec![0_u32; 64];
        for n in 0..64_000 {
            counts[partitions.of(&format!("session-{n}"))] += 1;
        }
        assert!(counts.iter().all(|n| (800..1200).contains(n)), "{counts:?}");
    }
}
