//! What each call must answer, and what it changes in the model.

use super::super::support::Wire;
use super::drive::Owners;
use super::step::{Acked, Marking, Said, Step};
use super::world::{Hold, LOOK_MS, MAX_ATTEMPTS, Message, Next, World, sid};

pub(super) fn int(n: impl TryInto<i64>) -> Wire {
    Wire::Line(':', n.try_into().unwrap_or(i64::MAX).to_string())
}

pub(super) fn text(s: impl AsRef<[u8]>) -> Wire {
    Wire::Bulk(s.as_ref().to_vec())
}

pub(super) fn list(items: Vec<Wire>) -> Wire {
    Wire::Group('*', items)
}

fn denied(hold: Hold) -> Wire {
    list(vec![text(if hold == Hold::Fenced { "fenced" } else { "lost" })])
}

fn next_reply(acked: u64, expired: u64, next: &Next) -> Wire {
    let mut reply = vec![
        text(if next.more { "more" } else { "ok" }),
        int(next.wait),
        int(acked),
        int(expired + next.expired),
        int(next.buried),
    ];
    reply.extend(next.records.iter().map(|m| text(m.record())));
    list(reply)
}

fn answer(word: &str, pending: usize, dropped: usize) -> Wire {
    list(vec![text(word), int(pending as u64), int(dropped as u64)])
}

/// The coalescing key.
const KEY: &str = "k";

impl World {
    /// `None`: nothing is called.
    pub(super) fn reply(&mut self, step: &Step, owners: &Owners) -> Option<Wire> {
        Some(match step {
            Step::Wait(_) | Step::Crash(_) | Step::Deaf(_) | Step::LoseOwners | Step::LoseClaim(_) => {
                return None;
            }
            Step::Push { messages, marking } => self.push(messages, *marking),
            Step::Coalesce { message, marking } => self.coalesce(message, *marking),
            Step::Claim { owner, keep, sessions } => {
                let node = owners.name(*owner);
                list(sessions.iter().map(|&s| self.claim(s, &node, *keep)).collect())
            }
            Step::Pop { owner, order, sessions, want, budget } => {
                let node = owners.name(*owner);
                if let Some(deadline) = self.nodes.get_mut(&node) {
                    *deadline = self.now + 10_000;
                }
                let mut budget = i64::from(*budget);
                let one = |&s: &usize| {
                    let hold = self.hold(s, &node, owners.epoch(*owner, s));
                    if hold != Hold::Held {
                        return denied(hold);
                    }
                    let next = self.next(s, *order, usize::from(*want), &mut budget);
                    if !next.records.is_empty() || next.wait > 0 || next.more {
                        self.sessions[s].look_again = Some(self.now + LOOK_MS);
                    }
                    next_reply(0, 0, &next)
                };
                list(sessions.iter().map(one).collect())
            }
            Step::Ack { owner, order, budget, parts } => {
                let node = owners.name(*owner);
                let mut budget = i64::from(*budget);
                let one = |part: &Acked| {
                    let hold = self.hold(part.session, &node, owners.epoch(*owner, part.session));
                    if hold != Hold::Held {
                        return denied(hold);
                    }
                    let receipts = owners.receipts(*owner, part.session, part.receipts);
                    let (acked, expired, empty) = self.remove_delivered(part.session, &receipts);
                    if empty {
                        self.sessions[part.session].look_again = None;
                        if expired == 0 && acked == receipts.len() as u64 {
                            return int(acked);
                        }
                        let nothing =
                            Next { more: false, wait: 0, expired: 0, buried: 0, records: Vec::new() };
                        return next_reply(acked, expired, &nothing);
                    }
                    let next = self.next(part.session, *order, usize::from(part.want), &mut budget);
                    next_reply(acked, expired, &next)
                };
                list(parts.iter().map(one).collect())
            }
            Step::Requeue { .. } => self.requeue(step, owners),
            Step::Release { owner, sessions } => {
                let node = owners.name(*owner);
                let one = |&s: &usize| match self.hold(s, &node, owners.epoch(*owner, s)) {
                    Hold::Held => {
                        self.sessions[s].owner = None;
                        text("released")
                    }
                    Hold::Fenced => text("fenced"),
                    Hold::Lost => text("lost"),
                };
                list(sessions.iter().map(one).collect())
            }
            Step::Heartbeat { owner, lease, session } => {
                let node = owners.name(*owner);
                let hold = match self.hold(*session, &node, owners.epoch(*owner, *session)) {
                    Hold::Held => "held",
                    Hold::Fenced => "fenced",
                    Hold::Lost => "lost",
                };
                let known = self.beat(&node, u64::from(*lease));
                let heard = self.ring(&node, "!7".into());
                list(vec![int(u8::from(known)), int(heard), int(self.now), list(vec![text(hold)])])
            }
            Step::Leave { owner } => {
                list(vec![int(u8::from(self.nodes.remove(&owners.name(*owner)).is_some()))])
            }
            Step::Sweep { limit, grace } => self.sweep(usize::from(*limit), u64::from(*grace)),
            Step::Tidy { sessions } => {
                let mut expired = 0;
                for &s in sessions {
                    let now = self.now;
                    let s = &mut self.sessions[s];
                    let dropped = s.queue.iter().take_while(|m| m.expires <= now).count();
                    s.queue.drain(..dropped);
                    expired += dropped;
                    if s.queue.is_empty() {
                        s.look_again = None;
                    }
                }
                list(vec![int(expired as u64)])
            }
            Step::Reap { grace } => {
                let mut reaped = 0_u64;
                for (session, (node, epoch)) in &owners.found {
                    let lease = self.lease(node);
                    if self.sessions[*session].owner.as_ref() == Some(&(node.clone(), *epoch))
                        && lease + u64::from(*grace) < self.now
                    {
                        self.sessions[*session].owner = None;
                        self.count_crash(*session, lease);
                        reaped += 1;
                    }
                }
                list(vec![int(reaped)])
            }
            Step::Stats { sessions } => list(sessions.iter().map(|&s| self.stats(s)).collect()),
            Step::Overview { offset, limit } => self.overview(usize::from(*offset), usize::from(*limit)),
            Step::DeadList { session, offset, limit } => {
                let dead = &self.sessions[*session].dead;
                let page = dead.iter().skip(usize::from(*offset)).take(usize::from(*limit));
                let mut reply = vec![int(dead.len() as u64)];
                reply.extend(page.map(|letter| text(letter.entry())));
                list(reply)
            }
            Step::DeadRequeue { .. } => self.dead_requeue(step),
            Step::DeadPurge { session, id } => {
                let dead = &mut self.sessions[*session].dead;
                let before = dead.len();
                dead.retain(|l| id.is_some_and(|id| l.message.id != name(id)));
                list(vec![int((before - dead.len()) as u64), int(dead.len() as u64)])
            }
        })
    }

    fn push(&mut self, messages: &[Said], marking: Marking) -> Wire {
        let options = |said: &Said| (said.ttl, said.most, said.drop_oldest);
        let window = u64::from(marking.dedupe);
        let (mut known, mut marked, mut firsts) = (vec![None; messages.len()], 0, Vec::new());
        let mut reply = Vec::new();
        for (n, said) in messages.iter().enumerate() {
            let seen = |world: &mut Self, said: &Said| {
                world.seen_before(said.session, &name(said.id), window, marking.own_id)
            };
            if window > 0 && marking.own_id && n >= marked {
                // Ids of one block are marked together, before the first of them is stored.
                let run = messages[n..].iter().take_while(|m| options(m) == options(said)).count();
                marked = n + run;
                if run > 1 {
                    (n..marked).for_each(|m| known[m] = Some(seen(self, &messages[m])));
                }
            }
            if window > 0 && known[n].unwrap_or_else(|| seen(self, said)) {
                reply.push(answer("duplicate", self.sessions[said.session].queue.len(), 0));
                continue;
            }
            let (told, first) = self.store_message(said, "", marking);
            reply.push(told);
            firsts.extend(first.map(|record| (said.session, record)));
        }
        self.index_and_ring(&firsts);
        list(reply)
    }

    fn coalesce(&mut self, said: &Said, marking: Marking) -> Wire {
        let pending = self.sessions[said.session].queue.len();
        // Never the head: it may be on its way.
        let slot = (1..pending).find(|&at| self.sessions[said.session].queue[at].coalesce == KEY);
        let window = u64::from(marking.dedupe);
        if window > 0 && self.seen_before(said.session, &name(said.id), window, marking.own_id) {
            return answer("duplicate", pending, 0);
        }
        let Some(at) = slot else {
            let (told, first) = self.store_message(said, KEY, marking);
            if let Some(record) = first {
                self.index_and_ring(&[(said.session, record)]);
            }
            return told;
        };
        let message = self.message(said, KEY, marking, self.now);
        self.mixed = true;
        let now = self.now;
        let s = &mut self.sessions[said.session];
        Self::extend_queue(s, now, message.expires);
        s.queue[at] = message;
        answer("coalesced", pending, 0)
    }

    fn message(&self, said: &Said, key: &str, marking: Marking, enqueued: u64) -> Message {
        Message {
            id: name(said.id),
            coalesce: key.to_owned(),
            body: said.body(),
            enqueued,
            expires: self.now + u64::from(said.ttl),
            attempts: 0,
            not_before: 0,
            first: String::new(),
            last: String::new(),
            windowed: marking.dedupe > 0,
        }
    }

    /// What is answered, and the record when it is the first of its queue.
    fn store_message(&mut self, said: &Said, key: &str, marking: Marking) -> (Wire, Option<String>) {
        let (now, most) = (self.now, usize::from(said.most));
        let queue = &self.sessions[said.session].queue;
        let (pending, last) = (queue.len(), queue.last().map(|m| m.enqueued));
        // A receipt is time and id: two messages with one id never share it.
        let clash = last.filter(|at| marking.dedupe == 0 && *at >= now && *at < now + 60_000);
        let message = self.message(said, key, marking, clash.map_or(now, |at| at + 1));
        self.mixed |= message.windowed && last.is_some_and(|last| last >= now);
        if pending >= most && !said.drop_oldest {
            if marking.dedupe > 0 {
                self.forget_seen(said.session, &name(said.id), marking.own_id);
            }
            return (answer("full", pending, 0), None);
        }
        let record = message.record();
        let n = self.store(said.session, message);
        if n <= most {
            return (int(n as u64), (n == 1).then_some(record));
        }
        self.sessions[said.session].queue.drain(..n - most);
        (answer("queued", most, n - most), None)
    }

    fn claim(&mut self, session: usize, node: &str, keep: bool) -> Wire {
        let old = self.sessions[session].owner.clone();
        let other = old.as_ref().map(|(n, _)| n.clone()).filter(|n| n != node);
        if keep && other.is_some() {
            return list(vec![text("fenced")]);
        }
        let pending = self.sessions[session].queue.len();
        let epoch = self.now.max(old.map_or(0, |(_, e)| e) + 1);
        self.sessions[session].owner = Some((node.to_owned(), epoch));
        if let Some(other) = other {
            let lease = self.lease(&other);
            let alive = self.ring(&other, sid(session)) > 0;
            if !alive {
                self.count_crash(session, lease);
            }
        }
        list(vec![text("claimed"), int(epoch), int(pending as u64)])
    }

    fn requeue(&mut self, step: &Step, owners: &Owners) -> Wire {
        let Step::Requeue { owner, order, session, attempt, max, delay } = step else {
            unreachable!("called for a requeue")
        };
        let hold = self.hold(*session, &owners.name(*owner), owners.epoch(*owner, *session));
        if hold != Hold::Held {
            return denied(hold);
        }
        let receipt = owners.receipts(*owner, *session, 1).pop().unwrap_or_default();
        let now = self.now;
        let s = &mut self.sessions[*session];
        if s.queue.first().is_none_or(|head| head.receipt() != receipt) {
            return list(vec![text("unknown")]);
        }
        let mut head = s.queue.remove(0);
        let attempts = head.attempts.max(u32::from(*attempt));
        let over = head.expires <= now;
        if over || attempts >= u32::from(*max) {
            if s.queue.is_empty() {
                s.look_again = None;
            }
            if over {
                return list(vec![text("expired")]);
            }
            head.fail(attempts, 0, "why");
            self.bury(*session, head, if *max == 0 { "rejected" } else { "attempts" });
            return list(vec![text("dead"), int(attempts)]);
        }
        head.fail(attempts, now + u64::from(*delay), "why");
        let tail = *order == super::step::Order::Tail;
        self.mixed |= tail;
        let at = if tail { s.queue.len() } else { 0 };
        s.queue.insert(at, head);
        list(vec![text("requeued"), int(attempts), int(*delay)])
    }

    fn sweep(&mut self, limit: usize, grace: u64) -> Wire {
        let mut due: Vec<(u64, usize)> = (0..self.sessions.len())
            .filter_map(|s| Some((self.sessions[s].look_again.filter(|at| *at <= self.now)?, s)))
            .collect();
        due.sort();
        let mut gone = Vec::new();
        for s in 0..self.sessions.len() {
            if let Some((node, epoch)) = self.sessions[s].owner.clone()
                && self.nodes.get(&node).is_none_or(|deadline| deadline + grace < self.now)
            {
                gone.push(text(sid(s)));
                gone.push(text(format!("{node}:{epoch}")));
            }
        }
        self.forget_old_nodes();
        let (mut rung, mut unheard) = (0_u64, Vec::new());
        for (_, s) in due.into_iter().take(limit) {
            let owner = self.sessions[s].owner.clone();
            let again = LOOK_MS * if owner.is_some() { 1 } else { 30 };
            self.sessions[s].look_again = Some(self.now + again);
            let heard = owner.map_or(0, |(node, _)| self.ring(&node, format!("?{}", sid(s))));
            rung += heard;
            if heard == 0 {
                unheard.push(text(sid(s)));
            }
        }
        list(vec![int(rung), text("0"), list(unheard), list(gone)])
    }

    fn stats(&self, session: usize) -> Wire {
        let (now, s) = (self.now, &self.sessions[session]);
        let head = s.queue.first();
        let owner = s.owner.as_ref().map_or(String::new(), |(node, epoch)| format!("{node}:{epoch}"));
        let lease = s.owner.as_ref().and_then(|(node, _)| self.nodes.get(node)).copied().unwrap_or(now);
        list(vec![
            int(s.queue.len() as u64),
            int(head.map_or(0, |m| now.saturating_sub(m.enqueued))),
            int(head.map_or(0, |m| m.attempts)),
            int(head.map_or(0, |m| m.not_before.saturating_sub(now).min(86_400_000))),
            int(s.dead.len() as u64),
            int(s.dead.first().map_or(0, |l| now - l.died)),
            text(owner),
            int(lease as i64 - now as i64),
        ])
    }

    fn overview(&self, offset: usize, limit: usize) -> Wire {
        let mut waiting: Vec<(u64, usize)> =
            (0..self.sessions.len()).filter_map(|s| Some((self.sessions[s].look_again?, s))).collect();
        waiting.sort();
        let mut nodes: Vec<(u64, &String)> = self.nodes.iter().map(|(n, at)| (*at, n)).collect();
        nodes.sort();
        list(vec![
            int(self.sessions.iter().filter(|s| s.owner.is_some()).count() as u64),
            int(waiting.len() as u64),
            list(waiting.iter().skip(offset).take(limit).map(|(_, s)| text(sid(*s))).collect()),
            list(nodes.iter().flat_map(|(at, n)| [text(n), int(*at as i64 - self.now as i64)]).collect()),
        ])
    }

    fn dead_requeue(&mut self, step: &Step) -> Wire {
        let Step::DeadRequeue { session, id, ttl, most, limit } = step else {
            unreachable!("called for a dead_requeue")
        };
        let (mut at, mut count, mut word) = (0, 0_u64, "requeued");
        let last = self.sessions[*session].queue.last().map_or(0, |m| m.enqueued);
        let mut taken = if last < self.now + 60_000 { last } else { 0 };
        while count < u64::from(*limit) && at < self.sessions[*session].dead.len() {
            let s = &mut self.sessions[*session];
            if id.is_some_and(|id| s.dead[at].message.id != name(id)) {
                at += 1;
                continue;
            }
            if s.queue.len() >= usize::from(*most) {
                word = "full";
                break;
            }
            let mut message = s.dead.remove(at).message;
            taken = self.now.max(taken + 1);
            (message.enqueued, message.expires) = (taken, self.now + u64::from(*ttl));
            (message.attempts, message.not_before, message.windowed) = (0, 0, false);
            (message.first, message.last) = (String::new(), String::new());
            self.enqueue(*session, message);
            count += 1;
        }
        list(vec![text(word), int(count), int(self.sessions[*session].dead.len() as u64)])
    }
}

pub(super) fn name(id: u8) -> String {
    format!("i{id}")
}

/// How many attempts a message has: the scripts are told, the model has it as a constant.
pub(super) const ATTEMPTS: u32 = MAX_ATTEMPTS;
