//! Runs the `mcp-courier` command.

use std::process::{ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::supervisor::AtTheEnd;

fn command(args: &[&str]) -> Command {
    let Some(program) = option_env!("CARGO_BIN_EXE_mcp-courier") else {
        panic!("the feature `cli` builds the command");
    };
    let mut command = Command::new(program);
    command.args(args).env_remove("MCP_COURIER_URL").env_remove("RUST_LOG").kill_on_drop(true);
    command
}

/// Runs it to its end, at most 60 s, with `input` on its stdin.
pub async fn run(args: &[&str], input: &str) -> Output {
    let mut child = command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_owned();
    // Apart: a command that writes much before it has read all must not stand still. One that ends without reading
    // its input is no error.
    let feeding = tokio::spawn(async move {
        let _ = stdin.write_all(input.as_bytes()).await;
    });
    let output = timeout(Duration::from_secs(60), child.wait_with_output())
        .await
        .unwrap_or_else(|_| panic!("{args:?} does not end"))
        .expect("its output");
    feeding.abort();
    output
}

/// A running command. Dropped, or with the test process dead, it is killed.
pub struct Running {
    /// First, so that it is dropped first: while the child was not waited for, its pid is its own.
    orphan: Option<AtTheEnd>,
    child: Child,
    /// To write to; `None` closes it.
    pub stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    stderr: Arc<Mutex<String>>,
    /// Reads stderr to its end.
    reading: tokio::task::JoinHandle<()>,
}

impl Running {
    /// Starts it.
    pub fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[])
    }

    /// Starts it with more environment.
    pub fn start_with(args: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut child = command(args)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let pid = child.id().expect("just started").to_string();
        let orphan = AtTheEnd::run(r#"kill -9 "$1""#, &[&pid]).expect("sh");
        let stderr = Arc::new(Mutex::new(String::new()));
        let mut errors = BufReader::new(child.stderr.take().expect("piped")).lines();
        let seen = stderr.clone();
        // Read all along: a full pipe would stop the command.
        let reading = tokio::spawn(async move {
            while let Ok(Some(line)) = errors.next_line().await {
                let mut seen = seen.lock().expect("not poisoned");
                seen.push_str(&line);
                seen.push('\n');
            }
        });
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let stdin = child.stdin.take();
        Self { orphan: Some(orphan), child, stdin, lines, stderr, reading }
    }

    /// The next line of its stdout, `None` at its end. Panics after `within`.
    pub async fn line(&mut self, within: Duration) -> Option<String> {
        match timeout(within, self.lines.next_line()).await {
            Ok(line) => line.expect("text"),
            Err(_) => panic!("no line in {within:?}; stderr: {}", self.stderr()),
        }
    }

    /// The next line as JSON.
    pub async fn json(&mut self, within: Duration) -> serde_json::Value {
        let line = self.line(within).await;
        let line = line.unwrap_or_else(|| panic!("stdout ended; stderr: {}", self.stderr()));
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"))
    }

    /// Every line until its stdout ends.
    pub async fn rest(&mut self, within: Duration) -> Vec<String> {
        let mut rest = Vec::new();
        while let Some(line) = self.line(within).await {
            rest.push(line);
        }
        rest
    }

    /// Its stderr so far.
    pub fn stderr(&self) -> String {
        self.stderr.lock().expect("not poisoned").clone()
    }

    /// Its pid, while it was not waited for.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// SIGKILL; returns when it is gone.
    pub async fn sigkill(&mut self) {
        self.child.kill().await.expect("killed");
        self.at_rest();
    }

    /// SIGTERM, to stop it in good order.
    pub async fn sigterm(&self) {
        self.signal("-TERM").await;
    }

    /// SIGSTOP: it stands still with everything open.
    pub async fn sigstop(&self) {
        self.signal("-STOP").await;
    }

    /// SIGCONT: it goes on as if no time had passed.
    pub async fn sigcont(&self) {
        self.signal("-CONT").await;
    }

    /// What Ctrl-C sends.
    pub async fn sigint(&self) {
        self.signal("-INT").await;
    }

    async fn signal(&self, signal: &str) {
        // By its pid and nothing else: `kill` reads a negative number as a group, and -1 as everything.
        let pid = self.pid().expect("still running").to_string();
        let status = Command::new("kill").args([signal, &pid]).status().await;
        assert!(status.expect("kill").success(), "kill {signal} {pid}");
    }

    /// How it ended. Panics after `within`.
    pub async fn wait(&mut self, within: Duration) -> ExitStatus {
        drop(self.stdin.take());
        let status = timeout(within, self.child.wait()).await;
        let status =
            status.unwrap_or_else(|_| panic!("still running after {within:?}; stderr: {}", self.stderr()));
        self.at_rest();
        // What it said last may still be in the pipe.
        let _ = timeout(within, &mut self.reading).await;
        status.expect("its status")
    }

    /// It was waited for: its pid may be another process's now.
    fn at_rest(&mut self) {
        if let Some(orphan) = self.orphan.take() {
            orphan.disarm();
        }
    }
}
