//! What tasks promise, each promise in a few lines.

use std::time::Duration;

use mcp_courier::Error;
use mcp_courier::tasks::{InputRequired, Leg, LegOutcome, NewTask, TaskCancel, TaskStatus};
use serde_json::json;

use crate::support::fixture::Fixture;
use crate::tasks::{answer, error_of, ms, requests_of, scope, tasks, text, text_of, wait_status};

#[tokio::test]
async fn a_task_made_on_one_replica_runs_on_a_worker_and_is_answered_by_another_replica() {
    let t = Fixture::new("tasks").await;
    let (one, other, third) = (t.courier().await, t.courier().await, t.courier().await);
    let u = scope("u");
    let made = tasks(&one).create(NewTask::new(&u, "Ada").message("soon")).await.expect("made");
    assert_eq!((made.status, made.ttl_ms), (TaskStatus::Working, 60_000));
    // Found everywhere at once, before any worker is there.
    let got = tasks(&other).get(&u, &made.task_id).await.expect("found");
    assert_eq!(got.status_message.as_deref(), Some("soon"));
    assert_eq!((got.created_at, got.revision), (made.created_at.clone(), 1));

    let greet = |leg: Leg| async move { text(&format!("Hello, {}!", String::from_utf8_lossy(&leg.call))) };
    let worker = tasks(&third).worker().start(greet).await.expect("started");
    let done = wait_status(&tasks(&other), &u, &made.task_id, TaskStatus::Completed).await;
    assert_eq!(text_of(&done), "Hello, Ada!");
    assert_eq!(done.created_at, made.created_at);
    // An idle worker is rung.
    let made = tasks(&one).create(NewTask::new(&u, "Bob")).await.expect("made");
    let done = wait_status(&tasks(&one), &u, &made.task_id, TaskStatus::Completed).await;
    assert_eq!(text_of(&done), "Hello, Bob!");
    let end = worker.shutdown(Duration::from_secs(5)).await;
    assert_eq!((end.interrupted, end.abandoned), (0, 0));
    t.finish().await;
}

#[tokio::test]
async fn a_leg_that_asks_ends_and_the_next_one_runs_with_state_and_answers() {
    let t = Fixture::new("tasks_ask").await;
    let courier = t.courier().await;
    let tasks = tasks(&courier);
    let u = scope("u");
    let ask = |leg: Leg| async move {
        if leg.number == 0 {
            let asked = InputRequired::new().state("state 1").message("two questions");
            let asked = asked.request("name", &json!({"method": "elicitation/create"})).expect("JSON");
            return LegOutcome::InputRequired(asked.request("age", &json!({"method": "x"})).expect("JSON"));
        }
        assert_eq!((leg.number, leg.attempt), (1, 1));
        let state = String::from_utf8(leg.state.expect("a state").to_vec()).expect("text");
        text(&format!("{state} {} {}", leg.answers["name"], leg.answers["age"]))
    };
    let worker = tasks.worker().start(ask).await.expect("started");
    let id = tasks.create(NewTask::new(&u, "call")).await.expect("made").task_id;
    let asking = wait_status(&tasks, &u, &id, TaskStatus::InputRequired).await;
    assert_eq!(asking.status_message.as_deref(), Some("two questions"));
    let keys: Vec<String> = requests_of(&asking).into_keys().collect();
    assert_eq!(keys, ["age.1", "name.1"]);
    assert_eq!(worker.holding(), 0);

    // A part keeps the rest; unknown keys are ignored, and so is a second answer.
    let update = |key: &str, value| tasks.update(&u, &id, [(key.to_owned(), answer(value))]);
    let done = update("name.1", json!({"a": []})).await.expect("taken");
    assert_eq!((done.accepted, done.open), (1, 1));
    for late in ["name.1", "name", "nobody"] {
        assert_eq!(update(late, json!("wrong")).await.expect("ignored").accepted, 0);
    }
    let asking = tasks.get(&u, &id).await.expect("found");
    assert_eq!(requests_of(&asking).into_keys().collect::<Vec<_>>(), ["age.1"]);
    assert_eq!(update("age.1", json!(7)).await.expect("taken").open, 0);
    let done = wait_status(&tasks, &u, &id, TaskStatus::Completed).await;
    assert_eq!(text_of(&done), r#"state 1 {"a":[]} 7"#);
    assert_eq!(update("age.1", json!(8)).await.expect("ignored").accepted, 0);
    assert_eq!(tasks.cancel(&u, &id).await.expect("acknowledged"), TaskCancel::Finished);
    assert_eq!(tasks.get(&u, &id).await.expect("found").revision, done.revision);
    worker.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

#[tokio::test]
async fn a_leg_that_waits_in_place_goes_on_with_the_answer_and_hears_of_cancelling() {
    let t = Fixture::new("tasks_wait").await;
    let courier = t.courier().await;
    let tasks = tasks(&courier);
    let u = scope("u");
    let imperative = |leg: Leg| async move {
        leg.task.set_status_message("asking");
        match leg.task.request_input("name", &json!({"method": "elicitation/create"})).await {
            Ok(answer) => text(&format!("Hello, {answer}")),
            Err(exit) => exit.into(),
        }
    };
    let worker = tasks.worker().concurrency(1).start(imperative).await.expect("started");
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(tasks.create(NewTask::new(&u, "call")).await.expect("made").task_id);
    }
    // A leg that waits takes no slot.
    for id in &ids {
        wait_status(&tasks, &u, id, TaskStatus::InputRequired).await;
    }
    assert_eq!(worker.holding(), 3);
    tasks.update(&u, &ids[0], [("name".to_owned(), answer(json!("Ada")))]).await.expect("taken");
    let done = wait_status(&tasks, &u, &ids[0], TaskStatus::Completed).await;
    assert_eq!(text_of(&done), r#"Hello, "Ada""#);
    assert_eq!(done.status_message.as_deref(), Some("asking"));
    assert_eq!(tasks.cancel(&u, &ids[1]).await.expect("asked"), TaskCancel::Asked);
    wait_status(&tasks, &u, &ids[1], TaskStatus::Cancelled).await;
    worker.shutdown(ms(2000)).await;
    // Given back: it waits for a worker, and for its answer.
    let waiting = tasks.get(&u, &ids[2]).await.expect("found");
    assert_eq!(waiting.status, TaskStatus::InputRequired);
    tasks.update(&u, &ids[2], [("name".to_owned(), answer(json!("Eve")))]).await.expect("taken");
    let worker = tasks.worker().start(imperative).await.expect("started");
    let done = wait_status(&tasks, &u, &ids[2], TaskStatus::Completed).await;
    assert_eq!(text_of(&done), r#"Hello, "Eve""#);
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

#[tokio::test]
async fn a_failed_attempt_is_repeated_and_the_last_one_fails_the_task() {
    let t = Fixture::new("tasks_retry").await;
    let courier = t.courier().await;
    let tasks = tasks(&courier);
    let u = scope("u");
    let fails = |leg: Leg| async move {
        match &leg.call[..] {
            b"panic" => panic!("as told"),
            b"twice" if leg.attempt == 3 => text("at last"),
            b"error" => LegOutcome::error(-32000, "the tool's own"),
            _ => LegOutcome::retry(format!("attempt {}", leg.attempt)),
        }
    };
    let worker = tasks.worker().backoff(ms(5)).start(fails).await.expect("started");
    let make = |call: &'static str| tasks.create(NewTask::new(&u, call));
    let id = make("twice").await.expect("made").task_id;
    assert_eq!(text_of(&wait_status(&tasks, &u, &id, TaskStatus::Completed).await), "at last");
    for (call, code, message) in [
        ("never", -32603, "given up after 3 attempts: attempt 3"),
        ("panic", -32603, "given up after 3 attempts: the handler panicked"),
        ("error", -32000, "the tool's own"),
    ] {
        let id = make(call).await.expect("made").task_id;
        let failed = wait_status(&tasks, &u, &id, TaskStatus::Failed).await;
        assert_eq!(error_of(&failed), (code, message.to_owned()));
    }
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

#[tokio::test]
async fn another_scope_another_group_and_an_unknown_id_look_the_same() {
    let t = Fixture::new("tasks_scope").await;
    let courier = t.courier().await;
    let tasks = tasks(&courier);
    let id = tasks.create(NewTask::new(&scope("u"), "call")).await.expect("made").task_id;
    let other = tasks.clone().group("other").expect("a name");
    assert_eq!(tasks.get(&scope("v"), &id).await.expect_err("not v's"), Error::TaskNotFound);
    assert_eq!(other.get(&scope("u"), &id).await.expect_err("not there"), Error::TaskNotFound);
    assert_eq!(tasks.get(&scope("u"), "x").await.expect_err("unknown"), Error::TaskNotFound);
    assert!(tasks.get(&scope("u"), &id).await.is_ok());
    t.finish().await;
}
