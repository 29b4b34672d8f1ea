//! Tasks: workers that die, and workers that leave.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mcp_courier::Courier;
use mcp_courier::tasks::{Leg, LegOutcome, NewTask, TaskStatus};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::support::fixture::{Fixture, Process};
use crate::support::server::Kind;
use crate::tasks::{answer, error_of, ms, scope, tasks, text, text_of, wait_count, wait_status};

/// A worker in a process of its own. It says which leg it runs, and hangs on what is told to.
#[tokio::test]
#[ignore = "runs as a child of other tests"]
async fn child() {
    let Ok(url) = std::env::var("MCP_COURIER_TEST_WORKER") else { return };
    let prefix = std::env::var("MCP_COURIER_TEST_PREFIX").expect("set");
    let courier = Courier::builder().prefix(prefix).connect(url).await.expect("the server answers");
    let handler = |leg: Leg| async move {
        let call = String::from_utf8_lossy(&leg.call).into_owned();
        println!("\nrunning={call} {}", leg.attempt);
        if call == "hang" && leg.attempt == 1 {
            std::future::pending::<()>().await;
        }
        text(&format!("attempt {}", leg.attempt))
    };
    let _worker = tasks(&courier).worker().lease(ms(600)).start(handler).await.expect("started");
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_leg_whose_worker_process_is_killed_runs_again_after_its_lease() {
    let t = Fixture::new("tasks_kill").await;
    if t.server.kind() == Kind::Memory {
        eprintln!("skipped: no other process reaches memory://");
        return;
    }
    let start = || {
        tokio::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "tasks_crash::child", "--ignored", "--nocapture", "--test-threads=1"])
            .env("MCP_COURIER_TEST_WORKER", t.server.url())
            .env("MCP_COURIER_TEST_PREFIX", &t.prefix)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("a copy of this program")
    };
    let courier = t.courier().await;
    let u = scope("u");
    let id = tasks(&courier).create(NewTask::new(&u, "hang")).await.expect("made").task_id;
    let mut first = start();
    let mut lines = BufReader::new(first.stdout.take().expect("piped")).lines();
    loop {
        let line = tokio::time::timeout(Duration::from_secs(20), lines.next_line()).await.expect("in time");
        if line.expect("text").expect("not ended").ends_with("running=hang 1") {
            break;
        }
    }
    first.kill().await.expect("killed");
    assert_eq!(tasks(&courier).get(&u, &id).await.expect("found").status, TaskStatus::Working);
    let mut second = start();
    let done = wait_status(&tasks(&courier), &u, &id, TaskStatus::Completed).await;
    assert_eq!(text_of(&done), "attempt 2");
    second.kill().await.expect("killed");
    t.finish().await;
}

async fn work(
    process: &Process,
    handler: impl mcp_courier::tasks::TaskHandler,
) -> mcp_courier::tasks::Worker {
    let builder = tasks(&process.courier).worker().lease(ms(300));
    process.runtime.spawn(builder.start(handler)).await.expect("no panic").expect("started")
}

#[tokio::test]
async fn a_task_that_kills_its_workers_fails_after_the_last_attempt() {
    let t = Fixture::new("tasks_poison").await;
    let courier = t.courier().await;
    let u = scope("u");
    let id = tasks(&courier).create(NewTask::new(&u, "poison")).await.expect("made").task_id;
    let running = Arc::new(AtomicUsize::new(0));
    for attempt in 1..=3 {
        let process = Process::start(t.builder(), t.server.url()).await;
        let count = running.clone();
        let handler = move |leg: Leg| {
            assert_eq!(leg.attempt, attempt);
            count.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<LegOutcome>()
        };
        let worker = work(&process, handler).await;
        wait_count("it runs", &running, attempt as usize).await;
        // The runtime goes first: nothing is given back.
        std::mem::forget(worker);
        process.crash().await;
    }
    let worker = tasks(&courier).worker().start(|_: Leg| async { text("never") }).await.expect("started");
    let failed = wait_status(&tasks(&courier), &u, &id, TaskStatus::Failed).await;
    assert_eq!(
        error_of(&failed),
        (-32603, "the work was given up: its worker died in each of 3 attempts".into())
    );
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

/// A deploy is no failure: three orderly stops in the middle of a leg, with a single attempt allowed.
#[tokio::test]
async fn a_worker_that_stops_in_good_order_gives_its_legs_back_at_once_and_uncounted() {
    let t = Fixture::new("tasks_orderly").await;
    let courier = t.courier().await;
    let u = scope("u");
    let id = tasks(&courier).create(NewTask::new(&u, "x")).await.expect("made").task_id;
    let running = Arc::new(AtomicUsize::new(0));
    for round in 1..=4 {
        let other = t.courier().await;
        let count = running.clone();
        let hang = move |leg: Leg| {
            assert_eq!(leg.attempt, 1);
            count.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<LegOutcome>()
        };
        // A lease so long that nobody waits for its end.
        let builder = tasks(&other).worker().max_attempts(1).lease(Duration::from_secs(60));
        let worker = builder.start(hang).await.expect("started");
        wait_count("it runs", &running, round).await;
        if round % 2 == 0 {
            drop(worker);
        } else {
            assert_eq!(worker.shutdown(ms(20)).await.interrupted, 1);
        }
    }
    let worker = tasks(&courier).worker().max_attempts(1);
    let worker =
        worker.start(|leg: Leg| async move { text(&leg.attempt.to_string()) }).await.expect("started");
    assert_eq!(text_of(&wait_status(&tasks(&courier), &u, &id, TaskStatus::Completed).await), "1");
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

/// What a crash does to the imperative style: from the beginning, with the answers that are there.
#[tokio::test]
async fn a_leg_that_waited_in_a_dead_worker_starts_again_and_finds_its_answers() {
    let t = Fixture::new("tasks_again").await;
    let courier = t.courier().await;
    let u = scope("u");
    let handler = |leg: Leg| async move {
        let mut all = String::new();
        for key in ["first", "second"] {
            match leg.task.request_input(key, &json!({"method": key})).await {
                Ok(answer) => all += answer.get(),
                Err(exit) => return exit.into(),
            }
        }
        text(&format!("{all} in attempt {}", leg.attempt))
    };
    let process = Process::start(t.builder(), t.server.url()).await;
    std::mem::forget(work(&process, handler).await);
    let id = tasks(&courier).create(NewTask::new(&u, "x")).await.expect("made").task_id;
    let asks = |key: &'static str| {
        let (tasks, u, id) = (tasks(&courier), u.clone(), id.clone());
        async move {
            crate::support::wait::wait_until(key, Duration::from_secs(10), || async {
                let task = tasks.get(&u, &id).await.expect("found");
                let open = task.input_requests.clone().unwrap_or_default();
                if open.contains_key(key) { Ok(()) } else { Err(format!("{task:?}")) }
            })
            .await;
        }
    };
    asks("first").await;
    tasks(&courier).update(&u, &id, [("first".to_owned(), answer(json!(1)))]).await.expect("taken");
    asks("second").await;
    process.crash().await;
    // Answered while no worker is there.
    tasks(&courier).update(&u, &id, [("second".to_owned(), answer(json!(2)))]).await.expect("taken");
    let worker = tasks(&courier).worker().start(handler).await.expect("started");
    let done = wait_status(&tasks(&courier), &u, &id, TaskStatus::Completed).await;
    assert_eq!(text_of(&done), "12 in attempt 2");
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}
