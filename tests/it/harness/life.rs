//! A server lives as long as it is wanted and not a moment longer, however its user ends.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use super::{copy, output, said, value};
use crate::support::backend::{Kind, backend};
use crate::support::private::{Options, PrivateServer, private_or_skip};
use crate::support::server;
use crate::support::wait::wait_until;
use crate::support::{docker, names};

/// How a copy ends that holds a server of its own: by a panic, by abort, or not at all until it is killed.
pub(super) async fn hold_a_server(role: &str) {
    let private = PrivateServer::start(Options::default()).await.expect("a private server");
    let shared = server::shared().await;
    println!("\nprivate={}\nshared={}\nready=yes", private.url(), shared.url());
    match role {
        "panic" => panic!("as told"),
        "abort" => std::process::abort(),
        "wait" => std::future::pending().await,
        other => panic!("no such role: {other}"),
    }
}

/// Three test processes of one run, as a runner starts them. What they print is what this prints.
pub(super) async fn be_a_runner() {
    let run = names::unique("run").replace('-', "");
    let copies: Vec<_> = (0..3)
        .map(|_| {
            let mut command = copy("shared");
            command.env("NEXTEST_RUN_ID", &run).env("TEST_REDIS", std::env::var("AS").expect("set"));
            tokio::spawn(output(command))
        })
        .collect();
    for copy in copies {
        let output = copy.await.expect("no panic");
        assert!(output.status.success(), "{}", said(&output));
        println!("\n{}", String::from_utf8_lossy(&output.stdout));
    }
}

/// The backend of this run by name, where it is one that starts servers.
async fn starts_servers(test: &str) -> Option<&'static str> {
    let name = match backend().await.expect("a backend").kind() {
        Kind::Docker => Some("docker"),
        Kind::Binary => Some("binary"),
        Kind::Url | Kind::Memory | Kind::Sentinel | Kind::Cluster => None,
    };
    if name.is_none() {
        eprintln!("{test}: skipped: needs a backend that starts servers");
    }
    name
}

async fn assert_gone(url: &str) {
    let address = url.trim_start_matches("redis://").to_owned();
    wait_until(&format!("{url} to be gone"), Duration::from_secs(20), || async {
        match TcpStream::connect(&address) {
            Ok(_) => Err("still accepts connections".into()),
            Err(_) => Ok(()),
        }
    })
    .await;
}

/// Reads what a copy prints until it says that it is ready.
fn until_ready(child: &mut Child) -> String {
    let mut text = String::new();
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    while let Some(Ok(line)) = lines.next() {
        text.push_str(&line);
        text.push('\n');
        if line == "ready=yes" {
            return text;
        }
    }
    panic!("the copy ended early: {text}");
}

#[tokio::test]
async fn a_test_process_that_is_killed_aborts_or_panics_leaves_no_server() {
    let Some(backend) = starts_servers("leaves_no_server").await else { return };
    for role in ["wait", "abort", "panic"] {
        let mut command = copy(role);
        let files = tempfile::tempdir().expect("a folder");
        command.env("TEST_REDIS", backend).env("TMPDIR", files.path());
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("a copy of this program");
        let child_pid = child.id();
        let (mut child, text) = tokio::task::spawn_blocking(move || {
            let text = until_ready(&mut child);
            (child, text)
        })
        .await
        .expect("the copy is ready");
        if role == "wait" {
            child.kill().expect("killed");
        }
        tokio::task::spawn_blocking(move || child.wait()).await.expect("no panic").expect("it ended");
        for name in ["private", "shared"] {
            let url = value(&text, name).expect("printed");
            assert_ne!(url, server::shared().await.url());
            assert_gone(&url).await;
        }
        assert_nothing_left(files.path(), child_pid).await;
    }
}

/// One server for a run of nextest, and none after it.
#[tokio::test]
async fn the_processes_of_a_run_share_a_server_that_ends_with_the_run() {
    let Some(backend) = starts_servers("ends_with_the_run").await else { return };
    let files = tempfile::tempdir().expect("a folder");
    let mut command = copy("runner");
    command.env("AS", backend).env("TMPDIR", files.path());
    let output = output(command).await;
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    let urls: Vec<_> = text.lines().filter_map(|l| l.split_once("url=")).map(|(_, url)| url.trim()).collect();
    assert_eq!(urls.len(), 3, "{text}");
    assert!(urls.iter().all(|u| *u == urls[0]), "{urls:?}");
    assert_gone(urls[0]).await;
    wait_until("the run's folder to be gone", Duration::from_secs(20), || async { empty(files.path()) })
        .await;
}

fn empty(folder: &Path) -> Result<(), String> {
    let left: Vec<_> = std::fs::read_dir(folder).expect("a folder").flatten().map(|e| e.path()).collect();
    if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
}

/// No file of the servers that a process started, and no container.
async fn assert_nothing_left(files: &Path, pid: u32) {
    wait_until("its files to be gone", Duration::from_secs(20), || async { empty(files) }).await;
    if backend().await.expect("a backend").kind() == Kind::Docker {
        wait_until("its containers to be gone", Duration::from_secs(20), || async {
            let left = docker::containers_of(pid);
            if left.is_empty() { Ok(()) } else { Err(left) }
        })
        .await;
    }
}

async fn set(server: &PrivateServer, key: &str, value: &str) {
    redis::cmd("SET").arg(key).arg(value).exec_async(&mut server.raw().await).await.expect("SET");
}

async fn get(server: &PrivateServer, key: &str) -> Option<String> {
    redis::cmd("GET").arg(key).query_async(&mut server.raw().await).await.expect("GET")
}

#[tokio::test]
async fn a_private_server_keeps_port_and_data_over_sigkill_and_stop() {
    let options = Options { appendonly: true, ..Options::default() };
    let Some(server) = private_or_skip("keeps_port_and_data", options).await else { return };
    let url = server.url();
    set(&server, "a", "1").await;
    server.sigkill().await;
    TcpStream::connect(("127.0.0.1", server.port())).expect_err("nobody listens");
    server.start_again().await;
    assert_eq!(get(&server, "a").await.as_deref(), Some("1"));
    set(&server, "b", "2").await;
    server.stop().await;
    TcpStream::connect(("127.0.0.1", server.port())).expect_err("nobody listens");
    server.start_again().await;
    assert_eq!(get(&server, "b").await.as_deref(), Some("2"));
    assert_eq!(server.url(), url);
    drop(server);
    assert_gone(&url).await;
}

#[tokio::test]
async fn a_private_server_that_was_killed_and_dropped_leaves_nothing() {
    let Some(server) = private_or_skip("killed_and_dropped", Options::default()).await else { return };
    let url = server.url();
    server.sigkill().await;
    drop(server);
    assert_gone(&url).await;
}

#[tokio::test]
async fn a_paused_server_keeps_its_connections_and_answers_after_it() {
    let options = Options { extra: &["--maxmemory", "50mb"], ..Options::default() };
    let Some(server) = private_or_skip("paused", options).await else { return };
    let mut raw = server.raw().await;
    let (_, limit): (String, String) =
        redis::cmd("CONFIG").arg("GET").arg("maxmemory").query_async(&mut raw).await.expect("CONFIG");
    assert_eq!(limit, "52428800");
    server.pause().await;
    let ping = redis::cmd("PING");
    let mut answer = std::pin::pin!(ping.query_async::<String>(&mut raw));
    let early = tokio::time::timeout(Duration::from_millis(300), &mut answer).await;
    assert!(early.is_err(), "a frozen server answered: {early:?}");
    server.resume().await;
    assert_eq!(answer.await.as_deref(), Ok("PONG"), "the same connection goes on");
}
