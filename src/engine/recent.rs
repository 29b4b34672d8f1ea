//! What was delivered lately, so that a late doorbell or a repeated answer does not deliver it twice.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use crate::record::Record;

/// Identities of delivered messages, newest last. An identity is a hash over id, time of queuing and body: a producer
/// may use an id again, without an idempotence window at the same moment, and that is another message.
#[derive(Default)]
pub(super) struct Recent(VecDeque<u128>);

/// Makes identities; one for the process, with random seeds.
#[derive(Default)]
pub(super) struct Identities(RandomState, RandomState);

impl Identities {
    pub(super) fn of(&self, r: &Record) -> u128 {
        let named = (r.enqueued_ms, &r.id);
        (u128::from(self.0.hash_one(named)) << 64) | u128::from(self.1.hash_one((named, &r.body[..])))
    }
}

impl Recent {
    pub(super) fn contains(&self, identity: u128) -> bool {
        self.0.contains(&identity)
    }

    pub(super) fn insert(&mut self, identity: u128, most: usize) {
        if self.0.len() >= most {
            self.0.pop_front();
        }
        self.0.push_back(identity);
    }

    /// What an idle session keeps.
    pub(super) fn into_kept(mut self) -> Option<Box<[u128]>> {
        const KEPT: usize = 4;
        let extra = self.0.len().saturating_sub(KEPT);
        self.0.drain(..extra);
        (!self.0.is_empty()).then(|| self.0.into_iter().collect())
    }

    pub(super) fn from_kept(kept: Option<Box<[u128]>>) -> Self {
        Self(kept.map(|k| k.into_vec().into()).unwrap_or_default())
    }
}
