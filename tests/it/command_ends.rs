//! The `mcp-courier` command when what is around it stops: its reader, its user, its other sessions.

use std::time::Duration;

use serde_json::Value;

use crate::support::cli::{Running, run};
use crate::support::fixture::{Fixture, push, session};
use crate::support::private::{Options, private_or_skip};
use crate::support::wait::wait_until;

const SOON: Duration = Duration::from_secs(20);

/// A full pipe holds up the lines; it once held up the heartbeat and the signals as well.
#[tokio::test]
async fn listen_hears_sigterm_while_its_reader_stands_still() {
    let Some(t) = super::command::with_server("cli_still").await else { return };
    let courier = t.courier().await;
    let names = ["a", "b", "c", "d"];
    let body = format!("{{\"method\":\"m\",\"params\":\"{}\"}}", "x".repeat(200_000));
    for name in names {
        for _ in 0..3 {
            courier.push(push(&session(name), &body)).await.expect("queued");
        }
    }
    let mut args = vec!["listen"];
    args.extend(names.iter().flat_map(|name| ["--session", name]));
    let mut listen = Running::start(&t.command(&args));
    // No pipe holds a second line.
    listen.json(SOON).await;
    listen.sigterm().await;
    assert_eq!(listen.wait(SOON).await.code(), Some(0), "{}", listen.stderr());
    let mut pending = 0;
    for name in names {
        let stats = courier.stats(&session(name)).await.expect("stats");
        assert_eq!((stats.owner, stats.head_attempts), (None, 0), "{name}");
        pending += stats.pending;
    }
    assert!(pending >= 10, "{pending}: one line was read, and one more may be acked at the most");
    for name in names {
        let rest = run(&t.command(&["listen", "--session", name, "--max", "1"]), "").await;
        assert_eq!(rest.status.code(), Some(0), "{name} can be served by another process");
    }
    leave_nothing(t, &names).await;
}

/// What a test leaves queued on purpose is delivered before its leftovers are counted.
async fn leave_nothing(t: Fixture, names: &[&str]) {
    let courier = t.courier().await;
    for name in names {
        let name = session(name);
        courier.subscribers().ensure_running(&name, |_| async { Ok(()) }).await.expect("claimed");
        crate::support::fixture::wait_pending(&courier, &name, 0).await;
    }
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The reader of the answers goes; the lines on stdin are still for the queue.
#[tokio::test]
async fn push_goes_on_when_nobody_reads_its_answers() {
    let Some(t) = super::command::with_server("cli_muted").await else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let input = folder.path().join("input");
    let lines: String =
        (0..3000).map(|n| format!("{{\"method\":\"m\",\"params\":{{\"n\":{n}}}}}\n")).collect();
    std::fs::write(&input, lines).expect("written");
    let line = format!(
        "('{}' --url '{}' --prefix '{}' push --session s - < '{}'; echo $? >&2) | head -c 1",
        env!("CARGO_BIN_EXE_mcp-courier"),
        t.server.url(),
        t.prefix,
        input.display(),
    );
    let output = tokio::process::Command::new("sh").arg("-c").arg(&line).output().await.expect("sh");
    assert_eq!(
        (output.stdout.len(), String::from_utf8_lossy(&output.stderr).into_owned()),
        (1, "0\n".to_owned())
    );
    let courier = t.courier().await;
    assert_eq!(courier.stats(&session("s")).await.expect("stats").pending, 3000);
    leave_nothing(t, &["s"]).await;
}

/// A prefix of its own, that no other process sweeps: an interrupted demo takes its sessions with it.
#[tokio::test]
async fn demo_leaves_nothing_behind_when_it_is_interrupted() {
    let Some(t) = super::command::with_server("cli_demo_int").await else { return };
    let mut demo = Running::start(&t.command(&["demo", "--messages", "1000000"]));
    wait_until("it works", SOON, || async {
        let keys = t.keys().await;
        if keys.iter().any(|(key, _)| key.contains(":b:")) { Ok(()) } else { Err(format!("{keys:?}")) }
    })
    .await;
    demo.sigint().await;
    assert_eq!(demo.wait(SOON).await.code(), Some(1), "{}", demo.stderr());
    assert!(demo.stderr().contains("interrupted"), "{}", demo.stderr());
    t.finish().await;
}

/// A demo is short, or long: its server side dies five times, and each time with messages in its hands.
#[tokio::test]
async fn demo_kills_in_the_middle_of_a_delivery_however_short_it_is() {
    for (messages, sessions) in [("1", "1"), ("6", "3"), ("100", "7")] {
        let args = ["demo", "--json", "--messages", messages, "--sessions", sessions];
        let output = run(&args, "").await;
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let last: Value = serde_json::from_slice(&output.stdout).expect("one object");
        assert_eq!((&last["kills"], &last["lost"]), (&5.into(), &0.into()), "{last}");
        assert!(last["redelivered"].as_u64() >= Some(5), "{last}");
    }
}

/// One session takes the last line while another session's is still on its way, and fails then: one more is due.
#[tokio::test]
async fn listen_counts_only_what_was_taken_towards_max() {
    let Some(t) = super::command::with_server("cli_max").await else { return };
    let courier = t.courier().await;
    for name in ["a", "b"] {
        for _ in 0..2 {
            courier.push(push(&session(name), r#"{"method":"m"}"#)).await.expect("queued");
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("taken");
    let script = format!(
        r#"read -r line; cd '{}'
        case $line in
        *'"a"'*'"attempt":1,'*) touch begun; until [ -s taken ]; do sleep 0.01; done; exit 1 ;;
        *) until [ -e begun ]; do sleep 0.01; done; echo "$line" >> taken ;;
        esac"#,
        folder.path().display()
    );
    let args = ["listen", "--session", "a", "--session", "b", "--max", "2", "--exec", &script];
    let mut listen = Running::start(&t.command(&args));
    assert_eq!(listen.wait(SOON).await.code(), Some(0), "{}", listen.stderr());
    let taken = std::fs::read_to_string(&file).expect("written").lines().count();
    let (a, b) = (courier.stats(&session("a")).await, courier.stats(&session("b")).await);
    assert_eq!((taken, a.expect("stats").pending + b.expect("stats").pending), (2, 2));
    leave_nothing(t, &["a", "b"]).await;
}

/// A service without INFO: nothing is known about it, and it works.
#[tokio::test]
async fn doctor_says_unknown_where_the_server_does_not_tell() {
    let options = Options { extra: &["--rename-command", "INFO", ""], ..Options::default() };
    let Some(server) = private_or_skip("cli_no_info", options).await else { return };
    let output = run(&["--url", &server.url(), "--json", "doctor"], "").await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let verdicts: Vec<String> = text
        .lines()
        .map(|l| {
            serde_json::from_str::<Value>(l).expect("an object")["verdict"].as_str().expect("text").into()
        })
        .collect();
    let unknown = ["unknown"; 7];
    assert_eq!(verdicts, [&unknown[..], &["ok"; 3]].concat(), "{text}");
}

/// Each setting that docs/operating.md asks for, set wrong: `doctor` names it, says what to change, and its exit code tells
/// a problem from a warning.
#[tokio::test]
async fn doctor_names_each_setting_of_the_page_that_is_wrong() {
    let options = Options { extra: &["--save", "3600 1"], ..Options::default() };
    let Some(server) = private_or_skip("cli_doctor_wrong", options).await else { return };
    let mut raw = server.raw().await;
    let look = async || {
        let output = run(&["--url", &server.url(), "--json", "doctor"], "").await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let checks: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("an object")).collect();
        (output.status.code(), checks)
    };
    let verdict = |checks: &[Value], name: &str| {
        let found =
            checks.iter().find(|c| c["check"] == name).unwrap_or_else(|| panic!("{name}: {checks:?}"));
        let advice = found["advice"].as_str().expect("text").to_owned();
        (found["verdict"].as_str().expect("text").to_owned(), advice)
    };
    let (code, checks) = look().await;
    assert_eq!(code, Some(0), "{checks:?}");
    assert_eq!(verdict(&checks, "persistence").0, "warning", "no append-only file");
    for (setting, value, name, expected, words, exit) in [
        ("appendonly", "yes", "persistence", "ok", "", 0),
        ("maxmemory-policy", "allkeys-lru", "eviction policy", "warning", "noeviction", 0),
        ("maxmemory", "100mb", "eviction policy", "problem", "noeviction", 1),
        ("maxmemory-policy", "noeviction", "eviction policy", "ok", "", 0),
        ("maxmemory", "1mb", "memory", "warning", "maxmemory", 1),
        ("maxmemory", "0", "memory", "ok", "", 0),
    ] {
        redis::cmd("CONFIG").arg("SET").arg(setting).arg(value).exec_async(&mut raw).await.expect("set");
        let (code, checks) = look().await;
        let (found, advice) = verdict(&checks, name);
        assert_eq!((&*found, code), (expected, Some(exit)), "{setting} {value}: {checks:?}");
        assert!(advice.contains(words), "{setting} {value}: {advice}");
    }
    // A replica, and a server whose disk fails.
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).exec_async(&mut raw).await.expect("a replica");
    let (code, checks) = look().await;
    assert_eq!((verdict(&checks, "role").0.as_str(), code), ("problem", Some(1)), "{checks:?}");
}

/// `MCP_COURIER_URL=` is how scripts say that there is none.
#[tokio::test]
async fn an_empty_url_in_the_environment_is_none() {
    let mut stats = Running::start_with(&["stats"], &[("MCP_COURIER_URL", "")]);
    assert_eq!(stats.wait(SOON).await.code(), Some(2));
    assert!(stats.stderr().contains("--url"), "{}", stats.stderr());
    let args = ["demo", "--json", "--messages", "10"];
    let mut demo = Running::start_with(&args, &[("MCP_COURIER_URL", "")]);
    assert_eq!(demo.wait(SOON).await.code(), Some(0), "{}", demo.stderr());
}
