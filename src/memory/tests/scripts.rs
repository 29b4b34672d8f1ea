//! Our scripts, all of them, called at random on the engine and on a real server: every reply, every doorbell and the
//! final state compared.
//!
//! Both run by one clock, held in a key and moved by the test, so that every time in a reply or a record is the same on
//! both sides to the millisecond.

mod tasks;

use super::support::{Pair, Raw, Wire, seeded};
use crate::script::Script;
use fastrand::Rng;
use std::collections::{BTreeMap, VecDeque};

const CALLS: usize = 36_000;
/// And at most so many.
const MOST_CALLS: usize = 600_000;
/// Unix milliseconds far off: no key of the test expires by the servers' own clocks.
const START_MS: u64 = 4_000_000_000_000;
const NODES: [&str; 3] = ["na", "nb", "nc"];
/// The last two have a foreign type in the way, one at its records, one at its dead letters.
const SIDS: [&str; 8] = ["s0", "s1", "s2", "s3", "%00%7B", "\u{fc}", "foreign", "foreign-dead"];
/// Questions of a session.
const RIDS: [&str; 4] = ["r0", "r1", "r2", "%7B"];
const INBOX: &str = "ib:";
/// Times to live that outlast the test, which the servers' own clocks count.
const LIVES: [&str; 2] = ["1000000", "9000000"];

/// What a script reads of the servers' clocks, and from where it reads it here.
const CLOCK: [(&str, &str); 3] = [
    ("redis.call('TIME')", "redis.call('HMGET', 'clock', 's', 'us')"),
    ("now + redis.call('PTTL', q)", "redis.call('PEXPIRETIME', q)"),
    ("redis.call('PTTL', d)", "-1"),
];

/// Answers that a run must have seen; it goes on for longer until it has.
const EXPECTED: &[&str] = &[
    "push queued",
    "push stored",
    "coalesce coalesced",
    "push duplicate",
    "push full",
    "push error",
    "pop ok+",
    "pop more",
    "pop fenced",
    "pop lost",
    "pop error",
    "ack ok+",
    "ack acked",
    "ack fenced",
    "requeue requeued",
    "requeue dead",
    "requeue expired",
    "requeue unknown",
    "requeue fenced",
    "fastmcp_put put",
    "fastmcp_put duplicate",
    "fastmcp_answer given",
    "fastmcp_answer late",
    "claim claimed",
    "claim fenced",
    "release released",
    "dead_requeue requeued",
    "dead_requeue full",
    "dead_list -WRONGTYPE",
    "session_load state",
    "session_load unknown",
    "session_drop dropped",
    "event_append known",
    "event_open unknown",
    "event_read events",
    "event_read shadow",
    "event_close closed",
    "mail_send sent",
    "mail_send gone",
    "mail_send full",
    "question_ask asked",
    "question_ask known",
    "question_ask other",
    "question_ask full",
    "question_ask -WRONGTYPE",
    "question_wait open",
    "question_wait done",
    "question_wait more",
    "question_wait unknown",
    "question_wait error",
    "question_answer answered",
    "question_answer second",
    "question_answer late",
    "question_answer closed",
    "question_answer scope",
    "question_answer unknown",
    "question_close closed",
    "question_close done",
    "question_close fenced",
    "question_close error",
    "question_get open",
    "question_get done",
    "question_get error",
    "task_create created",
    "task_create exists",
    "task_create full",
    "task_create -WRONGTYPE",
    "task_get task",
    "task_get none",
    "task_update ok",
    "task_cancel finished",
    "task_cancel cancelled",
    "task_cancel asked",
    "task_retry again",
    "task_retry none",
    "task_retry queued",
    "task_retry refused",
    "task_tell tell",
    "task_tell other",
    "task_tell done",
    "leg_take leg",
    "leg_take busy",
    "leg_take gone",
    "leg_take settled",
    "leg_renew held",
    "leg_renew fenced",
    "leg_done done",
    "leg_done fenced",
    "leg_park parked",
    "leg_park cancelled",
    "leg_park reused",
    "leg_return returned",
    "leg_return failed",
    "leg_return cancelled",
    "leg_ask open",
    "leg_ask answered",
    "leg_ask full",
    "leg_say said",
];

/// What a worker and the owners would remember.
#[derive(Default)]
struct Model {
    epochs: BTreeMap<(String, String), String>,
    delivered: BTreeMap<String, VecDeque<Vec<u8>>>,
    found: Vec<(Vec<u8>, Vec<u8>)>,
    /// Ids in the bridge's lists, by key.
    taken: BTreeMap<String, VecDeque<String>>,
    cursor: Vec<u8>,
    pushed: usize,
    made: usize,
    leases: BTreeMap<String, Vec<u8>>,
    next: Vec<String>,
    /// Of the newest event.
    number: u64,
    /// The newest one that was taken.
    letter: Option<Vec<u8>>,
}

struct Call<'a> {
    rng: &'a mut Rng,
    model: &'a Model,
    keys: Vec<Vec<u8>>,
    args: Vec<Vec<u8>>,
    sids: Vec<&'static str>,
    addresses: Vec<String>,
}

impl Call<'_> {
    fn one(&mut self, of: &[&'static str]) -> &'static str {
        of[self.rng.usize(..of.len())]
    }

    fn keys(&mut self, names: &[&str]) {
        self.keys.extend(names.iter().map(|name| format!("{{0}}:{name}").into_bytes()));
    }

    fn args(&mut self, values: &[&str]) {
        self.args.extend(values.iter().map(|value| value.as_bytes().to_vec()));
    }

    /// A session; its records' key, and with `dead` its dead letters' key.
    fn session(&mut self, dead: bool) -> &'static str {
        let sid = if self.rng.u8(..10) == 0 { self.one(&SIDS[6..]) } else { self.one(&SIDS[..6]) };
        self.keys(&[&format!("q:{sid}")]);
        if dead {
            self.keys(&[&format!("dead:{sid}")]);
        }
        self.sids.push(sid);
        sid
    }

    /// The epoch of the node's claim; now and then a wrong one.
    fn epoch(&mut self, node: &str, sid: &str) -> String {
        let known = self.model.epochs.get(&(node.to_owned(), sid.to_owned()));
        match known.filter(|_| self.rng.u8(..15) > 0) {
            Some(epoch) => epoch.clone(),
            None => self.rng.u8(..4).to_string(),
        }
    }

    /// A node that owns the session, if one does.
    fn owner(&mut self, sid: &str) -> &'static str {
        let owners: Vec<&str> = NODES
            .into_iter()
            .filter(|node| self.model.epochs.contains_key(&((*node).to_owned(), sid.to_owned())))
            .collect();
        if owners.is_empty() || self.rng.u8(..10) == 0 { self.one(&NODES) } else { self.one(&owners) }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = match self.rng.u8(..20) {
            0 => 0,
            1 => 3000,
            _ => self.rng.usize(..200),
        };
        (0..length).map(|_| self.rng.u8(..)).collect()
    }

    /// A receipt of what was delivered, or a wrong one.
    fn receipt(&mut self, sid: &str) -> Vec<u8> {
        let known = self.model.delivered.get(sid).and_then(VecDeque::front);
        match known.filter(|_| self.rng.u8(..10) > 0) {
            Some(receipt) => receipt.clone(),
            None => format!("i{}", self.rng.u8(..60)).into_bytes(),
        }
    }

    fn count(&mut self) -> usize {
        self.rng.usize(1..4)
    }

    fn fill(&mut self, script: &str) {
        match script {
            "push" => self.push(),
            "coalesce" => self.coalesce(),
            "pop" => self.pop(),
            "ack" => self.ack(),
            "requeue" => self.requeue(),
            "claim" => {
                self.keys(&["s", "n"]);
                let (node, mode) = (self.one(&NODES), self.one(&["take", "keep"]));
                self.args(&[node, mode, INBOX, "PUBLISH"]);
                for _ in 0..self.count() {
                    let sid = self.session(false);
                    self.args(&[sid]);
                }
            }
            "release" => {
                self.keys(&["s"]);
                let sid = self.one(&SIDS);
                let node = self.owner(sid);
                self.args(&[node]);
                for sid in [sid, self.one(&SIDS)] {
                    let epoch = self.epoch(node, sid);
                    self.sids.push(sid);
                    self.args(&[sid, &epoch]);
                }
            }
            "leave" => {
                self.keys(&["n"]);
                let node = self.one(&NODES);
                self.args(&[node]);
            }
            "heartbeat" => {
                self.keys(&["s", "n"]);
                let sid = self.one(&["s0", "s1", "s2", ""]);
                let node = self.owner(sid);
                let epoch = self.epoch(node, sid);
                let lease = self.one(&["1", "3000", "60000"]);
                self.args(&[node, lease, INBOX, "PUBLISH", "7"]);
                if !sid.is_empty() {
                    self.args(&[sid, &epoch]);
                }
            }
            "sweep" => {
                self.keys(&["s", "w", "n"]);
                let (look, limit) = (self.one(&["1", "2000"]), self.one(&["1", "100"]));
                let (grace, ration) = (self.one(&["1", "10000"]), self.one(&["1", "100"]));
                self.args(&[look, limit, INBOX, "PUBLISH", grace]);
                self.args.push(if self.model.cursor.is_empty() {
                    b"0".to_vec()
                } else {
                    self.model.cursor.clone()
                });
                self.args(&[ration]);
            }
            "tidy" => {
                self.keys(&["w"]);
                for _ in 0..self.count() {
                    let sid = self.session(false);
                    self.args(&[sid]);
                }
            }
            "reap" => {
                self.keys(&["s", "n"]);
                let grace = self.one(&["1", "10000"]);
                self.args(&[grace]);
                for (sid, token) in self.model.found.iter().take(3) {
                    self.keys.push([b"{0}:q:", &sid[..]].concat());
                    self.args.extend([sid.clone(), token.clone()]);
                }
            }
            "stats" => {
                self.keys(&["s", "n"]);
                for _ in 0..self.count() {
                    let sid = self.session(true);
                    self.args(&[sid]);
                }
            }
            "overview" => {
                self.keys(&["s", "w", "n"]);
                let (offset, limit) = (self.one(&["0", "2"]), self.one(&["3", "100"]));
                self.args(&[offset, limit]);
            }
            "layout" => {
                self.keys(&["p"]);
                let partitions = self.one(&["1", "64"]);
                self.args(&[partitions, "34560000000"]);
            }
            "probe" => {
                self.keys(&["probe"]);
                self.args(&["probe", "PUBLISH"]);
                for _ in 0..self.count() {
                    let command =
                        self.one(&["set", "rpush", "hset", "zadd", "lmove", "publish", "hscan", "what"]);
                    self.args(&[command]);
                }
            }
            "touch" => {
                let (sid, id) = (self.one(&SIDS), self.one(&["i1", "i2", "i3", "i4", "i5", "i6", "i7"]));
                self.keys(&[&format!("d:{sid}:{id}")]);
                self.args(&[]);
            }
            "dead_list" => {
                let sid = self.one(&SIDS);
                self.keys(&[&format!("dead:{sid}")]);
                let (offset, limit) = (self.one(&["0", "1"]), self.one(&["2", "100"]));
                self.args(&[offset, limit]);
            }
            "dead_purge" => {
                let sid = self.one(&SIDS);
                self.keys(&[&format!("dead:{sid}")]);
                let id = self.one(&["", "i1", "i2", "i3", "i4", "i5", "i6", "i7"]);
                self.args(&[id]);
            }
            "dead_requeue" => {
                self.keys(&["s", "w"]);
                let sid = self.session(true);
                let id = self.one(&["", "i1", "i2", "i3", "i4"]);
                let (ttl, max, limit) =
                    (self.one(&["5", "5000"]), self.one(&["2", "100"]), self.one(&["1", "20"]));
                self.args(&[sid, id, ttl, max, limit, "2000", INBOX, "PUBLISH", "16384"]);
            }
            "session_save" => {
                let sid = self.one(&SIDS);
                self.keys(&[&format!("ms:{sid}")]);
                let state = self.bytes();
                self.args.push(state);
                let ttl = self.one(&LIVES);
                self.args(&[ttl]);
            }
            "session_load" => {
                let sid = self.one(&SIDS);
                self.keys(&[&format!("ms:{sid}")]);
                let ttl = self.one(&LIVES);
                self.args(&[ttl]);
            }
            "session_drop" => {
                let sid = self.one(&SIDS);
                self.keys(&["s", &format!("ms:{sid}")]);
                self.log(true);
                self.args(&[sid, INBOX, "PUBLISH"]);
            }
            "session_watch" => {
                self.keys(&["s", "n"]);
                let (session_ttl, event_ttl) = (self.one(&LIVES), self.one(&LIVES));
                let publish = self.one(&["", "PUBLISH"]);
                self.args(&[session_ttl, event_ttl, INBOX, publish]);
                for _ in 0..self.count() {
                    let sid = self.one(&SIDS);
                    self.keys(&[&format!("ms:{sid}")]);
                    self.log(true);
                    let token = self.one(&["", "na.1:1", "nb.1:2"]);
                    self.args(&[sid, token]);
                }
            }
            "event_append" => {
                let log = self.log(true);
                self.args(&[log]);
                let event = self.bytes();
                self.args.push(event);
                let (nonce, writer) = (self.rng.u8(..10).to_string(), self.one(&["na.1", "nb.1"]));
                let (ttl, most) = (self.one(&LIVES), self.one(&["1", "5", "1000"]));
                let (bytes, handoff) = (self.one(&["1", "500", "100000"]), self.one(&["0", "16384"]));
                self.args(&[&nonce, writer, ttl, most, bytes, INBOX, "PUBLISH", handoff]);
            }
            "event_open" => {
                self.log(false);
                let (token, must) = (self.one(&["na.1:1", "nb.1:2"]), self.one(&["0", "1"]));
                let ttl = self.one(&LIVES);
                self.args(&[token, must, ttl]);
            }
            "event_read" => {
                self.log(true);
                let (token, after) = (self.one(&["na.1:1", "nb.1:2"]), self.number());
                let (limit, bytes) = (self.one(&["1", "9", "64"]), self.one(&["1", "300", "100000"]));
                self.args(&[token, &after, limit, bytes]);
            }
            "event_close" => {
                self.log(false);
                let (token, after) = (self.one(&["na.1:1", "nb.1:2"]), self.number());
                self.args(&[token, &after]);
            }
            "mail_send" => {
                let node = self.one(&NODES);
                self.keys(&[&format!("mi:{node}.1"), "n"]);
                self.args(&[node]);
                let letter = self.bytes();
                self.args.push(letter);
                let (ttl, limit) = (self.one(&LIVES), self.one(&["1", "100"]));
                self.args(&[ttl, limit, INBOX, "PUBLISH"]);
            }
            "mail_take" => {
                let node = self.one(&NODES);
                self.keys(&[&format!("mi:{node}.1")]);
                let limit = self.one(&["1", "64"]);
                self.args(&[limit]);
                if let Some(letter) = self.model.letter.clone() {
                    self.args.push(letter);
                }
            }
            "question_ask" => self.question_ask(),
            "question_wait" => {
                self.keys(&["s", "n"]);
                let (node, budget) = (self.one(&NODES), self.one(&["0", "20", "100000"]));
                self.args(&[node, budget]);
                for _ in 0..self.count() {
                    self.question();
                }
            }
            "question_answer" => {
                self.keys(&["s"]);
                self.question();
                let (scope, outcome) = (self.one(&["", "", "alice"]), self.one(&["accepted", "declined"]));
                let (content, by) = (self.one(&["", "{\"a\":[]}"]), self.one(&["b1", "b2"]));
                self.args(&[scope, outcome, content, by, INBOX, "PUBLISH"]);
            }
            "question_close" => {
                self.keys(&["s"]);
                let sid = self.one(&SIDS[..6]);
                let node = self.owner(sid);
                let token = format!("{node}:{}", self.epoch(node, sid));
                let token = if self.rng.bool() { "" } else { &token };
                let outcome = self.one(&["cancelled", "session_gone"]);
                self.args(&[outcome, "why", token, INBOX, "PUBLISH"]);
                for _ in 0..self.count() {
                    self.question();
                }
            }
            "question_get" => {
                let (tell, budget) = (self.one(&["yes", "no"]), self.one(&["0", "20", "100000"]));
                self.args(&[tell, budget]);
                for _ in 0..self.count() {
                    let (sid, rid) = (self.one(&SIDS), self.one(&RIDS));
                    self.keys(&[&format!("e:{sid}:{rid}")]);
                }
            }
            "question_list" => {
                let (offset, limit) = (self.one(&["0", "1"]), self.one(&["0", "2", "100"]));
                self.args(&[offset, limit]);
                for _ in 0..self.count() {
                    let sid = self.one(&SIDS);
                    self.keys(&[&format!("eo:{sid}")]);
                }
            }
            name if name.starts_with("task_") || name.starts_with("leg_") => self.tasks(name),
            bridge if bridge.starts_with("fastmcp_") => self.fastmcp(bridge),
            topic if topic.starts_with("topic_") => self.topic(topic),
            other => panic!("no random calls for the script {other}: add them here"),
        }
    }

    /// The keys of an event log: with its events, or its facts alone.
    fn log(&mut self, whole: bool) -> &'static str {
        let log = self.one(&["l0", "l1"]);
        if whole {
            self.keys(&[&format!("me:{log}")]);
        }
        self.keys(&[&format!("mf:{log}")]);
        log
    }

    /// The number of an event, or of none.
    fn number(&mut self) -> String {
        match self.model.number {
            0 => "0".to_owned(),
            number => number.saturating_sub(self.rng.u64(..6)).to_string(),
        }
    }

    fn push(&mut self) {
        self.keys(&["s", "w"]);
        let handoff = self.one(&["100", "16384"]);
        self.args(&["2000", INBOX, "PUBLISH", handoff]);
        for at in 0..self.count() {
            let sid = self.session(false);
            let (bit, options, trace) = self.message(sid, at);
            self.args(&[bit, &options.join(" "), trace]);
        }
    }

    fn coalesce(&mut self) {
        let sid = self.session(false);
        self.keys(&["s", "w"]);
        let (bit, [ttl, dedupe, max, policy], trace) = self.message(sid, 0);
        self.args(&[ttl, dedupe, bit, max, policy, trace]);
        let (handoff, key) = (self.one(&["100", "16384"]), self.one(&["c1", "c2"]));
        self.args(&["2000", INBOX, "PUBLISH", handoff, key]);
    }

    /// Id and body, as the call's next arguments; bit, options and trace context.
    fn message(&mut self, sid: &str, at: usize) -> (&'static str, [&'static str; 4], &'static str) {
        let id = format!("i{}", (self.model.pushed + at) % 60);
        let bit = self.one(&["", "", "0", "7", "8", "300"]);
        let mark = if bit.is_empty() { format!("d:{sid}:{id}") } else { "b:na:0".into() };
        self.keys(&[&mark]);
        self.args(&[sid, &id]);
        let body = self.bytes();
        self.args.push(body);
        let ttl = self.one(&["1", "50", "3000", "600000", "600000"]);
        let (dedupe, max) = (self.one(&["0", "0", "1000000"]), self.one(&["3", "12", "1000"]));
        let (policy, trace) = (self.one(&["refuse", "drop_oldest"]), self.one(&["", "00-trace-01"]));
        (bit, [ttl, dedupe, max, policy], trace)
    }

    /// A question's keys, and its two names as arguments.
    fn question(&mut self) {
        let sid = if self.rng.u8(..10) == 0 { self.one(&SIDS[6..]) } else { self.one(&SIDS[..6]) };
        let rid = self.one(&RIDS);
        self.keys(&[&format!("e:{sid}:{rid}"), &format!("eo:{sid}")]);
        self.args(&[sid, rid]);
    }

    fn question_ask(&mut self) {
        let sid = self.session(false);
        let rid = self.one(&RIDS);
        self.keys(&["s", "w", &format!("e:{sid}:{rid}"), &format!("eo:{sid}")]);
        self.args(&[sid, rid, &format!("ask:{rid}")]);
        let body = self.bytes();
        self.args.push(body);
        let (timeout, grace) = (self.one(&["1", "3000", "600000"]), self.one(&["0", "10000"]));
        let (max, kind) = (self.one(&["3", "1000"]), self.one(&["elicitation", "roots"]));
        let (request, scope, node) =
            (self.one(&["{}", "{\"a\":[]}"]), self.one(&["", "", "alice"]), self.one(&NODES));
        self.args(&[timeout, grace, "1000000", max, kind, request, "t", scope, node]);
        let handoff = self.one(&["100", "16384"]);
        self.args(&["2000", INBOX, "PUBLISH", handoff]);
    }

    /// Two topics, one with a foreign type in the way of its sessions; and `extra` arguments for each.
    fn topics(&mut self, kind: &str, extra: &[&str]) {
        for _ in 0..self.count() {
            let topic = self.one(&["t0", "t0", "t1", "t1", "foreign"]);
            self.keys(&[&format!("{kind}:{topic}")]);
            if !extra.is_empty() {
                self.args(&[topic]);
                self.args(&extra[1..]);
            }
        }
    }

    fn topic(&mut self, script: &str) {
        // Keys live four times as long by the real clock: longer than this test.
        let keep = self.one(&["200000", "400000"]);
        match script {
            "topic_join" => {
                let sid = self.one(&SIDS);
                self.keys(&["t"]);
                self.args(&[sid, keep]);
                self.topics("m", &["topic"]);
            }
            "topic_leave" => {
                let (kind, member) =
                    if self.rng.bool() { ("m", self.one(&SIDS)) } else { ("l", self.one(&NODES)) };
                self.topics(kind, &[]);
                self.args(&[member]);
            }
            "topic_members" => {
                let topic = self.one(&["t0", "t1", "t2", "foreign"]);
                self.keys(&[&format!("m:{topic}"), "s"]);
                self.args(&["0", "10"]);
            }
            "topic_due" => {
                self.keys(&["t"]);
                let limit = self.one(&["1", "10"]);
                self.args(&[keep, limit]);
            }
            "topic_tidy" => {
                self.keys(&["s", "t"]);
                self.args(&[keep, "10"]);
                self.topics("m", &["topic", "0"]);
            }
            "topic_listen" => {
                let node = self.one(&NODES);
                self.topics("l", &[]);
                self.args(&[node, "1000000"]);
            }
            "topic_ring" => {
                let topic = self.one(&["t0", "t1", "t2"]);
                self.keys(&[&format!("l:{topic}"), "n"]);
                self.args(&[INBOX, "PUBLISH", "@topic h t0  body"]);
            }
            other => panic!("no random calls for the script {other}: add them here"),
        }
    }

    fn fastmcp(&mut self, script: &str) {
        match script {
            "fastmcp_take" => {
                for _ in 0..self.count() {
                    let session = self.one(&["s0", "s1", "foreign"]);
                    self.keys(&[&format!("f:{session}"), &format!("taken:{session}")]);
                }
                let (stamp, want) = (format!("c{}", self.rng.u16(..)), self.one(&["1", "3", "10"]));
                self.args(&[&stamp, want, "300000", "1000000"]);
            }
            "fastmcp_done" => {
                for _ in 0..self.count() {
                    let list = self.one(&["taken:s0", "taken:s1", "q:foreign"]);
                    let known = self.model.taken.get(&format!("{{0}}:{list}")).and_then(VecDeque::front);
                    let id = known.cloned().unwrap_or_else(|| "c1:1".to_owned());
                    self.keys(&[list]);
                    self.args(&[&id]);
                }
            }
            "fastmcp_put" => {
                let (list, known) = (self.one(&["put:s0", "put:s1", "q:foreign"]), self.rng.u8(..20));
                self.keys(&[list, &format!("known:{known}")]);
                let text = self.bytes();
                self.args.push(text);
                self.args(&["1000000", "1000000"]);
            }
            "fastmcp_answer" => {
                let state = self.one(&["state:a", "state:b", "s"]);
                self.keys(&[state, "response"]);
                self.args(&["{}", "1000000"]);
            }
            other => panic!("no random calls for the script {other}: add them here"),
        }
    }

    fn limits(&mut self) {
        let (attempts, cap) = (self.one(&["1", "3"]), self.one(&["3", "100"]));
        let (order, budget) = (self.one(&["fifo", "fifo", "tail"]), self.one(&["40", "500", "100000"]));
        self.args(&[attempts, cap, "1000000", order, budget]);
    }

    fn pop(&mut self) {
        self.keys(&["s", "w", "n"]);
        let first = self.session(true);
        let node = self.owner(first);
        self.args(&[node, "3000", "2000"]);
        self.limits();
        for at in 0..self.count() {
            let sid = if at == 0 { first } else { self.session(true) };
            let (epoch, want) = (self.epoch(node, sid), self.one(&["0", "1", "4", "64"]));
            self.args(&[sid, &epoch, want]);
        }
    }

    fn ack(&mut self) {
        self.keys(&["s", "w"]);
        let first = self.session(true);
        let node = self.owner(first);
        self.args(&[node]);
        self.limits();
        for at in 0..self.count() {
            let sid = if at == 0 { first } else { self.session(true) };
            let (epoch, want) = (self.epoch(node, sid), self.one(&["0", "1", "4", "64"]));
            let mut receipts: Vec<Vec<u8>> =
                self.model.delivered.get(sid).into_iter().flatten().cloned().collect();
            receipts.truncate(self.rng.usize(..5));
            if self.rng.u8(..8) == 0 {
                let wrong = self.receipt(sid);
                receipts.push(wrong);
            }
            self.args(&[sid, &epoch, want, &receipts.len().to_string()]);
            self.args.extend(receipts);
        }
    }

    fn requeue(&mut self) {
        self.keys(&["s", "w"]);
        let sid = self.session(true);
        let node = self.owner(sid);
        let (epoch, receipt) = (self.epoch(node, sid), self.receipt(sid));
        self.args(&[node, &epoch, sid]);
        self.args.push(receipt);
        let (attempt, max) = (self.one(&["1", "2", "3"]), self.one(&["0", "3", "3", "3"]));
        let (delay, error) =
            (self.one(&["0", "10", "2000"]), self.one(&["timed out", "", "two\nlines \u{fc}"]));
        let (order, cap) = (self.one(&["fifo", "tail"]), self.one(&["3", "100"]));
        self.args(&[attempt, max, delay, error, order, cap, "1000000"]);
    }
}

impl Model {
    /// Learns from a reply what the caller would.
    fn learn(&mut self, script: &str, call: &Filled, reply: &Wire) {
        let node = call.args.first().map(|arg| String::from_utf8_lossy(arg).into_owned()).unwrap_or_default();
        match (script, reply) {
            (name, _) if name.starts_with("task_") || name.starts_with("leg_") => {
                self.learn_leg(script, call, reply);
            }
            ("mail_take", Wire::Group(_, parts)) => {
                self.letter = parts.get(1).map(|letter| letter.bytes().to_vec());
            }
            ("event_append", Wire::Group(_, parts)) => self.number = parts[1].int().unsigned_abs(),
            ("push" | "coalesce", _) => self.pushed += 1,
            ("claim" | "pop" | "ack", Wire::Group(_, answers)) => {
                for (sid, answer) in call.sids.iter().zip(answers) {
                    let Wire::Group(..) = answer else { continue };
                    match answer.items() {
                        [Wire::Bulk(word), epoch, _] if word == b"claimed" => {
                            self.epochs.retain(|(_, owned), _| owned != sid);
                            self.epochs.insert((node.clone(), (*sid).to_owned()), epoch.int().to_string());
                        }
                        [Wire::Bulk(word), .., _] if word == b"ok" => {
                            let receipts = answer.items()[5..]
                                .iter()
                                .filter_map(|record| record_receipt(record.bytes()));
                            self.delivered.insert((*sid).to_owned(), receipts.collect());
                        }
                        _ => {}
                    }
                }
            }
            ("fastmcp_take", Wire::Group(_, parts)) => {
                for (key, entries) in call.keys.iter().skip(1).step_by(2).zip(&parts[1..]) {
                    let texts = entries
                        .items()
                        .iter()
                        .map(|entry| String::from_utf8_lossy(entry.bytes()).into_owned());
                    let ids =
                        texts.map(|text| text.split(' ').next().unwrap_or_default().to_owned()).collect();
                    self.taken.insert(String::from_utf8_lossy(key).into_owned(), ids);
                }
            }
            ("sweep", Wire::Group(_, parts)) => {
                self.cursor = parts[1].bytes().to_vec();
                let pairs = parts[3].items().chunks(2);
                self.found = pairs.map(|pair| (pair[0].bytes().to_vec(), pair[1].bytes().to_vec())).collect();
            }
            _ => {}
        }
    }
}

fn record_receipt(record: &[u8]) -> Option<Vec<u8>> {
    let end = record.iter().position(|&byte| byte == b'\n')?;
    let line: Vec<_> = std::str::from_utf8(&record[..end]).ok()?.split(' ').collect();
    let id = record.get(end + 1..end + 1 + line.get(5)?.parse::<usize>().ok()?)?;
    Some([&record[..=end], id].concat())
}

struct Filled {
    keys: Vec<Vec<u8>>,
    args: Vec<Vec<u8>>,
    sids: Vec<&'static str>,
    addresses: Vec<String>,
}

/// The script on the test's clock.
fn on_the_tests_clock(script: &Script) -> String {
    let text = CLOCK.iter().fold(script.source.to_owned(), |text, (real, ours)| text.replace(real, ours));
    assert!(
        script.name == "probe" || !text.contains("'TIME'") && !text.contains("'PTTL'"),
        "{}: reads a clock this test does not know",
        script.name
    );
    text
}

async fn both(pair: &mut Pair, request: &[Vec<u8>]) -> (Wire, Wire) {
    let one = [request.to_vec()];
    let (mut ours, mut theirs) = tokio::join!(pair.ours.pipeline(&one), pair.theirs.pipeline(&one));
    (ours.remove(0), theirs.remove(0))
}

async fn agree(pair: &mut Pair, request: &[Vec<u8>], what: &str) -> Wire {
    let (ours, theirs) = both(pair, request).await;
    let shown = || request.iter().map(|arg| arg.escape_ascii().to_string()).collect::<Vec<_>>().join(" ");
    assert_eq!(ours, theirs, "ours differs from theirs: {what}: {}", shown());
    ours
}

fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// Everything a listener heard, up to the mark.
async fn heard(listener: &mut Raw) -> Vec<Wire> {
    let mut all = Vec::new();
    loop {
        match listener.read().await {
            Wire::Group(_, items) if items[2] == Wire::Bulk(b"the end".to_vec()) => return all,
            other => all.push(other),
        }
    }
}

#[tokio::test]
async fn random_calls_of_our_scripts_give_the_same_replies_doorbells_and_state() {
    let Some(mut pair) = Pair::start(3).await else { return };
    let (seed, mut rng) = seeded();

    let mut scripts = Vec::new();
    for script in crate::script::all() {
        let request = [b"SCRIPT".to_vec(), b"LOAD".to_vec(), on_the_tests_clock(script).into_bytes()];
        scripts.push((script.name, agree(&mut pair, &request, script.name).await.bytes().to_vec()));
    }
    // A working system calls these more often than the others.
    for (name, more) in [
        ("push", 17),
        ("pop", 7),
        ("ack", 12),
        ("claim", 7),
        ("requeue", 8),
        ("question_ask", 6),
        ("question_answer", 3),
        ("question_wait", 3),
        ("task_create", 6),
        ("task_update", 4),
        ("task_tell", 2),
        ("leg_take", 8),
        ("leg_park", 5),
        ("leg_return", 3),
        ("leg_ask", 5),
    ] {
        let known = scripts.iter().find(|(script, _)| *script == name).unwrap().clone();
        scripts.extend(std::iter::repeat_n(known, more));
    }
    let (mut our_ear, mut their_ear) = pair.listeners().await;
    for node in ["na", "nb"] {
        assert_eq!(
            our_ear.words(&format!("SUBSCRIBE {INBOX}{node}")).await.items()[2].int(),
            if node == "na" { 1 } else { 2 }
        );
        their_ear.words(&format!("SUBSCRIBE {INBOX}{node}")).await;
    }
    for foreign in [
        "SET {0}:t:foreign x",
        "SET {0}:q:foreign x",
        "HSET {0}:dead:foreign-dead f v",
        "SET {0}:e:foreign-dead:r0 x",
        "SET {0}:t:foreign x",
        "SET {0}:eo:foreign x",
        "SET {0}:m:foreign x",
        "SET {0}:f:foreign x",
    ] {
        agree(&mut pair, &words(foreign), "setup").await;
    }

    let (mut now_ms, mut model, mut tally) = (START_MS, Model::default(), BTreeMap::<String, usize>::new());
    for call in 0..MOST_CALLS {
        if call >= CALLS && EXPECTED.iter().all(|expected| tally.contains_key(*expected)) {
            break;
        }
        if rng.u8(..3) == 0 || call == 0 {
            now_ms += [0, 1, 40, 1000, 4000][rng.usize(..5)];
            let clock =
                format!("HSET clock s {} us {}", now_ms / 1000, now_ms % 1000 * 1000 + rng.u64(..1000));
            agree(&mut pair, &words(&clock), "clock").await;
        }
        match rng.u16(..1000) {
            0 => {
                agree(&mut pair, &words("DEL {0}:s {0}:n"), "lost state").await;
            }
            9..40 => {
                let mut request = vec![b"LPUSH".to_vec(), format!("{{0}}:f:s{}", rng.u8(..2)).into_bytes()];
                request.extend((0..rng.usize(1..4)).map(|n| vec![b'x'; n * rng.usize(0..40)]));
                agree(&mut pair, &request, "a message of FastMCP's").await;
            }
            40..45 => {
                agree(&mut pair, &words("SET {0}:state:a waiting"), "a question of FastMCP's").await;
            }
            45..60 => {
                // As when a question's life is over: the clock of the test makes no key expire.
                let (sid, rid) = (SIDS[rng.usize(..6)], RIDS[rng.usize(..RIDS.len())]);
                agree(&mut pair, &words(&format!("DEL {{0}}:e:{sid}:{rid}")), "a question gone").await;
            }
            1..9 => {
                let record = ["2 a later format", "", "1 1 1", "garbage\n\0"][rng.usize(..4)];
                let key = [&b"{0}:q:s0"[..], b"{0}:q:foreign-dead"][rng.usize(..2)];
                let request = [b"RPUSH".to_vec(), key.to_vec(), record.into()];
                agree(&mut pair, &request, "a record not understood").await;
            }
            _ => {}
        }
        let (name, sha) = scripts[rng.usize(..scripts.len())].clone();
        let mut call = Call {
            rng: &mut rng,
            model: &model,
            keys: vec![],
            args: vec![],
            sids: vec![],
            addresses: vec![],
        };
        call.fill(name);
        let call = Filled { keys: call.keys, args: call.args, sids: call.sids, addresses: call.addresses };
        let mut request = vec![b"EVALSHA".to_vec(), sha, call.keys.len().to_string().into_bytes()];
        request.extend(call.keys.iter().chain(&call.args).cloned());
        let reply = agree(&mut pair, &request, &format!("seed {seed}, {name}")).await;
        model.learn(name, &call, &reply);
        for word in outcomes(name, &reply) {
            *tally.entry(format!("{name} {word}")).or_default() += 1;
        }
    }
    println!("{tally:#?}");
    for expected in EXPECTED {
        assert!(tally.contains_key(*expected), "seed {seed}: the run never saw: {expected}\n{tally:#?}");
    }

    compare_state(&mut pair).await;
    for inbox in ["na", "nb"] {
        agree(&mut pair, &words(&format!("PUBLISH {INBOX}{inbox} mark")), "mark").await;
    }
    let end = [b"PUBLISH".to_vec(), format!("{INBOX}na").into_bytes(), b"the end".to_vec()];
    agree(&mut pair, &end, "mark").await;
    let (ours, theirs) = (heard(&mut our_ear).await, heard(&mut their_ear).await);
    assert!(ours.len() > CALLS / 100, "only {} doorbells", ours.len());
    assert!(ours == theirs, "seed {seed}: doorbells differ");
}

/// The first word of a reply, or of each of its parts; a plus says that records came with it.
fn outcomes(script: &str, reply: &Wire) -> Vec<String> {
    match reply {
        Wire::Error(code) => vec![format!("-{code}")],
        Wire::Group(_, items) => match items.first() {
            Some(Wire::Bulk(word)) => {
                let records = word == b"ok" && items.len() > 5;
                vec![String::from_utf8_lossy(word).into_owned() + if records { "+" } else { "" }]
            }
            Some(Wire::Group(..)) => items.iter().flat_map(|item| outcomes(script, item)).collect(),
            Some(Wire::Line(':', _)) if script == "ack" => vec!["acked".to_owned()],
            Some(Wire::Line(':', _)) if script == "push" => vec!["stored".to_owned()],
            _ => vec!["numbers".to_owned()],
        },
        _ => vec!["stored".to_owned()],
    }
}

async fn compare_state(pair: &mut Pair) {
    let (ours, theirs) = both(pair, &words("SCAN 0 COUNT 1000000")).await;
    let sorted = |scan: &Wire| {
        let mut keys: Vec<Vec<u8>> = scan.items()[1].items().iter().map(|key| key.bytes().to_vec()).collect();
        keys.sort();
        keys
    };
    let keys = sorted(&ours);
    assert_eq!(keys.len(), sorted(&theirs).len());
    assert!(keys == sorted(&theirs), "the keys differ");
    for key in keys {
        let ask = |line: &str| {
            line.split(' ')
                .map(|word| if word == "k" { key.clone() } else { word.into() })
                .collect::<Vec<Vec<u8>>>()
        };
        let kind = agree(pair, &ask("TYPE k"), "state").await;
        let dump = match kind {
            Wire::Line('+', kind) if kind == "list" => "LRANGE k 0 -1",
            Wire::Line('+', kind) if kind == "hash" => {
                // The order of a hash's fields is the server's own affair.
                let (ours, theirs) = both(pair, &ask("HGETALL k")).await;
                let fields = |all: &Wire| {
                    let pairs = all.items().chunks(2);
                    pairs.map(|pair| (pair[0].bytes().to_vec(), pair[1].bytes().to_vec())).collect()
                };
                let (ours, theirs): (BTreeMap<_, _>, BTreeMap<_, _>) = (fields(&ours), fields(&theirs));
                assert_eq!(ours, theirs, "state: {}", key.escape_ascii());
                "TYPE k"
            }
            Wire::Line('+', kind) if kind == "zset" => "ZRANGE k 0 -1 WITHSCORES",
            _ => "GET k",
        };
        agree(pair, &ask(dump), "state").await;
        // A queue's end is set in absolute time. The others' is relative, to two clocks read at two times.
        let (ours, theirs) = both(pair, &ask("PEXPIRETIME k")).await;
        let apart = (ours.int() - theirs.int()).abs();
        let queue = key.starts_with(b"{0}:q:");
        assert!(apart <= if queue { 0 } else { 5000 }, "{}: {ours:?} {theirs:?}", key.escape_ascii());
    }
}
