//! A server program on this machine, run as a child process.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use super::ready::{free_port, wait_ready};
use super::supervisor::Supervisor;

/// The program to run: `TEST_REDIS_SERVER`, else `redis-server`, else `valkey-server` on `PATH`.
pub fn find() -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os("TEST_REDIS_SERVER").filter(|v| !v.is_empty()) {
        let named = PathBuf::from(named);
        return is_server(&named).map(|()| named).map_err(|why| format!("TEST_REDIS_SERVER: {why}"));
    }
    let mut tried = Vec::new();
    for name in ["redis-server", "valkey-server"] {
        for folder in std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()) {
            let program = folder.join(name);
            if program.is_file() {
                match is_server(&program) {
                    Ok(()) => return Ok(program),
                    Err(why) => tried.push(why),
                }
            }
        }
    }
    tried.push("no redis-server or valkey-server on PATH".into());
    Err(tried.join("; "))
}

/// The name proves nothing: a crate called redis-server installs a program of that name, which is no Redis.
fn is_server(program: &Path) -> Result<(), String> {
    let output = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    if said.contains("server v=") {
        Ok(())
    } else {
        Err(format!("{} is not Redis or Valkey: it calls itself {:?}", program.display(), said.trim()))
    }
}

/// The command line of a server on 127.0.0.1 that keeps its files in `folder`.
pub fn command(program: &Path, folder: &Path, port: u16, options: &[String]) -> Vec<String> {
    let mut command = vec![program.display().to_string()];
    let (folder, port) = (folder.display().to_string(), port.to_string());
    for option in ["--bind", "127.0.0.1", "--port", &port, "--dir", &folder, "--save", ""] {
        command.push(option.to_owned());
    }
    command.extend_from_slice(options);
    command
}

/// A server process of one test's own.
#[derive(Debug)]
pub struct Process {
    pub port: u16,
    pub folder: PathBuf,
    supervisor: Arc<Mutex<Supervisor>>,
}

impl Process {
    /// Up and serving.
    pub async fn start(program: &Path, options: &[String]) -> Result<Self, String> {
        Self::start_as(program, |folder, port| command(program, folder, port, options)).await
    }

    /// The same with a command line for a folder and a port.
    pub async fn start_as(
        program: &Path,
        command: impl Fn(&Path, u16) -> Vec<String>,
    ) -> Result<Self, String> {
        let mut why = String::new();
        // Another process may take a port between the look at it and its use.
        for _ in 0..5 {
            let folder =
                tempfile::Builder::new().prefix("mcp-courier-").tempdir().map_err(|e| e.to_string())?;
            let folder = folder.keep();
            let port = free_port();
            let supervisor = Supervisor::new(&folder, &command(&folder, port));
            let supervisor = supervisor.map_err(|e| format!("sh: {e}"))?;
            let process = Self { port, folder, supervisor: Arc::new(Mutex::new(supervisor)) };
            match process.up().await {
                Ok(()) => return Ok(process),
                Err(e) => why = e,
            }
        }
        Err(format!("{} does not start: {why}", program.display()))
    }

    /// Starts it, on the same port and folder as ever, and waits until it serves.
    pub async fn up(&self) -> Result<(), String> {
        let pid = self.order("start").await?;
        wait_ready(self.port, pid, Some(&self.folder.join("log"))).await
    }

    /// An order to the supervisor. On a thread for blocking work: the test's own tasks go on meanwhile.
    pub async fn order(&self, order: &'static str) -> Result<Option<u32>, String> {
        let supervisor = self.supervisor.clone();
        tokio::task::spawn_blocking(move || supervisor.lock().expect("not poisoned").order(order))
            .await
            .map_err(|e| e.to_string())?
            .map_err(|e| format!("{order}: {e}"))
    }
}
