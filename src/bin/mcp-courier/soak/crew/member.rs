//! One process of the crew, from outside.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

use super::super::args::Role;
use super::super::ledger::Who;
use super::super::lines::Order;
use super::{Crew, Inner};
use crate::output::Failure;

/// Ids of pushes are refused as duplicates for longer than any run and its end: a second push tells whether the first
/// is still known.
const DEDUPE: Duration = Duration::from_secs(24 * 3600);

pub(super) struct Member {
    pub(super) number: u32,
    pub(super) life: u32,
    /// While it was not waited for, and so is no other process's.
    pub(super) pid: Option<u32>,
    orders: mpsc::UnboundedSender<Order>,
    /// It runs, as far as we know.
    pub(super) up: bool,
    pub(super) ready: bool,
    pub(super) idle: bool,
    /// It said its last words.
    pub(super) ended: bool,
    /// By us.
    pub(super) killed: bool,
}

impl Member {
    pub(super) fn order(&self, order: Order) {
        let _ = self.orders.send(order);
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            let _ = kill_process(pid, signal);
        }
    }

    pub(super) fn end_now(&mut self) {
        self.killed = true;
        self.up = false;
        self.signal(Signal::KILL);
    }
}

impl Inner {
    fn command(&self, role: Role, number: u32, life: u32, sessions: &[u32]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("soak-node")
            .arg(role.word())
            .args(["--prefix", &self.prefix])
            .args(["--number", &number.to_string()])
            .args(["--life", &life.to_string()])
            .args(["--seed", &self.seed.to_string()])
            .args(["--dedupe-s", &DEDUPE.as_secs().to_string()])
            .env("MCP_COURIER_URL", &self.url)
            // Ctrl-C in the terminal is for the one who tidies up.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        if role == Role::Producer {
            let streams = self.args.sessions * self.args.producers.min(2);
            let every_ms = f64::from(streams) * 1000.0 / self.args.rate;
            let sessions: Vec<String> = sessions.iter().map(u32::to_string).collect();
            command.args(["--sessions", &sessions.join(",")]);
            command.args(["--every-ms", &format!("{}", every_ms.clamp(1.0, 3_600_000.0) as u64)]);
        }
        command
    }
}

impl Crew {
    pub(super) fn spawn(&self, role: Role, number: u32, life: u32) -> Result<(), Failure> {
        let sessions = self.sessions_of(number);
        let mut child = self.0.command(role, number, life, &sessions).spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::failed("soak-node: no pipes"));
        };
        let (orders, to_write) = mpsc::unbounded_channel();
        let pid = child.id();
        let (up, ready, idle, ended, killed) = (true, false, false, false, false);
        let member = Member { number, life, pid, orders, up, ready, idle, ended, killed };
        let mut state = self.state();
        state.pids.extend(pid);
        let members = state.of(role);
        if (number as usize) < members.len() {
            members[number as usize] = member;
        } else {
            members.push(member);
        }
        let crew = self.clone();
        state.tending.push(tokio::spawn(crew.tend((role, number, life), child, stdin, stdout, to_write)));
        Ok(())
    }

    /// Until it ended.
    async fn tend(
        self,
        who: Who,
        mut child: Child,
        mut stdin: ChildStdin,
        stdout: ChildStdout,
        mut orders: mpsc::UnboundedReceiver<Order>,
    ) {
        let writing = tokio::spawn(async move {
            while let Some(order) = orders.recv().await {
                if stdin.write_all(format!("{order}\n").as_bytes()).await.is_err() {
                    break;
                }
            }
        });
        let mut lines = BufReader::new(stdout).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            // The last line of one that was killed may be cut.
            if let Ok(said) = serde_json::from_str(&line) {
                self.heard(who, said);
            }
        }
        // First: from the wait on, the pid may be another process's.
        self.gone(who);
        let _ = child.wait().await;
        writing.abort();
    }
}
