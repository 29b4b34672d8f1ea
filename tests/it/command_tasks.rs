//! `mcp-courier tasks` as an operator runs it.

use mcp_courier::tasks::{Leg, LegOutcome, NewTask, Scope, TaskStatus};
use serde_json::Value;

use crate::support::cli::run;
use crate::support::fixture::Fixture;
use crate::tasks::{ms, scope, tasks, wait_status};

fn lines(output: &std::process::Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

#[tokio::test]
async fn an_operator_lists_counts_shows_cancels_and_retries_tasks() {
    let t = Fixture::new("cli_tasks").await;
    if t.server.url().starts_with("memory:") {
        eprintln!("skipped: another process does not reach memory://");
        return;
    }
    let tasks = tasks(&t.courier().await);
    let fails = |_: Leg| async { LegOutcome::error(-32000, "the disk is full") };
    let worker = tasks.worker().start(fails).await.expect("started");
    let u = scope("app|ada");
    let failed = tasks.create(NewTask::new(&u, "the call")).await.expect("made").task_id;
    wait_status(&tasks, &u, &failed, TaskStatus::Failed).await;
    worker.shutdown(ms(2000)).await;
    let waits = NewTask::new(&Scope::anonymous(), "x").delay(ms(60_000)).ttl(ms(90_000));
    let queued = tasks.create(waits).await.expect("made").task_id;
    let (url, prefix) = (t.server.url().to_owned(), t.prefix.clone());
    let command = async |args: &[&str], code: i32| {
        let all: Vec<&str> = ["--url", &url, "--prefix", &prefix].iter().chain(args).copied().collect();
        let output = run(&all, "").await;
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        output
    };

    let listed = lines(&command(&["--json", "tasks", "list"], 0).await);
    assert_eq!(listed.len(), 2, "{listed:?}");
    assert!(!format!("{listed:?}").contains("the disk is full"), "{listed:?}");
    let only =
        lines(&command(&["--json", "tasks", "list", "--stage", "failed", "--scope", "app|ada"], 0).await);
    assert_eq!(only.len(), 1);
    assert_eq!((&only[0]["task_id"], &only[0]["scope"]), (&failed.as_str().into(), &"app|ada".into()));
    let text = String::from_utf8(command(&["tasks", "list"], 0).await.stdout).expect("text");
    assert!(text.contains("(anonymous)") && text.contains("app|ada") && text.contains(&queued), "{text}");
    let counts = lines(&command(&["--json", "tasks", "count"], 0).await);
    assert_eq!(counts[0]["stages"]["failed"]["count"], 1, "{counts:?}");
    assert_eq!(counts[0]["stages"]["queued"]["count"], 1, "{counts:?}");

    let shown = command(&["tasks", "show", &failed, "--scope", "app|ada"], 0).await;
    assert!(!String::from_utf8_lossy(&shown.stdout).contains("the"), "{shown:?}");
    let shown = command(&["tasks", "show", &failed, "--scope", "app|ada", "--content"], 0).await;
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("call: the call") && text.contains("the disk is full"), "{text}");
    let lost = command(&["tasks", "show", &failed], 1).await;
    assert!(String::from_utf8_lossy(&lost.stderr).contains("not found"), "{lost:?}");

    let again = lines(&command(&["--json", "tasks", "retry", &failed, "--scope", "app|ada"], 0).await);
    let new = again[0]["new_task_id"].as_str().expect("an id").to_owned();
    assert_eq!(tasks.get(&u, &new).await.expect("made").status, TaskStatus::Working);
    command(&["tasks", "retry", &queued], 0).await;
    command(&["tasks", "cancel", &queued], 0).await;
    let refused = command(&["tasks", "retry", &queued], 1).await;
    assert!(String::from_utf8_lossy(&refused.stdout).contains("cancelled"), "{refused:?}");
    t.finish().await;
}
