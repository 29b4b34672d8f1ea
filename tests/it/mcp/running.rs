//! An example as a process.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

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
        self.find(begin, |line| line.strip_prefix(begin).map(str::to_owned)).await
    }

    /// The next line with this in it.
    pub async fn line_with(&mut self, part: &str) -> String {
        self.find(part, |line| line.contains(part).then(|| line.to_owned())).await
    }

    async fn find(&mut self, what: &str, pick: impl Fn(&str) -> Option<String>) -> String {
        let wait = async {
            while let Some(line) = self.lines.next_line().await.expect("text") {
                if let Some(found) = pick(&line) {
                    return found;
                }
            }
            panic!("the process ended before it said: {what}");
        };
        tokio::time::timeout(Duration::from_secs(20), wait)
            .await
            .unwrap_or_else(|_| panic!("no line: {what}"))
    }

    /// SIGKILL, to this process only; answers when it is gone.
    pub async fn kill(mut self) {
        self.child.kill().await.expect("it runs");
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
    pub async fn end(mut self) -> Vec<String> {
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
