//! The processes of a run: starts them, listens to them, signals them, and has every session served by one of them.

mod member;
mod placement;

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tokio::task::JoinHandle;

use self::member::Member;
use super::args::{Role, Soak};
use super::ledger::{Ledger, Who};
use super::lines::{Order, Said};
use super::servers::until;
use crate::output::Failure;

/// What a process is given to connect, to rest, or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Cheap to clone; clones show the same processes.
#[derive(Clone)]
pub struct Crew(Arc<Inner>);

struct Inner {
    url: String,
    prefix: String,
    seed: u64,
    args: Soak,
    /// Where a run's own program is: not where it was if it is built anew meanwhile.
    program: PathBuf,
    ledger: Mutex<Ledger>,
    state: Mutex<State>,
    log: Option<Mutex<std::io::BufWriter<std::fs::File>>>,
}

#[derive(Default)]
struct State {
    producers: Vec<Member>,
    subscribers: Vec<Member>,
    /// For each session, the number of the subscriber that is to serve it.
    desired: Vec<u32>,
    /// Orders to stop a session that were given in good order, and not yet answered: session, subscriber.
    stopping: Vec<(u32, u32)>,
    tending: Vec<JoinHandle<()>>,
    /// Pids of all that was ever started.
    pids: Vec<u32>,
    chance: fastrand::Rng,
    /// Processes that ended without being told to.
    deserted: Vec<String>,
    /// Nothing is to be placed any more.
    closing: bool,
}

impl State {
    fn of(&mut self, role: Role) -> &mut Vec<Member> {
        match role {
            Role::Producer => &mut self.producers,
            Role::Subscriber => &mut self.subscribers,
        }
    }

    fn member(&mut self, (role, number, life): Who) -> Option<&mut Member> {
        self.of(role).get_mut(number as usize).filter(|m| m.life == life)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Crew {
    /// Nobody yet.
    pub fn new(url: String, prefix: String, seed: u64, args: &Soak) -> Result<Self, Failure> {
        let log = args.log.as_ref().map(std::fs::File::create).transpose()?;
        let inner = Inner {
            url,
            prefix,
            seed,
            args: args.clone(),
            program: std::env::current_exe()?,
            ledger: Mutex::default(),
            state: Mutex::new(State {
                desired: vec![0; args.sessions as usize],
                chance: fastrand::Rng::with_seed(seed ^ 2),
                ..State::default()
            }),
            log: log.map(|file| Mutex::new(std::io::BufWriter::new(file))),
        };
        Ok(Self(Arc::new(inner)))
    }

    /// Starts all of them; returns when they are connected and every session is being claimed.
    pub async fn start(&self) -> Result<(), Failure> {
        let args = &self.0.args;
        for number in 0..args.subscribers {
            self.spawn(Role::Subscriber, number, 0)?;
        }
        for number in 0..args.subscribers {
            self.wait_ready(Role::Subscriber, number).await?;
        }
        for session in 0..args.sessions {
            self.place(session, session % args.subscribers);
        }
        for number in 0..args.producers {
            self.spawn(Role::Producer, number, 0)?;
        }
        for number in 0..args.producers {
            self.wait_ready(Role::Producer, number).await?;
        }
        Ok(())
    }

    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.0.ledger)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }

    /// The sessions that a producer pushes to: each session has two producers, where there are two.
    pub fn sessions_of(&self, producer: u32) -> Vec<u32> {
        let (sessions, producers) = (self.0.args.sessions, self.0.args.producers);
        (0..sessions).filter(|s| s % producers == producer || (s + 1) % producers == producer).collect()
    }

    fn heard(&self, who: Who, said: Said) {
        if let Some(log) = &self.0.log {
            let line = serde_json::to_string(&(who.0.word(), who.1, who.2, &said)).unwrap_or_default();
            let _ = writeln!(lock(log), "{line}");
        }
        match &said {
            Said::Ready => self.mark(who, |m| m.ready = true),
            Said::Idle => self.mark(who, |m| m.idle = true),
            Said::Last(_) => self.mark(who, |m| m.ended = true),
            Said::Served { session, error } => self.served(who, *session, error.is_none()),
            Said::Ended { session, .. } => self.ended(who, *session),
            _ => {}
        }
        self.ledger().hear(who, said);
    }

    fn mark(&self, who: Who, what: impl FnOnce(&mut Member)) {
        if let Some(member) = self.state().member(who) {
            what(member);
        }
    }

    /// A process ended.
    fn gone(&self, who: Who) {
        let mut state = self.state();
        let Some(member) = state.member(who) else { return };
        let expected = member.ended || member.killed;
        member.pid = None;
        member.up = false;
        if !expected {
            let (role, number, life) = who;
            state.deserted.push(format!("{} {number}.{life} ended by itself", role.word()));
        }
    }

    async fn wait_ready(&self, role: Role, number: u32) -> Result<(), Failure> {
        until("a process to connect", PATIENCE, async || {
            let mut state = self.state();
            match state.of(role).get(number as usize) {
                Some(member) if member.ready => Ok(()),
                _ => Err(Failure::failed(format!("{} {number} is not connected", role.word()))),
            }
        })
        .await
    }

    /// SIGKILL.
    pub fn kill(&self, role: Role, number: u32) {
        let mut state = self.state();
        if let Some(member) = state.of(role).get_mut(number as usize) {
            member.killed = true;
            member.up = false;
            member.signal(Signal::KILL);
        }
    }

    /// SIGSTOP: it says nothing, hears nothing, and is not asked to serve anything.
    pub fn pause(&self, role: Role, number: u32) {
        let mut state = self.state();
        if let Some(member) = state.of(role).get_mut(number as usize) {
            member.up = false;
            member.signal(Signal::STOP);
        }
    }

    /// SIGCONT.
    pub fn resume(&self, role: Role, number: u32) {
        let mut state = self.state();
        if let Some(member) = state.of(role).get_mut(number as usize) {
            member.up = true;
            member.signal(Signal::CONT);
        }
    }

    /// Another process in the place of one that was killed, under the next life; returns when it is connected.
    pub async fn replace(&self, role: Role, number: u32) -> Result<(), Failure> {
        let life = self.state().of(role).get(number as usize).map_or(0, |m| m.life + 1);
        self.spawn(role, number, life)?;
        self.wait_ready(role, number).await
    }

    /// Nothing new is pushed; returns when every outcome is known.
    pub async fn rest(&self) -> Result<(), Failure> {
        self.state().producers.iter().for_each(|m| m.order(Order::Rest));
        until("producers to rest", PATIENCE, async || {
            let busy: Vec<u32> =
                self.state().producers.iter().filter(|m| !m.idle).map(|m| m.number).collect();
            if busy.is_empty() { Ok(()) } else { Err(Failure::failed(format!("busy: {busy:?}"))) }
        })
        .await
    }

    /// Ends all in good order. Those that do not end in time are killed, and that is an error.
    pub async fn end(&self) -> Result<(), Failure> {
        {
            let mut state = self.state();
            state.closing = true;
            state.producers.iter().chain(&state.subscribers).for_each(|m| m.order(Order::End));
        }
        let ended = until("processes to end", PATIENCE / 2, async || {
            let state = self.state();
            let alive = state.producers.iter().chain(&state.subscribers).filter(|m| m.pid.is_some()).count();
            if alive == 0 { Ok(()) } else { Err(Failure::failed(format!("{alive} are alive"))) }
        })
        .await;
        self.kill_all().await;
        ended
    }

    /// Whatever is left. Returns when it is gone.
    pub async fn kill_all(&self) {
        let tending = {
            let mut state = self.state();
            state.closing = true;
            state.producers.iter_mut().for_each(Member::end_now);
            state.subscribers.iter_mut().for_each(Member::end_now);
            std::mem::take(&mut state.tending)
        };
        for task in tending {
            let _ = tokio::time::timeout(PATIENCE, task).await;
        }
        if let Some(log) = &self.0.log {
            let _ = lock(log).flush();
        }
    }

    /// Every pid that was used.
    pub fn pids(&self) -> Vec<u32> {
        self.state().pids.clone()
    }

    /// Processes that ended without being told to.
    pub fn deserted(&self) -> Vec<String> {
        self.state().deserted.clone()
    }
}
