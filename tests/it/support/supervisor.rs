//! Children that cannot outlive the tests.
//!
//! A `sh` starts the server and takes orders from a pipe that only the test process holds. However that process ends
//! (return, panic, abort, SIGKILL), the pipe closes, and `sh` kills the server and removes its folder. No signal
//! handler and no `unsafe`, and a pid is only used by the parent of that process, which has not waited for it yet: it
//! cannot be another process's.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// What `sh` does, as for the servers of the command `soak`.
const SUPERVISE: &str = include_str!("../../../src/bin/mcp-courier/soak/servers/keeper.sh");

/// Runs `$1`, a shell text with the rest as its arguments, once its input ends.
const AT_THE_END: &str = r#"t=$1; shift; while read -r _; do :; done; eval "$t""#;

/// Ends when process `$1` has ended.
const OUTLAST: &str = r#"echo start; while kill -0 "$1" 2>/dev/null; do sleep 0.2; done"#;

fn shell(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    // A group of its own: Ctrl-C in the terminal of the tests must not end it before its work is done.
    command.args(["-c", script, "sh"]).process_group(0).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// A server process with the life of this value.
#[derive(Debug)]
pub struct Supervisor {
    sh: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Supervisor {
    /// Ready for the order `start`. The folder belongs to the supervisor from here on.
    pub fn new(folder: &Path, command: &[String]) -> std::io::Result<Self> {
        let mut sh = shell(SUPERVISE)
            .arg(folder)
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let orders = sh.stdin.take();
        let answers = BufReader::new(sh.stdout.take().expect("piped"));
        Ok(Self { sh, orders, answers })
    }

    /// Gives an order (`start`, `kill`, `stop`, `pause`, `resume`) and waits until it is done. The server's pid.
    pub fn order(&mut self, order: &str) -> std::io::Result<Option<u32>> {
        let orders = self.orders.as_mut().expect("open until drop");
        orders.write_all(format!("{order}\n").as_bytes())?;
        let mut answer = String::new();
        if self.answers.read_line(&mut answer)? == 0 {
            return Err(std::io::Error::other("the supervisor is gone"));
        }
        Ok(answer.trim().parse().ok())
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.sh.wait();
    }
}

/// The same for a server that many processes share: it lives as long as process `pid`. Nothing to wait for here.
pub fn outlast(pid: u32, folder: &Path, command: &[String]) -> std::io::Result<()> {
    let mut watch = watcher(pid)?;
    shell(SUPERVISE).arg(folder).args(command).stdin(watch.stdout.take().expect("piped")).spawn()?;
    Ok(())
}

fn watcher(pid: u32) -> std::io::Result<Child> {
    shell(OUTLAST).arg(pid.to_string()).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
}

/// A shell text that runs when this value is dropped or this process ends, however it ends.
#[derive(Debug)]
pub struct AtTheEnd {
    sh: Child,
    open: Option<ChildStdin>,
}

impl AtTheEnd {
    /// `text` sees `args` as `$1`, `$2` and so on.
    pub fn run(text: &str, args: &[&str]) -> std::io::Result<Self> {
        let mut sh = shell(AT_THE_END).arg(text).args(args).stdin(Stdio::piped()).spawn()?;
        let open = sh.stdin.take();
        Ok(Self { sh, open })
    }

    /// The same when process `pid` ends.
    pub fn of(pid: u32, text: &str, args: &[&str]) -> std::io::Result<()> {
        let mut watch = watcher(pid)?;
        shell(AT_THE_END).arg(text).args(args).stdin(watch.stdout.take().expect("piped")).spawn()?;
        Ok(())
    }

    /// Nothing has to be done any more.
    pub fn disarm(mut self) {
        let _ = self.sh.kill();
    }
}

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        drop(self.open.take());
        let _ = self.sh.wait();
    }
}
