//! The `mcp-courier` command, as its users run it.

use std::time::Duration;

use mcp_courier::SinkError;
use serde_json::{Value, json};

use crate::support::cli::{Running, run};
use crate::support::fixture::{Fixture, Recorder, push, session, wait_pending};
use crate::support::wait::wait_until;

/// A server that other processes reach, or a line that says why the test does nothing.
pub(crate) async fn with_server(test: &str) -> Option<Fixture> {
    let t = Fixture::new(test).await;
    if t.server.url().starts_with("memory:") {
        eprintln!("{test}: skipped: other processes do not reach memory://");
        return None;
    }
    Some(t)
}

impl Fixture {
    pub(crate) fn command<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        [&["--url", self.server.url(), "--prefix", &self.prefix, "--json"], args].concat()
    }
}

fn lines(output: &std::process::Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

#[tokio::test]
async fn demo_on_memory_loses_nothing_and_says_so() {
    let output = run(&["demo", "--json", "--messages", "2000"], "").await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let last = lines(&output).pop().expect("the table");
    for (name, value) in
        [("pushed", 2000), ("delivered", 2000), ("lost", 0), ("out_of_order", 0), ("kills", 5)]
    {
        assert_eq!(last[name], value, "{last}");
    }
    assert!(last["redelivered"].is_u64() && last["latency"]["p99_us"].is_u64(), "{last}");
    let table = run(&["demo", "--messages", "200", "--sessions", "3"], "").await;
    let text = String::from_utf8_lossy(&table.stdout).into_owned();
    for name in ["pushed", "delivered", "redelivered", "lost", "out_of_order", "latency"] {
        assert!(text.lines().any(|l| l.starts_with(name)), "{text}");
    }
}

#[tokio::test]
async fn demo_on_a_server_loses_nothing_and_leaves_nothing_that_stays() {
    let Some(t) = with_server("cli_demo").await else { return };
    let output = run(&t.command(&["demo", "--messages", "2000"]), "").await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(lines(&output)[0]["lost"], 0);
    t.finish().await;
}

/// Bytes go through as they are, in the order of the lines; every line has its answer.
#[tokio::test]
async fn push_reads_lines_and_answers_each_in_order() {
    let Some(t) = with_server("cli_push").await else { return };
    let deep = format!("{}{}", "[".repeat(1200), "]".repeat(1200));
    let good = [
        r#"{"method":"a","params":{"n":9007199254740993,"f":-0.0,"e":[],"o":{}}}"#.to_owned(),
        format!(r#"{{"method":"deep","params":{deep}}}"#),
        r#"{ "method" : "spaced",  "params":{"same":1,"same":2} }"#.to_owned(),
        r#"{"method":"last","unknown":["kept",1e400]}"#.to_owned(),
    ];
    let input =
        format!("{}\nnot json\n{}\n\n[]\n{{\"params\":1}}\n{}\n{}\n", good[0], good[1], good[2], good[3]);
    let output = run(&t.command(&["push", "--session", "s: {}", "-"]), &input).await;
    assert_eq!(output.status.code(), Some(1), "some lines were no notification: {output:?}");
    let statuses: Vec<_> =
        lines(&output).iter().map(|l| l["status"].as_str().expect("text").to_owned()).collect();
    assert_eq!(statuses, ["queued", "invalid", "queued", "invalid", "invalid", "queued", "queued"]);
    assert!(
        lines(&output)
            .iter()
            .all(|l| l["session"] == "s: {}" && (l["id"].is_string() != l["error"].is_string()))
    );

    let listen = run(&t.command(&["listen", "--session", "s: {}", "--max", "4"]), "").await;
    assert_eq!(listen.status.code(), Some(0), "{listen:?}");
    let text = String::from_utf8_lossy(&listen.stdout).into_owned();
    for (line, sent) in text.lines().zip(&good) {
        let notification =
            line.split_once(r#""notification":"#).expect("a member").1.strip_suffix('}').expect("the end");
        assert_eq!(notification, sent, "byte for byte");
    }
    assert_eq!(text.lines().count(), 4);
    t.finish().await;
}

/// Ten thousand lines keep their order on the way to the queue.
#[tokio::test]
async fn push_pipelines_ten_thousand_lines_in_order() {
    let Some(t) = with_server("cli_pipe").await else { return };
    let input: String =
        (0..10_000).map(|n| format!("{{\"method\":\"m\",\"params\":{{\"n\":{n}}}}}\n")).collect();
    let output = run(&t.command(&["push", "--session", "s", "-"]), &input).await;
    assert_eq!((output.status.code(), lines(&output).len()), (Some(0), 10_000));
    let courier = t.courier().await;
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&session("s"), sink.clone()).await.expect("claimed");
    let bodies = sink.wait_for(10_000).await.concat();
    assert_eq!(bodies, input.replace('\n', ""));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

#[tokio::test]
async fn push_knows_ids_ttl_and_full_queues() {
    let Some(t) = with_server("cli_ids").await else { return };
    let body = r#"{"method":"m"}"#;
    for status in ["queued", "duplicate"] {
        let output =
            run(&t.command(&["push", "--session", "s", "--id", "one", "--ttl", "1h", body]), "").await;
        assert_eq!(lines(&output), [json!({ "session": "s", "id": "one", "status": status })]);
    }
    for (args, code) in [
        (vec!["push", "--session", "s", "--ttl", "0s", body], 2),
        (vec!["push", "--session", "s", "--ttl", "-1s", body], 2),
        (vec!["push", "--session", "", body], 2),
        (vec!["push", "--session", "s", "--id", "x", "-"], 2),
        (vec!["push", "--session", "s", "{}"], 2),
        (vec!["push", "--session", "s", r#"["m"]"#], 2),
        (vec!["listen"], 2),
        (vec!["listen", "--session", "s", "--fail-rate", "2"], 2),
        (vec!["dead", "purge", "--session", "s"], 2),
        (vec!["no-such-command"], 2),
    ] {
        let output = run(&t.command(&args), "").await;
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        assert!(!output.stderr.is_empty(), "{args:?} says why");
    }
    t.finish().await;
}

#[tokio::test]
async fn no_server_and_memory_between_processes_are_told_apart() {
    for (args, code, words) in [
        (&["stats"][..], 2, "--url"),
        (&["stats", "--url", "memory://"], 2, "one process"),
        (&["stats", "--url", "redis://127.0.0.1:1"], 3, "127.0.0.1:1"),
        (&["stats", "--url", "http://u:s3cret@x"], 2, "unknown scheme"),
        (&["push", "--session", "s", "--url", "redis://127.0.0.1:1", r#"{"method":"m"}"#], 3, "connect"),
    ] {
        let output = run(args, "").await;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(words) && !said.contains("s3cret"), "{args:?}: {said}");
    }
}

/// Printed, flushed, and only then acked; SIGTERM and Ctrl-C give the sessions back.
#[tokio::test]
async fn listen_gives_its_sessions_back_when_it_is_told_to_stop() {
    let Some(t) = with_server("cli_stop").await else { return };
    let courier = t.courier().await;
    for signal in ["term", "int"] {
        let mut listen = Running::start(&t.command(&["listen", "--session", "a", "--session", "b"]));
        courier.push(push(&session("b"), r#"{"method":"m"}"#)).await.expect("queued");
        let line = listen.json(Duration::from_secs(10)).await;
        assert_eq!(
            (&line["session"], &line["attempt"], &line["notification"]),
            (&json!("b"), &json!(1), &json!({ "method": "m" }))
        );
        match signal {
            "term" => listen.sigterm().await,
            _ => listen.sigint().await,
        }
        let status = listen.wait(Duration::from_secs(10)).await;
        assert_eq!(status.code(), Some(0), "{}", listen.stderr());
        for s in ["a", "b"] {
            let stats = courier.stats(&session(s)).await.expect("stats");
            assert_eq!((stats.owner, stats.pending), (None, 0), "{s} after {signal}");
        }
    }
    t.finish().await;
}

#[tokio::test]
async fn listen_ends_when_another_process_claims_its_session() {
    let Some(t) = with_server("cli_claimed").await else { return };
    let mut listen = Running::start(&t.command(&["listen", "--session", "s"]));
    let courier = t.courier().await;
    let s = session("s");
    wait_until("claimed", Duration::from_secs(10), || async {
        let stats = courier.stats(&s).await.expect("stats");
        if stats.owner.is_some() { Ok(()) } else { Err(format!("{stats:?}")) }
    })
    .await;
    courier.subscribers().ensure_running(&s, Recorder::new()).await.expect("claimed");
    let status = listen.wait(Duration::from_secs(10)).await;
    assert_eq!(status.code(), Some(1));
    assert!(listen.stderr().contains("claimed by another process"), "{}", listen.stderr());
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// `--exec`: the command's end with 0 is the delivery; another end is a failed attempt.
#[tokio::test]
async fn listen_acks_when_the_command_ends_with_zero() {
    let Some(t) = with_server("cli_exec").await else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("lines");
    let courier = t.courier().await;
    let s = session("s");
    for n in 0..3 {
        courier.push(push(&s, &format!("{{\"method\":\"m{n}\"}}"))).await.expect("queued");
    }
    // Fails the first time for each message, by the attempt that stands in the line.
    let script = format!("cat >> '{f}'; tail -1 '{f}' | grep -q '\"attempt\":2'", f = file.display());
    let mut listen =
        Running::start(&t.command(&["listen", "--session", "s", "--max", "3", "--exec", &script]));
    assert_eq!(listen.wait(Duration::from_secs(20)).await.code(), Some(0), "{}", listen.stderr());
    let text = std::fs::read_to_string(&file).expect("written");
    let seen: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("a line")).collect();
    let methods: Vec<_> = seen.iter().map(|l| l["notification"]["method"].as_str().expect("text")).collect();
    assert_eq!(methods, ["m0", "m0", "m1", "m1", "m2", "m2"]);
    assert_eq!(courier.stats(&s).await.expect("stats").pending, 0);
    t.finish().await;
}

/// A reader that goes away: a quiet end, and what was not printed is not acked.
#[tokio::test]
async fn listen_into_a_closed_pipe_ends_quietly_and_acks_nothing() {
    let Some(t) = with_server("cli_pipe_closed").await else { return };
    let courier = t.courier().await;
    let s = session("s");
    let body = format!("{{\"method\":\"m\",\"params\":\"{}\"}}", "x".repeat(100_000));
    for _ in 0..20 {
        courier.push(push(&s, &body)).await.expect("queued");
    }
    let program = env!("CARGO_BIN_EXE_mcp-courier");
    let url = t.server.url();
    let line = format!("'{program}' --url '{url}' --prefix '{}' listen --session s | head -c 10", t.prefix);
    let output = tokio::process::Command::new("sh").arg("-c").arg(&line).output().await.expect("sh");
    assert_eq!(
        (output.stdout.len(), String::from_utf8_lossy(&output.stderr).into_owned()),
        (10, String::new())
    );
    let left = courier.stats(&s).await.expect("stats");
    assert!(left.pending >= 18 && left.head_attempts == 0, "{left:?}");
    courier.subscribers().ensure_running(&s, Recorder::new()).await.expect("claimed");
    wait_pending(&courier, &s, 0).await;
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

#[tokio::test]
async fn dead_letters_are_listed_put_back_and_purged() {
    let Some(t) = with_server("cli_dead").await else { return };
    let courier = t.courier().await;
    let s = session("s");
    for body in [&br#"{"method":"m","params":[]}"#[..], b"\xff\0"] {
        courier.push(mcp_courier::Push::new(&s, body)).await.expect("queued");
    }
    courier
        .subscribers()
        .ensure_running(&s, Recorder::answering(|_| Err(SinkError::rejected("no"))))
        .await
        .expect("claimed");
    wait_pending(&courier, &s, 0).await;
    courier.subscribers().stop(&s).await;
    let list = lines(&run(&t.command(&["dead", "list", "--session", "s"]), "").await);
    assert_eq!(list.len(), 2);
    assert_eq!((&list[0]["reason"], &list[0]["last_error"]), (&json!("rejected"), &json!("no")));
    assert_eq!(
        (&list[0]["notification"], &list[1]["body_base64"]),
        (&json!({ "method": "m", "params": [] }), &json!("/wA="))
    );
    let id = list[0]["id"].as_str().expect("text").to_owned();
    let back = run(&t.command(&["dead", "requeue", "--session", "s", "--id", &id]), "").await;
    assert_eq!(lines(&back), [json!({ "requeued": 1 })]);
    let gone = run(&t.command(&["dead", "purge", "--session", "s", "--all"]), "").await;
    assert_eq!(lines(&gone), [json!({ "purged": 1 })]);
    let stats = lines(&run(&t.command(&["stats", "--session", "s"]), "").await);
    assert_eq!((&stats[0]["pending"], &stats[0]["dead"]), (&json!(1), &json!(0)));
    let all = lines(&run(&t.command(&["stats"]), "").await);
    assert_eq!((&all[0]["waiting"], &all[0]["pending"]), (&json!(1), &json!(1)));
    t.finish().await;
}

#[tokio::test]
async fn doctor_checks_the_server_and_names_what_to_change() {
    let Some(t) = with_server("cli_doctor").await else { return };
    let output = run(&t.command(&["doctor"]), "").await;
    let checks = lines(&output);
    let verdict = |name: &str| {
        let check =
            checks.iter().find(|c| c["check"] == name).unwrap_or_else(|| panic!("{name}: {checks:?}"));
        check["verdict"].as_str().expect("text").to_owned()
    };
    for name in ["version", "role", "round trip", "push, doorbell, delivery, ack"] {
        assert_eq!(verdict(name), "ok", "{checks:?}");
    }
    let problem = checks.iter().any(|c| c["verdict"] == "problem");
    assert_eq!(output.status.code(), Some(i32::from(problem)), "a warning is no failure: {checks:?}");
    assert!(
        checks
            .iter()
            .all(|c| c["verdict"] != "warning" || c["advice"].as_str().is_some_and(|a| !a.is_empty()))
    );
    t.finish().await;
}

/// The examples do what they say.
#[tokio::test]
async fn the_examples_run() {
    let cargo = |args: &[&str]| {
        let mut command = tokio::process::Command::new(env!("CARGO"));
        command.args(["run", "--quiet", "--all-features", "--example"]).args(args).kill_on_drop(true);
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        command
    };
    let output = cargo(&["quickstart"]).output().await.expect("cargo");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    let steps: Vec<_> = text.lines().filter(|l| l.starts_with('{')).collect();
    assert_eq!(steps.len(), 3, "{text}");
    assert!(steps[2].contains(r#""progress":3"#), "{text}");

    let Some(t) = with_server("cli_examples").await else { return };
    if std::env::var_os("REDIS_URL").is_some() {
        return; // It pushes under the default prefix: not on somebody's server.
    }
    let url = t.server.url();
    let both = cargo(&["two_processes", "--", url]).output().await.expect("cargo");
    assert!(both.status.success(), "{both:?}");
    let text = String::from_utf8_lossy(&both.stdout).into_owned();
    let counted: Vec<_> = text.lines().filter_map(|l| l.strip_prefix("client: ")).collect();
    assert_eq!(counted, (1..=20).map(|n| format!("{n} of 20")).collect::<Vec<_>>());
}
