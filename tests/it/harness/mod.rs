//! The harness tested: a test suite proves nothing while its tools may be wrong.

mod backends;
mod checks;
mod life;
mod proxy;

use std::process::{Command, Output, Stdio};

/// What a copy of this test program is told to do. Set only for the children below.
const ROLE: &str = "MCP_COURIER_TEST_ROLE";

/// This program again, running only [`child`] in a role, with nothing of the environment that chooses a server.
fn copy(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "harness::child", "--ignored", "--nocapture", "--test-threads=1"]);
    for name in ["TEST_REDIS", "REDIS_URL", "TEST_REDIS_SERVER", "NEXTEST_RUN_ID"] {
        command.env_remove(name);
    }
    command.env(ROLE, role).stdin(Stdio::null());
    command
}

/// Runs a copy to its end, on a thread for blocking work.
async fn output(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || command.output().expect("a copy of this program"))
        .await
        .expect("no panic")
}

/// All that a copy said.
fn said(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The value that a copy printed as `name=value`.
fn value(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|l| l.split_once(&format!("{name}="))).map(|(_, v)| v.trim().to_owned())
}

/// No test: what the copies do.
#[tokio::test]
#[ignore = "runs as a child of other tests"]
async fn child() {
    match std::env::var(ROLE).as_deref() {
        Ok("shared") => backends::print_shared().await,
        Ok("runner") => life::be_a_runner().await,
        Ok(role) => life::hold_a_server(role).await,
        Err(_) => {}
    }
}
