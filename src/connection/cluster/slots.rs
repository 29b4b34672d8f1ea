//! Which master has which slot.

use redis::Value;

use super::Place;
use crate::{Error, Result};

const SLOTS: usize = 16_384;

/// A map of the slots, as one node told it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    places: Vec<Place>,
    /// For each slot, one more than its master's index; 0: nobody has it.
    owners: Vec<u16>,
}

impl Slots {
    /// From the answer to `CLUSTER SLOTS` of the node at `asked`. A node that does not know its own host is at that one.
    pub(super) fn read(answer: &Value, asked: &Place) -> Result<Self> {
        let mut slots = Self { places: Vec::new(), owners: vec![0; SLOTS] };
        let Value::Array(ranges) = answer else { return Err(strange("no list of ranges")) };
        for range in ranges {
            let Value::Array(range) = range else { return Err(strange("a range that is no list")) };
            let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &range[..] else {
                return Err(strange("a range without a master"));
            };
            let (Ok(first), Ok(last)) = (usize::try_from(*first), usize::try_from(*last)) else {
                return Err(strange("a negative slot"));
            };
            let [host, Value::Int(port), ..] = &master[..] else {
                return Err(strange("a master without a port"));
            };
            let host = match host {
                Value::BulkString(host) if !host.is_empty() && host != b"?" => {
                    String::from_utf8_lossy(host).into_owned()
                }
                _ => asked.0.clone(),
            };
            let port = u16::try_from(*port).map_err(|_| strange("a port out of range"))?;
            let owners = slots.owners.get(first..=last).map(<[u16]>::len);
            if owners.is_none() {
                return Err(strange("a slot out of range"));
            }
            let number = slots.number((host, port));
            slots.owners[first..=last].fill(number);
        }
        Ok(slots)
    }

    fn number(&mut self, place: Place) -> u16 {
        let at = self.places.iter().position(|known| *known == place).unwrap_or_else(|| {
            self.places.push(place);
            self.places.len() - 1
        });
        u16::try_from(at + 1).unwrap_or(0)
    }

    /// The master that has a slot.
    pub(crate) fn master(&self, slot: u16) -> Option<&Place> {
        let owner = *self.owners.get(usize::from(slot))?;
        self.places.get(usize::from(owner).checked_sub(1)?)
    }

    pub(super) fn masters(&self) -> &[Place] {
        &self.places
    }

    /// Whether every slot has a master.
    pub(super) fn is_whole(&self) -> bool {
        !self.owners.is_empty() && !self.owners.contains(&0)
    }

    /// The same with one slot elsewhere, as a node has just said.
    pub(super) fn with_moved(&self, slot: u16, to: Place) -> Self {
        let mut moved = self.clone();
        moved.owners.resize(SLOTS, 0);
        let number = moved.number(to);
        if let Some(owner) = moved.owners.get_mut(usize::from(slot)) {
            *owner = number;
        }
        moved
    }
}

fn strange(got: &str) -> Error {
    Error::Reply { op: "cluster slots", got: got.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: i64, last: i64, host: &str, port: i64) -> Value {
        let master = Value::Array(vec![Value::BulkString(host.as_bytes().to_vec()), Value::Int(port)]);
        let replica = Value::Array(vec![Value::BulkString(b"replica".to_vec()), Value::Int(1)]);
        Value::Array(vec![Value::Int(first), Value::Int(last), master, replica])
    }

    #[test]
    fn an_answer_becomes_a_map_and_a_redirection_changes_one_slot() {
        let asked = ("asked".to_owned(), 9);
        let answer = Value::Array(vec![range(0, 8191, "a", 1), range(8192, 16383, "", 2)]);
        let slots = Slots::read(&answer, &asked).expect("a map");
        assert!(slots.is_whole());
        assert_eq!(slots.master(8191), Some(&("a".to_owned(), 1)));
        assert_eq!(
            slots.master(16383),
            Some(&("asked".to_owned(), 2)),
            "who has no name is where it was asked"
        );
        let moved = slots.with_moved(5, ("c".to_owned(), 3));
        assert_eq!((moved.master(5), moved.master(6)), (Some(&("c".to_owned(), 3)), slots.master(6)));
        assert_ne!(moved, slots);
        assert_eq!(Slots::default().master(0), None);
        assert_eq!(Slots::default().with_moved(7, asked.clone()).master(7), Some(&asked));
    }

    #[test]
    fn answers_of_another_shape_are_errors_and_no_panic() {
        let asked = ("h".to_owned(), 1);
        for answer in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![Value::Array(vec![])]),
            Value::Array(vec![range(-1, 5, "a", 1)]),
            Value::Array(vec![range(5, 1, "a", 1)]),
            Value::Array(vec![range(0, 16384, "a", 1)]),
            Value::Array(vec![range(0, 1, "a", 70_000)]),
        ] {
            assert!(matches!(Slots::read(&answer, &asked), Err(Error::Reply { .. })), "{answer:?}");
        }
        assert!(!Slots::read(&Value::Array(vec![range(0, 1, "a", 1)]), &asked).expect("a map").is_whole());
    }
}
