//! Runs a script of steps against an engine or a server and compares with the model after each.

use std::collections::BTreeMap;

use super::super::support::{Raw, Wire, encode};
use super::expect::{ATTEMPTS, name};
use super::step::{Marking, OWNERS, Said, Step};
use super::world::{DEAD_CAP, DEAD_TTL_MS, HANDOFF, LOOK_MS, World, sid};
use crate::memory::Memory;
use crate::script::Script;

/// Far off: no key of a real server expires by its own clock.
const START_MS: u64 = 4_000_000_000_000;
const INBOX: &str = "ib:";
/// The scripts of messages, sessions and nodes.
const MODELLED: [&str; 17] = [
    "push",
    "coalesce",
    "claim",
    "pop",
    "ack",
    "requeue",
    "release",
    "heartbeat",
    "leave",
    "sweep",
    "tidy",
    "reap",
    "stats",
    "overview",
    "dead_list",
    "dead_requeue",
    "dead_purge",
];

/// What the owners remember of what they were told.
#[derive(Default)]
pub(super) struct Owners {
    /// How often each was started.
    lives: [usize; OWNERS],
    epochs: BTreeMap<(usize, usize), u64>,
    given: BTreeMap<(usize, usize), Vec<String>>,
    /// Sessions with owners that the last sweep found to be gone.
    pub(super) found: Vec<(usize, (String, u64))>,
}

impl Owners {
    pub(super) fn name(&self, owner: usize) -> String {
        format!("n{owner}.{}", self.lives[owner])
    }

    pub(super) fn epoch(&self, owner: usize, session: usize) -> u64 {
        self.epochs.get(&(owner, session)).copied().unwrap_or(1)
    }

    pub(super) fn receipts(&self, owner: usize, session: usize, most: usize) -> Vec<String> {
        let given = self.given.get(&(owner, session));
        given.map(|all| all.iter().take(most).cloned().collect()).unwrap_or_default()
    }

    fn crash(&mut self, owner: usize) {
        self.lives[owner] += 1;
        self.epochs.retain(|(o, _), _| *o != owner);
        self.given.retain(|(o, _), _| *o != owner);
    }

    /// Takes in what a call answered.
    fn learn(&mut self, step: &Step, reply: &Wire) {
        match step {
            Step::Claim { owner, sessions, .. } => {
                for (&session, part) in sessions.iter().zip(reply.items()) {
                    if let [_, epoch, _] = part.items() {
                        self.epochs.insert((*owner, session), epoch.int() as u64);
                    }
                }
            }
            Step::Pop { owner, sessions, .. } => {
                for (&session, part) in sessions.iter().zip(reply.items()) {
                    self.given.insert((*owner, session), receipts(part));
                }
            }
            Step::Ack { owner, parts, .. } => {
                for (part, answer) in parts.iter().zip(reply.items()).filter(|(part, _)| part.want > 0) {
                    self.given.insert((*owner, part.session), receipts(answer));
                }
            }
            Step::Sweep { .. } => {
                let text = |w: &Wire| String::from_utf8_lossy(w.bytes()).into_owned();
                let parse = |pair: &[Wire]| {
                    let (sid, token) = (text(&pair[0]), text(&pair[1]));
                    let (node, epoch) = token.split_once(':').expect("a token");
                    let session = sid[1..].parse().expect("one of the sessions");
                    (session, (node.to_owned(), epoch.parse().expect("an epoch")))
                };
                self.found = reply.items()[3].items().chunks(2).map(parse).collect();
            }
            _ => {}
        }
    }
}

/// The receipts of the records in one session's part of a reply.
fn receipts(part: &Wire) -> Vec<String> {
    let receipt = |record: &Wire| {
        let record = String::from_utf8_lossy(record.bytes()).into_owned();
        let (line, rest) = record.split_once('\n').expect("a line");
        let numbers: Vec<&str> = line.split(' ').collect();
        let id = &rest[..numbers[5].parse::<usize>().expect("a length")];
        format!("{line}\n{id}")
    };
    if matches!(part, Wire::Line(..)) {
        return Vec::new();
    }
    part.items().iter().skip(5).map(receipt).collect()
}

pub(super) struct Driver {
    pub(super) commands: Raw,
    bell: Raw,
    /// Whose clock is set; without one, the scripts read the clock from a key.
    memory: Option<Memory>,
    scripts: BTreeMap<&'static str, Vec<u8>>,
    /// Inbox and payload of every doorbell of this script of calls.
    heard: Vec<(String, String)>,
    pub(super) calls: usize,
    seen: BTreeMap<String, usize>,
}

impl Driver {
    pub(super) async fn new(mut commands: Raw, bell: Raw, memory: Option<Memory>) -> Self {
        let mut scripts = BTreeMap::new();
        for script in crate::script::all().into_iter().filter(|s| MODELLED.contains(&s.name)) {
            let text = if memory.is_some() { script.source.to_owned() } else { on_the_tests_clock(script) };
            let sha = commands.call(&[&b"SCRIPT"[..], b"LOAD", text.as_bytes()]).await;
            scripts.insert(script.name, sha.bytes().to_vec());
        }
        Self { commands, bell, memory, scripts, heard: Vec::new(), calls: 0, seen: BTreeMap::new() }
    }

    pub(super) async fn run(&mut self, steps: &[Step]) -> Result<(), String> {
        self.commands.words("FLUSHALL").await;
        let mut world = World::new(START_MS, self.memory.is_some());
        let mut owners = Owners::default();
        self.set_clock(START_MS).await;
        for owner in 0..OWNERS {
            self.listen(&mut world, &owners.name(owner), true).await;
        }
        let mut failed = None;
        for (n, step) in steps.iter().enumerate() {
            if let Err(why) = self.step(&mut world, &mut owners, step).await {
                failed = Some(format!("at step {}, {step}:\n{why}", n + 1));
                break;
            }
        }
        if failed.is_none() {
            failed = super::dump::differ(self, &world).await;
        }
        // Whatever happened, the bell is quiet for the next script.
        let heard = self.hang_up(&world).await;
        if failed.is_none() && heard != world.bells {
            failed = Some(format!("doorbells\n  heard    {heard:?}\n  expected {:?}", world.bells));
        }
        failed.map_or(Ok(()), Err)
    }

    async fn step(&mut self, world: &mut World, owners: &mut Owners, step: &Step) -> Result<(), String> {
        match step {
            Step::Wait(ms) => {
                world.wait(u64::from(*ms));
                self.set_clock(world.now).await;
            }
            Step::Crash(owner) => {
                self.listen(world, &owners.name(*owner), false).await;
                owners.crash(*owner);
                self.listen(world, &owners.name(*owner), true).await;
            }
            Step::Deaf(owner) => {
                let name = owners.name(*owner);
                let deaf = !world.listening.contains(&name);
                self.listen(world, &name, deaf).await;
            }
            Step::LoseOwners => {
                self.commands.words("DEL s n").await;
                world.nodes.clear();
                world.sessions.iter_mut().for_each(|s| s.owner = None);
            }
            Step::LoseClaim(session) => {
                if let Some((node, epoch)) = &mut world.sessions[*session].owner {
                    *epoch -= 1;
                    self.commands.words(&format!("HSET s {} {node}:{epoch}", sid(*session))).await;
                }
            }
            _ => {}
        }
        let Some((script, keys, args)) = call(step, owners) else { return Ok(()) };
        let expected = world.reply(step, owners).expect("a call has a reply");
        let mut request =
            vec![b"EVALSHA".to_vec(), self.scripts[script].clone(), keys.len().to_string().into()];
        request.extend(keys.into_iter().chain(args).map(String::into_bytes));
        let mut reply = self.commands.call(&request).await;
        self.calls += 1;
        if matches!(step, Step::Sweep { .. }) {
            in_order(&mut reply);
        }
        if reply != expected {
            return Err(format!("  answered {reply:?}\n  expected {expected:?}"));
        }
        if let Some(promise) = world.broken_promise() {
            return Err(format!("  answered as expected, but {promise}"));
        }
        self.count(script, &reply);
        owners.learn(step, &reply);
        Ok(())
    }

    async fn set_clock(&mut self, now_ms: u64) {
        match &self.memory {
            Some(memory) => memory.set_clock_ms(now_ms),
            None => {
                let set = format!("HSET clock s {} us {}", now_ms / 1000, now_ms % 1000 * 1000);
                self.commands.words(&set).await;
            }
        }
    }

    async fn listen(&mut self, world: &mut World, node: &str, on: bool) {
        let command = if on { "SUBSCRIBE" } else { "UNSUBSCRIBE" };
        self.bell.send_bytes(&encode(&[command.into(), format!("{INBOX}{node}").into()])).await;
        if on {
            world.listening.insert(node.to_owned());
        } else {
            world.listening.remove(node);
        }
        // It is done when the server says so; doorbells that came before are kept.
        loop {
            let frame = self.bell.read().await;
            let word = |at: usize| String::from_utf8_lossy(frame.items()[at].bytes()).into_owned();
            if word(0) != "message" {
                return;
            }
            self.heard.push((word(1)[INBOX.len()..].to_owned(), word(2)));
        }
    }

    async fn hang_up(&mut self, world: &World) -> Vec<(String, String)> {
        let mut rest = world.clone();
        for node in &world.listening {
            self.listen(&mut rest, node, false).await;
        }
        std::mem::take(&mut self.heard)
    }

    fn count(&mut self, script: &str, reply: &Wire) {
        fn words(reply: &Wire) -> Vec<String> {
            if matches!(reply, Wire::Line(..)) {
                return vec!["one number".to_owned()];
            }
            match reply.items().first() {
                Some(Wire::Bulk(word)) => {
                    let records = word == b"ok" && reply.items().len() > 5;
                    vec![String::from_utf8_lossy(word).into_owned() + if records { "+" } else { "" }]
                }
                Some(Wire::Group(..)) => reply.items().iter().flat_map(words).collect(),
                Some(Wire::Line(..)) if reply.items().len() == 1 => vec!["one number".to_owned()],
                _ => vec!["numbers".to_owned()],
            }
        }
        // These answer for each message or session, some with a number alone.
        if matches!(script, "push" | "ack") {
            for word in reply.items().iter().flat_map(words) {
                *self.seen.entry(format!("{script} {word}")).or_default() += 1;
            }
            return;
        }
        for word in words(reply) {
            *self.seen.entry(format!("{script} {word}")).or_default() += 1;
        }
    }

    /// A model that never meets a case proves nothing of it. Those that come up a few times in a thousand scripts, or
    /// less, are left out: whether they do is chance.
    pub(super) fn assert_all_was_seen(&self) {
        let expected = "push one number, push queued, push duplicate, push full, \
            coalesce one number, coalesce coalesced, coalesce duplicate, coalesce full, ack one number, pop ok, pop ok+, pop fenced, \
            pop lost, ack ok, ack ok+, ack fenced, ack lost, requeue requeued, requeue dead, \
            requeue unknown, requeue fenced, requeue lost, claim claimed, claim fenced, release released, \
            release fenced, release lost, dead_requeue requeued, dead_list one number, \
            dead_purge numbers, sweep numbers, tidy one number, reap one number, stats numbers, overview numbers, \
            heartbeat numbers, leave one number";
        for case in expected.split(", ") {
            println!("{case}: {}", self.seen.get(case).unwrap_or(&0));
            assert!(self.seen.contains_key(case), "never seen: {case}\n{:#?}", self.seen);
        }
    }
}

/// The owners that a sweep found come in no particular order.
fn in_order(reply: &mut Wire) {
    let Wire::Group(_, parts) = reply else { return };
    let Some(Wire::Group(_, found)) = parts.get_mut(3) else { return };
    let mut pairs: Vec<[Wire; 2]> = found.chunks(2).map(|p| [p[0].clone(), p[1].clone()]).collect();
    pairs.sort_by_key(|[sid, _]| sid.bytes().to_vec());
    *found = pairs.into_iter().flatten().collect();
}

/// The script on the test's clock.
fn on_the_tests_clock(script: &Script) -> String {
    let text = script.source.replace("redis.call('TIME')", "redis.call('HMGET', 'clock', 's', 'us')");
    let text = text.replace("now + redis.call('PTTL', q)", "redis.call('PEXPIRETIME', q)");
    let text = text.replace("redis.call('PTTL', d)", "-1");
    assert!(!text.contains("'TIME'") && !text.contains("'PTTL'"), "{}: another clock", script.name);
    text
}

/// What marks an id as known, and its bit there.
fn mark(said: &Said, marking: Marking) -> (String, String) {
    match marking.own_id {
        true => ("b:n:0".into(), said.id.to_string()),
        false => (format!("d:{}:{}", sid(said.session), name(said.id)), String::new()),
    }
}

type Parts = (&'static str, Vec<String>, Vec<String>);

fn call(step: &Step, owners: &Owners) -> Option<Parts> {
    let words = |line: String| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let queue = |s: &usize| format!("q:{}", sid(*s));
    let dead = |s: &usize| format!("dead:{}", sid(*s));
    let both = |all: &[usize]| all.iter().flat_map(|s| [queue(s), dead(s)]).collect::<Vec<_>>();
    let with = |fixed: &str, more: Vec<String>| [words(fixed.to_owned()), more].concat();
    let buries = format!("{ATTEMPTS} {DEAD_CAP} {DEAD_TTL_MS}");
    Some(match step {
        Step::Wait(_) | Step::Crash(_) | Step::Deaf(_) | Step::LoseOwners | Step::LoseClaim(_) => {
            return None;
        }
        Step::Push { messages, marking } => {
            let (mut keys, mut args) =
                (words("s w".into()), words(format!("{LOOK_MS} {INBOX} PUBLISH {HANDOFF}")));
            for said in messages {
                let (mark, bit) = mark(said, *marking);
                keys.extend([queue(&said.session), mark]);
                let options = format!("{} {} {} {}", said.ttl, marking.dedupe, said.most, said.policy());
                let id = name(said.id);
                args.extend([sid(said.session), id, said.body(), bit, options, String::new()]);
            }
            ("push", keys, args)
        }
        Step::Coalesce { message: said, marking } => {
            let (mark, bit) = mark(said, *marking);
            let keys = vec![queue(&said.session), "s".into(), "w".into(), mark];
            let args = format!(
                "{} {} {} {} {} {bit} {} {}  {LOOK_MS} {INBOX} PUBLISH {HANDOFF} k",
                sid(said.session),
                name(said.id),
                said.body(),
                said.ttl,
                marking.dedupe,
                said.most,
                said.policy()
            );
            ("coalesce", keys, words(args))
        }
        Step::Claim { owner, keep, sessions } => {
            let mode = if *keep { "keep" } else { "take" };
            let args = words(format!("{} {mode} {INBOX} PUBLISH", owners.name(*owner)));
            let sids = sessions.iter().map(|s| sid(*s)).collect();
            ("claim", with("s n", sessions.iter().map(queue).collect()), [args, sids].concat())
        }
        Step::Pop { owner, order, sessions, want, budget } => {
            let fixed = format!("{} 10000 {LOOK_MS} {buries} {} {budget}", owners.name(*owner), order.word());
            let each = |&s: &usize| [sid(s), owners.epoch(*owner, s).to_string(), want.to_string()];
            ("pop", with("s w n", both(sessions)), with(&fixed, sessions.iter().flat_map(each).collect()))
        }
        Step::Ack { owner, order, budget, parts } => {
            let sessions: Vec<usize> = parts.iter().map(|part| part.session).collect();
            let mut args = words(format!("{} {buries} {} {budget}", owners.name(*owner), order.word()));
            for part in parts {
                let given = owners.receipts(*owner, part.session, part.receipts);
                let epoch = owners.epoch(*owner, part.session).to_string();
                args.extend([sid(part.session), epoch, part.want.to_string(), given.len().to_string()]);
                args.extend(given);
            }
            ("ack", with("s w", both(&sessions)), args)
        }
        Step::Requeue { owner, order, session, attempt, max, delay } => {
            let receipt = owners.receipts(*owner, *session, 1).pop().unwrap_or_default();
            let fixed =
                format!("{} {} {}", owners.name(*owner), owners.epoch(*owner, *session), sid(*session));
            let rest = format!("{attempt} {max} {delay} why {} {DEAD_CAP} {DEAD_TTL_MS}", order.word());
            let args = [with(&fixed, vec![receipt]), words(rest)].concat();
            ("requeue", with("s w", both(&[*session])), args)
        }
        Step::Release { owner, sessions } => {
            let each = |&s: &usize| [sid(s), owners.epoch(*owner, s).to_string()];
            let args = with(&owners.name(*owner), sessions.iter().flat_map(each).collect());
            ("release", words("s".into()), args)
        }
        Step::Heartbeat { owner, lease, session } => {
            let (node, epoch) = (owners.name(*owner), owners.epoch(*owner, *session));
            let args = format!("{node} {lease} {INBOX} PUBLISH 7 {} {epoch}", sid(*session));
            ("heartbeat", words("s n".into()), words(args))
        }
        Step::Leave { owner } => ("leave", words("n".into()), vec![owners.name(*owner)]),
        Step::Sweep { limit, grace } => {
            let args = format!("{LOOK_MS} {limit} {INBOX} PUBLISH {grace} 0 100");
            ("sweep", words("s w n".into()), words(args))
        }
        Step::Tidy { sessions } => {
            let sids = sessions.iter().map(|s| sid(*s)).collect();
            ("tidy", with("w", sessions.iter().map(queue).collect()), sids)
        }
        Step::Reap { grace } => {
            let found = &owners.found;
            let args = found.iter().flat_map(|(s, (node, epoch))| [sid(*s), format!("{node}:{epoch}")]);
            let args = with(&grace.to_string(), args.collect());
            ("reap", with("s n", found.iter().map(|(s, _)| queue(s)).collect()), args)
        }
        Step::Stats { sessions } => {
            ("stats", with("s n", both(sessions)), sessions.iter().map(|s| sid(*s)).collect())
        }
        Step::Overview { offset, limit } => {
            ("overview", words("s w n".into()), words(format!("{offset} {limit}")))
        }
        Step::DeadList { session, offset, limit } => {
            ("dead_list", vec![dead(session)], words(format!("{offset} {limit}")))
        }
        Step::DeadRequeue { session, id, ttl, most, limit } => {
            let id = id.map(name).unwrap_or_default();
            let keys = words(format!("s w {} {}", queue(session), dead(session)));
            let fixed =
                format!("{} {id} {ttl} {most} {limit} {LOOK_MS} {INBOX} PUBLISH {HANDOFF}", sid(*session));
            ("dead_requeue", keys, words(fixed))
        }
        Step::DeadPurge { session, id } => {
            ("dead_purge", vec![dead(session)], vec![id.map(name).unwrap_or_default()])
        }
    })
}
