//! The examples as a user runs them: servers, a worker and a client, each a process.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::support::fixture::Fixture;

/// An example that runs.
pub struct Running {
    pub child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

/// Where an example was built, if it was.
fn example(name: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    Some(test.parent()?.parent()?.join("examples").join(name)).filter(|path| path.is_file())
}

impl Running {
    pub fn start(name: &str, args: &[&str]) -> Option<Self> {
        Self::start_with(name, args, &[])
    }

    /// With these variables in its environment.
    pub fn start_with(name: &str, args: &[&str], variables: &[(&str, &str)]) -> Option<Self> {
        let mut command = Command::new(example(name)?);
        command
            .args(args)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Some(Self { child, lines })
    }

    /// The next line that begins so; what follows the beginning.
    pub async fn line(&mut self, begin: &str) -> String {
        let wait = async {
            while let Some(line) = self.lines.next_line().await.expect("text") {
                if let Some(rest) = line.strip_prefix(begin) {
                    return rest.to_owned();
                }
            }
            panic!("the process ended before it said: {begin}");
        };
        tokio::time::timeout(Duration::from_secs(20), wait)
            .await
            .unwrap_or_else(|_| panic!("no line: {begin}"))
    }

    /// As Ctrl-C does.
    pub async fn interrupt(mut self) {
        let pid = self.child.id().expect("it runs").to_string();
        let sent = Command::new("kill").args(["-INT", &pid]).status().await.expect("kill runs");
        assert!(sent.success());
        let ended = tokio::time::timeout(Duration::from_secs(20), self.child.wait()).await;
        assert!(ended.expect("it ends").expect("a status").success());
    }

    /// Everything it says until it ends, in good order.
    async fn end(mut self) -> Vec<String> {
        let wait = async {
            let mut lines = Vec::new();
            while let Some(line) = self.lines.next_line().await.expect("text") {
                lines.push(line);
            }
            (lines, self.child.wait().await.expect("a status"))
        };
        let (lines, status) = tokio::time::timeout(Duration::from_secs(30), wait).await.expect("it ends");
        assert!(status.success(), "{lines:?}");
        lines
    }
}

/// A tool hands its work to a worker in another process, which reports progress and asks the user; the client is at either
/// of two servers.
#[tokio::test]
async fn server_worker_and_client_in_three_processes() {
    let t = Fixture::new("mcp_processes").await;
    let url = t.server.url().to_owned();
    if url.starts_with("memory:") {
        eprintln!("skipped: processes cannot share memory://");
        return;
    }
    let server = |t: &Fixture| Running::start("mcp_server", &["127.0.0.1:0", &url, &t.prefix]);
    let (Some(mut a), Some(mut b), Some(mut worker)) =
        (server(&t), server(&t), Running::start("mcp_worker", &[&url, &t.prefix]))
    else {
        eprintln!("skipped: the examples are not built (cargo build --examples --features rmcp)");
        return;
    };
    let urls = [a.line("listening on ").await, b.line("listening on ").await];
    worker.line("waiting for jobs").await;
    for (at, pages, said) in [
        (0, "12", "a report of 12 pages about queues"),
        (1, "7", "a report of 7 pages about queues"),
        (0, "", "stopped"),
    ] {
        let client = Running::start("mcp_client", &[&urls[at], pages]).expect("it is built");
        let lines = client.end().await;
        for begin in ["answer: started ", "heard: collecting sources", "asked: ", &format!("heard: {said}")] {
            assert!(lines.iter().any(|line| line.starts_with(begin)), "no line {begin:?}: {lines:?}");
        }
    }
    worker.interrupt().await;
    a.interrupt().await;
    b.interrupt().await;
    t.finish().await;
}
