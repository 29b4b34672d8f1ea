//! A real FastMCP 3 in a virtual environment.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::OnceCell;
use tokio::time::timeout;

/// The newest of the 3.x line.
const PACKAGE: &str = "fastmcp[tasks]==3.4.11";

/// `python` with FastMCP 3; `None` with a line on stderr when there is none and none can be made. `FASTMCP_PYTHON` names
/// one that has it already.
pub async fn python_or_skip(test: &str) -> Option<PathBuf> {
    static PYTHON: OnceCell<Option<PathBuf>> = OnceCell::const_new();
    let python = PYTHON.get_or_init(install).await.clone();
    if python.is_none() {
        eprintln!("skipped: {test}: no python3, or {PACKAGE} cannot be installed");
    }
    python
}

async fn install() -> Option<PathBuf> {
    if let Some(python) = std::env::var_os("FASTMCP_PYTHON") {
        return has_it(Path::new(&python)).await.then(|| python.into());
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fastmcp-3.4.11");
    let python = folder.join("bin/python");
    if !has_it(&python).await {
        // As in the tests with another client: `PYTHON` says which.
        let base = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
        run(Path::new(&base), &["-m", "venv", "--clear", folder.to_str()?]).await.then_some(())?;
        run(&python, &["-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE])
            .await
            .then_some(())?;
    }
    has_it(&python).await.then_some(python)
}

async fn has_it(python: &Path) -> bool {
    run(python, &["-c", "import fastmcp.server.tasks.notifications, docket"]).await
}

async fn run(program: &Path, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let Ok(mut child) = command.spawn() else { return false };
    let ended = timeout(Duration::from_secs(300), child.wait()).await;
    matches!(ended, Ok(Ok(status)) if status.success())
}

/// `tests/it/fastmcp_peer.py`, running. Dropped, it is killed; its stdin closed, it ends.
pub struct FastMcpProcess {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl FastMcpProcess {
    pub fn start(python: &Path, args: &[&str]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/fastmcp_peer.py");
        let mut child = Command::new(python)
            .arg(script)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .expect("python starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, lines }
    }

    /// The next line. Python takes its time to import.
    pub async fn line(&mut self) -> serde_json::Value {
        let line = timeout(Duration::from_secs(90), self.lines.next_line()).await.expect("a line in time");
        let line = line.expect("text").expect("it goes on");
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"))
    }

    pub async fn end(mut self) {
        drop(self.child.stdin.take());
        let ended = timeout(Duration::from_secs(30), self.child.wait()).await;
        assert!(ended.expect("it ends").expect("a status").success());
    }
}
