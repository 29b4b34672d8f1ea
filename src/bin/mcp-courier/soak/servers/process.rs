//! A server process that cannot outlive the run.
//!
//! A `sh` starts it and takes orders from a pipe that only this process holds. However this process ends, the pipe
//! closes, and `sh` kills the server and removes its folder. A pid is only used by the parent of that process, which has
//! not waited for it yet.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Mutex;

use super::raw::{self, field};
use crate::output::Failure;

/// What `sh` does. The tests of the library keep their servers by it too.
const KEEPER: &str = include_str!("keeper.sh");

/// What is done to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// SIGKILL.
    Kill,
    /// SIGTERM.
    Stop,
    /// SIGSTOP.
    Pause,
    /// SIGCONT.
    Resume,
}

impl Act {
    fn word(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Pause => "pause",
            Self::Resume => "resume",
        }
    }
}

/// See the module.
pub struct Process {
    pub port: u16,
    pub folder: PathBuf,
    keeper: Mutex<Keeper>,
}

struct Keeper {
    sh: Child,
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Up and serving, with what `configuration` says for a folder and a port in its file; more words of the command
    /// line in `words`.
    pub async fn start(
        program: &Path,
        words: &[&str],
        configuration: impl Fn(&Path, u16) -> String,
    ) -> Result<Self, Failure> {
        let mut why = String::new();
        // Another process may take a port between the look at it and its use.
        for _ in 0..5 {
            let port = free_port()?;
            let unique = uuid::Uuid::new_v4().simple().to_string();
            let folder = std::env::temp_dir().join(format!("mcp-courier-soak-{unique}"));
            std::fs::create_dir(&folder)?;
            let file = folder.join("server.conf");
            std::fs::write(&file, configuration(&folder, port))?;
            let mut sh = Command::new("/bin/sh")
                .args(["-c", KEEPER, "sh"])
                .arg(&folder)
                .arg(program)
                .arg(&file)
                .args(words)
                // Ctrl-C in the terminal is for the one who tidies up.
                .process_group(0)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()?;
            let (orders, answers) = (sh.stdin.take(), sh.stdout.take());
            let Some(answers) = answers else { return Err(Failure::failed("sh: no pipe")) };
            let answers = BufReader::new(answers).lines();
            let keeper = Mutex::new(Keeper { sh, orders, answers });
            let process = Self { port, folder, keeper };
            match process.up().await {
                Ok(()) => return Ok(process),
                Err(e) => why = e.to_string(),
            }
            process.end().await;
        }
        Err(Failure::no_server(format!("{} does not start: {why}; give --server-program", program.display())))
    }

    async fn order(&self, order: &str) -> Result<Option<u32>, Failure> {
        let mut keeper = self.keeper.lock().await;
        let gone = || Failure::failed("the keeper of a server is gone");
        let orders = keeper.orders.as_mut().ok_or_else(gone)?;
        orders.write_all(format!("{order}\n").as_bytes()).await?;
        let answer = keeper.answers.next_line().await?.ok_or_else(gone)?;
        Ok(answer.trim().parse().ok())
    }

    /// Does something to it; returns when it is done.
    pub async fn act(&self, act: Act) -> Result<(), Failure> {
        self.order(act.word()).await.map(drop)
    }

    /// Starts it, on the same port and folder as ever, and waits until it serves.
    pub async fn up(&self) -> Result<(), Failure> {
        let pid = self.order("start").await?;
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let why = match self.look(pid).await {
                Ok(()) => return Ok(()),
                Err(why) => why,
            };
            let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            let hopeless = ["Address already in use", "Failed listening", "FATAL CONFIG", "not found"];
            if Instant::now() > end || hopeless.iter().any(|w| log.contains(w)) {
                let tail = log.lines().last().unwrap_or_default();
                return Err(Failure::failed(format!("{why}; its log ends with {tail:?}")));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// `Ok` once the process with that id serves: another server may have won the port.
    async fn look(&self, pid: Option<u32>) -> Result<(), String> {
        let mut raw = raw::connect(self.port).await.map_err(|e| e.to_string())?;
        // INFO answers while the AOF is still being read, so it says nothing about readiness: PING does.
        raw::ask::<redis::Value>(&mut raw, &["PING"]).await.map_err(|e| e.to_string())?;
        let info: String = raw::ask(&mut raw, &["INFO", "server"]).await.map_err(|e| e.to_string())?;
        let serving = field(&info, "process_id").and_then(|id| id.parse::<u32>().ok());
        if serving == pid { Ok(()) } else { Err(format!("port {} is another process's", self.port)) }
    }

    /// Kills it, removes its folder, and returns when both are gone.
    pub async fn end(&self) {
        let mut keeper = self.keeper.lock().await;
        drop(keeper.orders.take());
        let _ = keeper.sh.wait().await;
    }
}

/// A free port. A Cluster's bus uses port + 10000, and both stay below the ports that clients get.
pub fn free_port() -> Result<u16, Failure> {
    for _ in 0..1000 {
        let port = fastrand::u16(10_000..22_700);
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    Err(Failure::failed("no free port between 10000 and 22700"))
}
