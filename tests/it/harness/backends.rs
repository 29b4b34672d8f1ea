//! Where the server comes from, and what is said when there is none.

use std::os::unix::fs::PermissionsExt;

use super::{copy, output, said, value};
use crate::support::backend::{Backend, Kind, backend};
use crate::support::{binary, docker, names, private, server};

pub(super) async fn print_shared() {
    let server = server::shared().await;
    let mut raw = server.raw().await;
    redis::cmd("PING").exec_async(&mut raw).await.expect("PONG");
    println!("\nkind={:?}\nurl={}", server.kind(), server.url());
}

/// The tests of one run meet on one server, and no two of them in one prefix.
#[tokio::test]
async fn all_tests_share_a_server_and_none_a_prefix() {
    let (a, b) = (server::shared().await, server::shared().await);
    assert_eq!(a.kind(), b.kind());
    if a.kind() == Kind::Memory {
        assert_ne!(a.url(), b.url(), "an engine costs nothing: each fixture has one");
    } else {
        assert_eq!(a.url(), b.url());
    }
    let prefixes: Vec<_> = (0..3).map(|_| names::prefix("some::test")).collect();
    assert!(prefixes.iter().all(|p| p.ends_with("some__test") && p.len() <= 128), "{prefixes:?}");
    assert!(prefixes[0] != prefixes[1] && prefixes[1] != prefixes[2]);
    let fine = |c: char| c.is_ascii_alphanumeric() || c == ':' || c == '_';
    assert!(prefixes.iter().flat_map(|p| p.chars()).all(fine), "{prefixes:?}");
}

/// What was asked for and is not there is an error that says so. Nothing else takes its place.
#[tokio::test]
async fn a_forced_server_that_is_absent_is_an_error() {
    let cases: [(&[(&str, &str)], &str); 8] = [
        (
            &[("TEST_REDIS", "docker"), ("DOCKER_HOST", "unix:///nowhere/docker.sock")],
            "TEST_REDIS=docker, but",
        ),
        (&[("TEST_REDIS", "binary"), ("PATH", "/nowhere")], "no redis-server or valkey-server on PATH"),
        (
            &[("TEST_REDIS", "binary"), ("TEST_REDIS_SERVER", "/nowhere/redis")],
            "TEST_REDIS_SERVER: /nowhere/redis",
        ),
        (&[("TEST_REDIS", "binary"), ("TEST_REDIS_SERVER", "/bin/true")], "/bin/true is not Redis or Valkey"),
        (&[("TEST_REDIS_SERVER", "/bin/true")], "/bin/true is not Redis or Valkey"),
        (&[("TEST_REDIS", "url")], "REDIS_URL is not set"),
        (&[("TEST_REDIS", "other")], "use url, docker, binary, sentinel, cluster or memory"),
        (&[("REDIS_URL", "redis://127.0.0.1:1")], "cannot connect to redis://127.0.0.1:1"),
    ];
    for (environment, expected) in cases {
        let mut command = copy("shared");
        command.envs(environment.iter().copied());
        let output = output(command).await;
        let text = said(&output);
        assert!(!output.status.success() && text.contains(expected), "{environment:?}: {text}");
        assert_eq!(value(&text, "kind"), None, "{environment:?}: {text}");
    }
}

/// Without any server at all the message says what was tried, and three ways out.
#[tokio::test]
async fn no_server_at_all_is_an_error_with_three_ways_out() {
    let mut command = copy("shared");
    command.env("DOCKER_HOST", "unix:///nowhere/docker.sock").env("PATH", "/nowhere");
    let output = output(command).await;
    let text = said(&output);
    assert!(!output.status.success(), "{text}");
    let tried = ["REDIS_URL is not set", "Docker: ", "program: no redis-server"];
    for part in tried.iter().chain(&["start Docker", "apt install redis-server", "set REDIS_URL"]) {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// A machine without Docker uses the program, and says that it passed Docker over.
#[tokio::test]
async fn without_docker_the_program_is_used_and_that_is_said() {
    if binary::find().is_err() {
        eprintln!("skipped: needs a server program");
        return;
    }
    let mut command = copy("shared");
    command.env("DOCKER_HOST", "unix:///nowhere/docker.sock");
    let text = said(&output(command).await);
    assert_eq!(value(&text, "kind").as_deref(), Some("Binary"), "{text}");
    assert!(text.contains("Docker passed over"), "{text}");
}

/// A program of the right name that is no Redis is passed over for the real one behind it.
#[tokio::test]
async fn a_stranger_called_redis_server_is_not_used() {
    let Ok(real) = binary::find() else {
        eprintln!("skipped: needs a server program");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let stranger = folder.path().join("redis-server");
    std::fs::write(&stranger, "#!/bin/sh\necho redis-server 0.1.0\n").expect("written");
    std::fs::set_permissions(&stranger, std::fs::Permissions::from_mode(0o755)).expect("executable");
    // Whatever the real one is called where it lives.
    let behind = tempfile::tempdir().expect("another folder");
    let named = behind.path().join("redis-server");
    std::os::unix::fs::symlink(&real, &named).expect("a link");
    // What cleans up behind the server is found as ever.
    let others = std::env::var_os("PATH").unwrap_or_default();
    let all = [folder.path().to_owned(), behind.path().to_owned()]
        .into_iter()
        .chain(std::env::split_paths(&others));
    let path = std::env::join_paths(all).expect("a path");
    let mut command = copy("shared");
    command.env("TEST_REDIS", "binary").env("PATH", path);
    let text = said(&output(command).await);
    assert_eq!(value(&text, "kind").as_deref(), Some("Binary"), "{text}");
    assert!(text.contains(&named.display().to_string()), "{text}");
}

/// Each branch gives a server that answers, wherever this machine has what it takes.
#[tokio::test]
async fn each_branch_gives_a_server() {
    let mut branches: Vec<(&str, &str, String)> = Vec::new();
    let found = match backend().await.expect("a backend") {
        Backend::Url(url) => Some(url),
        _ => None,
    };
    let private = private::PrivateServer::start(private::Options::default()).await;
    if let Some(url) = found.or_else(|| private.as_ref().map(private::PrivateServer::url)) {
        branches.push(("url", "Url", url));
    }
    if docker::available().await.is_ok() {
        branches.push(("docker", "Docker", String::new()));
    }
    if binary::find().is_ok() {
        branches.push(("binary", "Binary", String::new()));
    }
    for (forced, kind, url) in branches {
        let mut command = copy("shared");
        command.env("TEST_REDIS", forced).env("REDIS_URL", &url);
        let text = said(&output(command).await);
        assert_eq!(value(&text, "kind").as_deref(), Some(kind), "{text}");
        if forced == "url" {
            assert_eq!(value(&text, "url"), Some(url), "{text}");
        }
    }
}
