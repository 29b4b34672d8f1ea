//! `mcp-courier bench`: it runs, counts, checks, and leaves nothing behind. What it measures here means nothing.

use std::time::Duration;

use serde_json::Value;

use crate::command::with_server;
use crate::support::backend::{Backend, Kind, backend};
use crate::support::cli::{Running, run};

fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

fn scenarios(rows: &[Value], system: &str) -> std::collections::BTreeSet<String> {
    let ours = rows.iter().filter(|r| r["system"] == system);
    ours.filter_map(|r| r["scenario"].as_str()).map(str::to_owned).collect()
}

/// The server program, where tests may start one.
async fn program(test: &str) -> Option<String> {
    match backend().await.unwrap_or_else(|why| panic!("{why}")) {
        Backend::Binary(program) => Some(program.display().to_string()),
        _ => {
            eprintln!("{test}: skipped: needs a server program on this machine");
            None
        }
    }
}

#[tokio::test]
async fn a_run_in_memory_measures_what_it_can_and_loses_nothing() {
    let output = run(&["bench", "--quick", "--json", "--url", "memory://"], "").await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let rows = rows(&String::from_utf8_lossy(&output.stdout));
    for scenario in ["latency", "throughput", "drain", "bodies", "claim"] {
        assert!(scenarios(&rows, "courier").contains(scenario), "no {scenario}");
    }
    assert!(rows.iter().all(|r| r["redis"] == "memory" && r["baseline"] != "brpop"), "{rows:?}");
}

/// Somebody else's server: only keys under a prefix of the run, and none of them when it is over.
#[tokio::test]
async fn a_run_on_a_foreign_server_leaves_no_key() {
    let Some(t) = with_server("bench_foreign").await else { return };
    // Its baselines speak to one server: a master is not looked for, nor a Cluster's nodes.
    if !t.server.url().starts_with("redis://") {
        eprintln!("bench_foreign: skipped: no single server");
        return;
    }
    let args =
        t.command(&["bench", "--quick", "--only", "latency,throughput,drain,idle,memory,resync,reclaim"]);
    // It names its connections and asks the server for memory, which no courier does.
    let admin = |arg| if arg == t.server.url() { t.server.admin_url() } else { arg };
    let args: Vec<&str> = args.into_iter().map(admin).collect();
    let output = run(&args, "").await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let rows = rows(&String::from_utf8_lossy(&output.stdout));
    for scenario in ["latency", "throughput", "drain", "idle", "memory"] {
        assert!(scenarios(&rows, "courier").contains(scenario), "no {scenario}");
    }
    // A container's server sees its engine's ports, not ours: then it is said that no connection can be cut.
    let told = String::from_utf8_lossy(&output.stderr).contains("resync and doorbell: left out");
    assert_eq!(told, matches!(t.server.kind(), Kind::Docker), "{output:?}");
    for scenario in ["resync", "reclaim"] {
        assert_ne!(scenarios(&rows, "courier").contains(scenario), told, "{scenario}");
    }
    let latency = rows.iter().find(|r| r["scenario"] == "latency" && r["system"] == "courier");
    let latency = latency.expect("one");
    assert!(latency["ratios"]["p50_us"]["median"].as_f64().expect("a ratio") > 0.0, "{latency}");
    let mut raw = t.raw.clone();
    let (mut cursor, mut left) = (0_u64, Vec::<String>::new());
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(format!("{}:bench:*", t.prefix)).arg("COUNT").arg(1000);
        let (next, keys): (u64, Vec<String>) = scan.query_async(&mut raw).await.expect("SCAN");
        left.extend(keys);
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(left, Vec::<String>::new());
    t.finish().await;
}

/// F52: two connections, for one session as for many, also while they are busy and after they were cut.
#[tokio::test]
async fn a_run_on_its_own_server_writes_the_report_and_counts_two_connections() {
    let Some(program) = program("bench_report").await else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().display().to_string();
    let args = ["bench", "--quick", "--json", "--server-program", &program, "--report", &path];
    let output = run(&args, "").await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let read = |name| std::fs::read_to_string(folder.path().join(name)).expect("a file");
    let rows = rows(&read("results.jsonl"));
    for scenario in ["idle", "resync"] {
        let row =
            rows.iter().find(|r| r["scenario"] == scenario && r["system"] == "courier").expect(scenario);
        assert_eq!(row["values"]["connections"]["max"], 2.0, "{row}");
    }
    let idle = rows.iter().find(|r| r["scenario"] == "idle" && r["system"] == "courier").expect("idle");
    assert_eq!(idle["values"]["connections_after_load"]["max"], 2.0, "{idle}");
    assert_eq!(idle["values"]["producer_connections"]["max"], 1.0, "{idle}");
    for scenario in ["doorbell-cut", "doorbell-unheard"] {
        let row = rows.iter().find(|r| r["scenario"] == scenario).expect(scenario);
        assert!(row["values"]["seconds"]["max"].as_f64().expect("seconds") < 10.0, "{row}");
    }
    assert!(read("plot.svg").contains("<svg"));
    let page = read("results.md");
    assert!(page.contains("| connections of a process"), "{page}");

    let again = run(&["bench", "--render", &path], "").await;
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    assert_eq!(read("results.md"), page);
}

/// The server that it started, and its folder, go with it, however it goes.
#[tokio::test]
async fn killed_or_interrupted_it_leaves_no_server_and_no_folder() {
    let Some(program) = program("bench_ends").await else { return };
    for kill in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().display().to_string();
        let args = ["bench", "--json", "--only", "latency", "--sessions", "1", "--rounds", "1000"];
        let args = [&args[..], &["--server-program", &program]].concat();
        let mut running = Running::start_with(&args, &[("TMPDIR", &path)]);
        let names = || {
            let listed = std::fs::read_dir(folder.path()).expect("a folder");
            listed.map(|e| e.expect("an entry").path()).collect::<Vec<_>>()
        };
        crate::support::wait::wait_until("the load", Duration::from_secs(20), async || {
            let stderr = running.stderr();
            if stderr.contains("round 1 of") { Ok(()) } else { Err(stderr) }
        })
        .await;
        assert_eq!(names().len(), 1, "the folder of the server");
        if kill {
            running.sigkill().await;
        } else {
            running.sigint().await;
            let status = running.wait(Duration::from_secs(20)).await;
            assert_eq!(status.code(), Some(1), "{}", running.stderr());
        }
        crate::support::wait::wait_until("the server's end", Duration::from_secs(20), async || {
            if names().is_empty() { Ok(()) } else { Err(format!("{:?}", names())) }
        })
        .await;
    }
}
