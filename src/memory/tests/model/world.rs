//! The reference model: what the stored state is, and what each verb does to it, without a thought about Redis.

use std::collections::{BTreeMap, BTreeSet};

use super::step::{Order, SESSIONS};

pub(super) const LOOK_MS: u64 = 1_000;
pub(super) const MAX_ATTEMPTS: u32 = 3;
pub(super) const DEAD_CAP: usize = 3;
pub(super) const DEAD_TTL_MS: u64 = 50_000;
/// Larger records do not travel in a doorbell.
pub(super) const HANDOFF: usize = 200;
const HOUR_MS: u64 = 3_600_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) id: String,
    pub(super) coalesce: String,
    pub(super) body: String,
    pub(super) enqueued: u64,
    pub(super) expires: u64,
    pub(super) attempts: u32,
    pub(super) not_before: u64,
    pub(super) first: String,
    pub(super) last: String,
    /// Not stored: its id had an idempotence window, which is what tells it from another one of that id.
    pub(super) windowed: bool,
}

impl Message {
    /// The record up to the end of its id.
    pub(super) fn receipt(&self) -> String {
        let record = self.record();
        let line = record.find('\n').expect("a line");
        record[..=line + self.id.len()].to_owned()
    }

    /// As `docs/protocol.md` says that it is stored.
    pub(super) fn record(&self) -> String {
        let (id, key, first, last) = (self.id.len(), self.coalesce.len(), self.first.len(), self.last.len());
        format!(
            "1 {} {} {} {} {id} {key} 0 {first} {last}\n{}{}{}{}{}",
            self.enqueued,
            self.expires,
            self.attempts,
            self.not_before,
            self.id,
            self.coalesce,
            self.first,
            self.last,
            self.body
        )
    }

    pub(super) fn fail(&mut self, attempts: u32, not_before: u64, why: &str) {
        (self.attempts, self.not_before) = (attempts, not_before);
        if self.first.is_empty() {
            self.first = why.to_owned();
        }
        self.last = why.to_owned();
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Letter {
    pub(super) died: u64,
    pub(super) reason: &'static str,
    pub(super) message: Message,
}

impl Letter {
    pub(super) fn entry(&self) -> String {
        format!("1 {} {}\n{}{}", self.died, self.reason.len(), self.reason, self.message.record())
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Session {
    pub(super) queue: Vec<Message>,
    pub(super) queue_ends: u64,
    pub(super) dead: Vec<Letter>,
    pub(super) dead_ends: u64,
    pub(super) owner: Option<(String, u64)>,
    pub(super) look_again: Option<u64>,
    /// Message id -> until when it is a duplicate.
    pub(super) known: BTreeMap<String, u64>,
}

/// What an owner gets next.
pub(super) struct Next {
    pub(super) more: bool,
    pub(super) wait: u64,
    pub(super) expired: u64,
    pub(super) buried: u64,
    pub(super) records: Vec<Message>,
}

/// Who holds a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hold {
    Held,
    Fenced,
    Lost,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) now: u64,
    /// Whether keys with a time to live go when it is over: the test's clock moves the engine's keys, not a server's.
    pub(super) keys_expire: bool,
    pub(super) sessions: Vec<Session>,
    /// The times in a queue may not rise from head to tail any more: tail order, or pushes with and without a window
    /// mixed in one millisecond. Then two messages with one id and no window may share a receipt.
    pub(super) mixed: bool,
    /// Node -> deadline of its lease.
    pub(super) nodes: BTreeMap<String, u64>,
    pub(super) nodes_end: u64,
    /// The ids of its own that a producer used, and until when they are known, all together.
    pub(super) own_ids: BTreeSet<String>,
    pub(super) own_ids_end: Option<u64>,
    pub(super) listening: BTreeSet<String>,
    /// Inbox and payload of every doorbell that was heard.
    pub(super) bells: Vec<(String, String)>,
}

pub(super) fn sid(session: usize) -> String {
    format!("s{session}")
}

impl World {
    pub(super) fn new(now: u64, keys_expire: bool) -> Self {
        Self {
            now,
            keys_expire,
            sessions: vec![Session::default(); SESSIONS],
            mixed: false,
            nodes: BTreeMap::new(),
            nodes_end: 0,
            own_ids: BTreeSet::new(),
            own_ids_end: None,
            listening: BTreeSet::new(),
            bells: Vec::new(),
        }
    }

    pub(super) fn wait(&mut self, ms: u64) {
        self.now += ms;
        if !self.keys_expire {
            return;
        }
        let now = self.now;
        for s in &mut self.sessions {
            if s.queue_ends <= now {
                s.queue.clear();
            }
            if s.dead_ends <= now {
                s.dead.clear();
            }
            s.known.retain(|_, until| *until > now);
        }
        if self.nodes_end <= now {
            self.nodes.clear();
        }
        if self.own_ids_end.is_some_and(|end| end <= now) {
            self.own_ids.clear();
            self.own_ids_end = None;
        }
    }

    /// What holds whatever is called in whatever order; the model could share an error with the scripts.
    pub(super) fn broken_promise(&self) -> Option<String> {
        for (n, s) in self.sessions.iter().enumerate() {
            if !s.queue.is_empty() && s.look_again.is_none() {
                return Some(format!("s{n} has messages that no sweep would find"));
            }
            if s.dead.len() > DEAD_CAP {
                return Some(format!("s{n} has {} dead letters", s.dead.len()));
            }
            let bare: Vec<&Message> = s.queue.iter().filter(|m| !m.windowed).collect();
            let receipts: BTreeSet<String> = bare.iter().map(|m| m.receipt()).collect();
            if receipts.len() < bare.len() && !self.mixed {
                return Some(format!("two messages of s{n} share a receipt: {receipts:?}"));
            }
        }
        None
    }

    pub(super) fn ring(&mut self, node: &str, payload: String) -> u64 {
        let heard = self.listening.contains(node);
        if heard {
            self.bells.push((node.to_owned(), payload));
        }
        u64::from(heard)
    }

    pub(super) fn hold(&self, session: usize, node: &str, epoch: u64) -> Hold {
        match &self.sessions[session].owner {
            Some((owner, e)) if owner == node && *e == epoch => Hold::Held,
            // What is stored is older than what the node was told: a failover lost the newer claim.
            Some((owner, e)) if owner == node && *e < epoch => Hold::Lost,
            Some(_) => Hold::Fenced,
            None => Hold::Lost,
        }
    }

    pub(super) fn lease(&self, node: &str) -> u64 {
        self.nodes.get(node).copied().unwrap_or(0)
    }

    fn keep_queue_until(s: &mut Session, now: u64, expires: u64) {
        s.queue_ends = expires + ((expires - now) / 4).min(60_000);
    }

    pub(super) fn extend_queue(s: &mut Session, now: u64, expires: u64) {
        if s.queue_ends < expires {
            Self::keep_queue_until(s, now, expires);
        }
    }

    /// Whether the id was used within its window; it is from now on.
    pub(super) fn seen_before(&mut self, session: usize, id: &str, window: u64, own: bool) -> bool {
        let now = self.now;
        if own {
            if self.own_ids_end.is_none_or(|end| end < now + window) {
                self.own_ids_end = Some(now + 2 * window);
            }
            return !self.own_ids.insert(id.to_owned());
        }
        let known = &mut self.sessions[session].known;
        let old = known.contains_key(id);
        known.entry(id.to_owned()).or_insert(now + window);
        old
    }

    pub(super) fn forget_seen(&mut self, session: usize, id: &str, own: bool) {
        if own {
            self.own_ids.remove(id);
        } else {
            self.sessions[session].known.remove(id);
        }
    }

    /// The length. Who made it 1 has to index the session.
    pub(super) fn store(&mut self, session: usize, message: Message) -> usize {
        let now = self.now;
        let s = &mut self.sessions[session];
        let expires = message.expires;
        s.queue.push(message);
        if s.queue.len() > 1 {
            Self::extend_queue(s, now, expires);
        } else {
            Self::keep_queue_until(s, now, expires);
        }
        s.queue.len()
    }

    /// Sessions with their first records: each owner hears of all of its own in one doorbell.
    pub(super) fn index_and_ring(&mut self, firsts: &[(usize, String)]) {
        let mut bells: Vec<(String, Vec<String>)> = Vec::new();
        for (session, record) in firsts {
            let s = &mut self.sessions[*session];
            s.look_again = Some(self.now + LOOK_MS);
            let Some((node, _)) = s.owner.clone() else { continue };
            let sid = sid(*session);
            let bell = if record.len() <= HANDOFF { format!("{sid} {record}") } else { sid };
            match bells.iter_mut().find(|(known, _)| *known == node) {
                Some((_, all)) => all.push(bell),
                None => bells.push((node, vec![bell])),
            }
        }
        for (node, all) in bells {
            let several = || all.iter().map(|bell| format!("&{} {bell}", bell.len())).collect();
            let payload = if let [bell] = &all[..] { bell.clone() } else { several() };
            self.ring(&node, payload);
        }
    }

    pub(super) fn enqueue(&mut self, session: usize, message: Message) -> usize {
        let record = message.record();
        let n = self.store(session, message);
        if n == 1 {
            self.index_and_ring(&[(session, record)]);
        }
        n
    }

    /// An owner vanished: whatever it may have been given counts an attempt.
    pub(super) fn count_crash(&mut self, session: usize, lease: u64) {
        if let Some(head) = self.sessions[session].queue.first_mut()
            && head.enqueued < lease
        {
            let attempts = head.attempts + 1;
            head.fail(attempts, 0, "owner lost");
        }
    }

    pub(super) fn bury(&mut self, session: usize, message: Message, reason: &'static str) {
        let now = self.now;
        let s = &mut self.sessions[session];
        s.dead.push(Letter { died: now, reason, message });
        if s.dead.len() > DEAD_CAP {
            s.dead.remove(0);
        }
        s.dead_ends = now + DEAD_TTL_MS;
    }

    /// The head that may be delivered now, if there is one, and how long to wait if not.
    fn settle(&mut self, session: usize, order: Order) -> (bool, Next) {
        let mut next = Next { more: false, wait: 0, expired: 0, buried: 0, records: Vec::new() };
        let (now, mut rotated) = (self.now, 0);
        loop {
            let s = &mut self.sessions[session];
            let Some(head) = s.queue.first().cloned() else {
                next.wait = 0;
                return (false, next);
            };
            if head.expires <= now {
                s.queue.remove(0);
                next.expired += 1;
            } else if head.attempts >= MAX_ATTEMPTS {
                s.queue.remove(0);
                self.bury(session, head, "attempts");
                next.buried += 1;
            } else if head.not_before > now {
                let left = (head.not_before - now).min(head.expires - now);
                next.wait = if next.wait == 0 { left } else { next.wait.min(left) };
                if order == Order::Fifo {
                    return (false, next);
                }
                if rotated + 1 >= s.queue.len() {
                    next.wait = next.wait.min(100);
                    return (false, next);
                }
                s.queue.rotate_left(1);
                self.mixed = true;
                rotated += 1;
            } else {
                next.wait = 0;
                return (true, next);
            }
        }
    }

    /// What the owner gets, within what is left of the reply's budget.
    pub(super) fn next(&mut self, session: usize, order: Order, want: usize, budget: &mut i64) -> Next {
        let (ready, mut next) = self.settle(session, order);
        let now = self.now;
        let s = &mut self.sessions[session];
        if !ready {
            if next.wait == 0 {
                s.look_again = None;
            }
            return next;
        }
        if want == 0 {
            return next;
        }
        if *budget <= 0 {
            next.more = true;
            return next;
        }
        let mut bytes = 0;
        for message in &s.queue {
            if message.attempts >= MAX_ATTEMPTS || message.not_before > now {
                break;
            }
            if message.expires <= now {
                continue;
            }
            let size = message.record().len() as i64;
            if !next.records.is_empty() && bytes + size > *budget {
                break;
            }
            bytes += size;
            next.records.push(message.clone());
            if next.records.len() >= want {
                break;
            }
        }
        *budget -= bytes;
        next
    }

    /// Removes what was delivered, and expired messages between. How many of each, and whether nothing is left.
    pub(super) fn remove_delivered(&mut self, session: usize, receipts: &[String]) -> (u64, u64, bool) {
        let (mut acked, mut expired, mut at) = (0, 0, 0);
        let now = self.now;
        let queue = &mut self.sessions[session].queue;
        while at < receipts.len() {
            // One record more than there are receipts is looked at.
            let mut left = receipts.len() - at + 1;
            if queue.is_empty() {
                return (acked, expired, true);
            }
            while left > 0 && !queue.is_empty() {
                let receipt = queue[0].receipt();
                match receipts[at..].iter().position(|r| *r == receipt) {
                    Some(skip) => {
                        at += skip + 1;
                        acked += 1;
                    }
                    None if queue[0].expires <= now => expired += 1,
                    None => return (acked, expired, false),
                }
                queue.remove(0);
                left -= 1;
            }
            if left > 0 {
                return (acked, expired, true);
            }
        }
        (acked, expired, false)
    }

    pub(super) fn beat(&mut self, node: &str, lease: u64) -> bool {
        let known = self.nodes.insert(node.to_owned(), self.now + lease).is_some();
        self.nodes_end = self.now + HOUR_MS + lease;
        known
    }

    pub(super) fn forget_old_nodes(&mut self) {
        let before = self.now - HOUR_MS;
        self.nodes.retain(|_, deadline| *deadline > before);
    }
}
