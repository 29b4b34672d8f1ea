//! `mcp-courier soak`, short: it accounts for every message, says so, fails when there is something to find, and leaves
//! nothing behind. Its long runs are in docs/failures.md.

use std::time::Duration;

use serde_json::Value;

use crate::support::backend::{Backend, backend};
use crate::support::binary;
use crate::support::cli::{Running, run};
use crate::support::wait::wait_until;

/// The server program, where tests may start one.
async fn program(test: &str) -> Option<String> {
    let found = match backend().await.unwrap_or_else(|why| panic!("{why}")) {
        Backend::Binary(program) => Ok(program),
        Backend::Sentinel(_) | Backend::Cluster(_) => Err("one kind of server is enough".to_owned()),
        _ => binary::find(),
    };
    match found {
        Ok(program) => Some(program.display().to_string()),
        Err(why) => {
            eprintln!("{test}: skipped: {why}");
            None
        }
    }
}

const FAULTS: &str = "script-flush,client-kill,subscriber-kill,producer-kill,server-kill";

/// A few seconds of faults on one server.
fn args<'a>(program: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let args = ["soak", "--json", "--minutes", "0.1", "--seed", "7", "--sessions", "12", "--rate", "300"];
    [&args[..], &["--server-program", program], more].concat()
}

fn report(output: &std::process::Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_else(|| panic!("{output:?}"));
    serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

#[tokio::test]
async fn a_short_soak_on_one_server_accounts_for_every_message() {
    let Some(program) = program("soak_short").await else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("report.json").display().to_string();
    let output = run(&args(&program, &["--faults", FAULTS, "--out", &out]), "").await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("seed 7"), "{output:?}");
    let report = report(&output);
    let counts = &report["counts"];
    let count = |name: &str| counts[name].as_u64().unwrap_or_else(|| panic!("{name}: {counts}"));
    for none in ["lost", "lost_by_replication", "out_of_order", "phantoms", "repeated"] {
        assert_eq!(count(none), 0, "{none}: {report}");
    }
    assert_eq!(count("acknowledged"), count("delivered") + count("dead") + count("expired"), "{counts}");
    assert!(count("acknowledged") > 300 && count("duplicates") <= count("duplicates_bound"), "{counts}");
    assert_eq!((&report["seed"], &report["violations"]), (&7.into(), &Value::Array(Vec::new())));
    let recovery = report["recovery"].as_array().expect("a table");
    assert!(recovery.iter().all(|r| r["count"].as_u64() > Some(0) && r["first_max"].is_f64()), "{report}");
    let written = std::fs::read_to_string(&out).expect("a file");
    assert_eq!(serde_json::from_str::<Value>(&written).expect("JSON"), report);
}

/// The checker looks: what it is made to forget is lost, and what it is made to swap is out of order.
#[tokio::test]
async fn a_soak_that_finds_a_loss_or_a_disorder_fails_with_the_seed_and_the_history() {
    let Some(program) = program("soak_fails").await else { return };
    for (option, name, what) in
        [("--forget-one", "lost", "never delivered"), ("--swap-two", "out_of_order", "first delivered")]
    {
        let output = run(&args(&program, &["--faults", "script-flush", option]), "").await;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let report = report(&output);
        assert_eq!((&report["seed"], &report["counts"][name]), (&7.into(), &1.into()), "{report}");
        let violations = report["violations"].as_array().expect("a list");
        assert!(violations.len() == 1 && violations[0].to_string().contains(what), "{report}");
        let history = report["history"].to_string();
        assert!(history.contains("push acknowledged") && history.contains("claim"), "{report}");
    }
}

/// Its servers, its processes and their folders go with it, however it goes.
#[tokio::test]
async fn a_soak_that_is_killed_or_interrupted_leaves_no_process_and_no_folder() {
    let Some(program) = program("soak_ends").await else { return };
    for kill in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().display().to_string();
        let log = folder.path().join("log").display().to_string();
        let more = ["--faults", "subscriber-pause", "--minutes", "5", "--log", &log];
        let args: Vec<&str> =
            args(&program, &[]).into_iter().filter(|w| !["--minutes", "0.1"].contains(w)).collect();
        let mut running = Running::start_with(&[&args[..], &more].concat(), &[("TMPDIR", &path)]);
        let servers = || {
            let listed = std::fs::read_dir(folder.path()).expect("a folder");
            listed.filter(|e| e.as_ref().is_ok_and(|e| e.path().is_dir())).count()
        };
        let soon = Duration::from_secs(30);
        // One of its processes is stopped by then, or about to be.
        wait_until("deliveries", soon, async || {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            if said.contains("Delivered") { Ok(()) } else { Err(running.stderr()) }
        })
        .await;
        assert_eq!(servers(), 1, "the folder of the server");
        if kill {
            running.sigkill().await;
        } else {
            running.sigint().await;
            let status = running.wait(soon).await;
            assert_eq!(status.code(), Some(1), "{}", running.stderr());
            assert!(running.stderr().contains("seed 7: interrupted"), "{}", running.stderr());
        }
        wait_until("the server's end", soon, async || {
            if servers() == 0 { Ok(()) } else { Err(servers().to_string()) }
        })
        .await;
        crate::support::leaks::assert_no_process(&path).await;
    }
}
