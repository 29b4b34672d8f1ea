//! Who in this process wants to hear of which topic.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::stream::Shared;
use crate::keys::{Sid, Tid};

#[derive(Default)]
pub(super) struct Interest {
    next: u64,
    streams: HashMap<u64, Arc<Shared>>,
    topics: HashMap<Tid, Ears>,
}

#[derive(Default)]
pub(super) struct Ears {
    pub(super) sessions: HashSet<Sid>,
    streams: HashSet<u64>,
}

impl Interest {
    pub(super) fn add_stream(&mut self) -> (u64, Arc<Shared>) {
        self.next += 1;
        let shared = Arc::new(Shared::default());
        self.streams.insert(self.next, shared.clone());
        (self.next, shared)
    }

    /// False when the stream is not there any more.
    pub(super) fn listen(&mut self, stream: u64, topic: &Tid) -> bool {
        let there = self.streams.contains_key(&stream);
        if there {
            self.topics.entry(topic.clone()).or_default().streams.insert(stream);
        }
        there
    }

    pub(super) fn join(&mut self, sid: &Sid, topic: &Tid) {
        self.topics.entry(topic.clone()).or_default().sessions.insert(sid.clone());
    }

    /// Takes a stream away from one topic, or from all and altogether. Answers the topics that nobody listens to now.
    pub(super) fn remove_stream(&mut self, stream: u64, only: Option<&Tid>) -> Vec<Tid> {
        if only.is_none() {
            self.streams.remove(&stream);
        }
        self.prune(|topic, ears| {
            if only.is_none_or(|only| only == topic) {
                ears.streams.remove(&stream);
            }
        })
    }

    /// Takes sessions away that are not wanted any more. Answers the topics that nobody listens to now.
    pub(super) fn retain_sessions(&mut self, wanted: impl Fn(&Tid, &Sid) -> bool) -> Vec<Tid> {
        self.prune(|topic, ears| ears.sessions.retain(|sid| wanted(topic, sid)))
    }

    fn prune(&mut self, change: impl Fn(&Tid, &mut Ears)) -> Vec<Tid> {
        let mut deaf = Vec::new();
        self.topics.retain(|topic, ears| {
            change(topic, ears);
            let heard = !ears.is_empty();
            if !heard {
                deaf.push(topic.clone());
            }
            heard
        });
        deaf
    }

    pub(super) fn wants(&self, topic: &Tid) -> bool {
        self.topics.contains_key(topic)
    }

    pub(super) fn topics(&self) -> Vec<Tid> {
        self.topics.keys().cloned().collect()
    }

    /// The topics that a session of this process takes part in.
    pub(super) fn topics_of(&self, sid: &Sid) -> Vec<Tid> {
        let of = |(topic, ears): (&Tid, &Ears)| ears.sessions.contains(sid).then(|| topic.clone());
        self.topics.iter().filter_map(of).collect()
    }

    /// Who hears of a topic.
    pub(super) fn ears(&self, topic: &Tid, with_sessions: bool) -> (Vec<Sid>, Vec<Arc<Shared>>) {
        let Some(ears) = self.topics.get(topic) else { return Default::default() };
        let sessions = if with_sessions { ears.sessions.iter().cloned().collect() } else { Vec::new() };
        (sessions, ears.streams.iter().filter_map(|id| self.streams.get(id).cloned()).collect())
    }

    pub(super) fn streams(&self) -> Vec<Arc<Shared>> {
        self.streams.values().cloned().collect()
    }
}

impl Ears {
    fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.streams.is_empty()
    }
}
