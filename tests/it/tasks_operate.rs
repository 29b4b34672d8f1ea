//! Tasks as operators see them, and what they can do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mcp_courier::tasks::{
    InputRequired, Leg, LegOutcome, NewTask, Scope, TaskHandler, TaskRetry, TaskStage, TaskStatus,
    TaskSummary, Tasks,
};
use mcp_courier::{CancellationToken, Courier, Error};
use serde_json::json;

use crate::support::fixture::Fixture;
use crate::support::wait::wait_until;
use crate::tasks::{answer, ms, scope, tasks, text, text_of, wait_count, wait_status};

/// All pages, each task once.
async fn all(tasks: &Tasks) -> BTreeMap<(String, String), TaskSummary> {
    let (mut found, mut from) = (BTreeMap::new(), None);
    loop {
        let page = tasks.page(from).await.expect("a page");
        found.extend(page.tasks.into_iter().map(|task| ((task.scope.clone(), task.task_id.clone()), task)));
        from = page.next;
        if from.is_none() {
            return found;
        }
    }
}

/// Fails, asks, waits or ends as its call says.
async fn handle(leg: Leg) -> LegOutcome {
    match &leg.call[..] {
        b"asks" if leg.answers.is_empty() => {
            let secret = json!({"method": "elicitation/create", "params": {"message": "the question"}});
            LegOutcome::InputRequired(InputRequired::new().request("q", &secret).expect("JSON"))
        }
        b"fails" => LegOutcome::error(-32000, "the error"),
        b"runs" => {
            leg.task.cancelled().await;
            LegOutcome::Cancelled
        }
        _ => text("the result"),
    }
}

/// Until a task stands there.
async fn wait_stage(tasks: &Tasks, scope: &Scope, id: &str, stage: TaskStage) -> TaskSummary {
    wait_until(&stage.to_string(), ms(5000), || async {
        let task = tasks.summary(scope, id).await.expect("there");
        if task.stage == stage { Ok(task) } else { Err(format!("{task:?}")) }
    })
    .await
}

/// Fails until all is well; then its result is its call.
fn fails_until(well: &CancellationToken) -> impl TaskHandler + use<> {
    let well = well.clone();
    move |leg: Leg| {
        let fails = !well.is_cancelled();
        async move {
            let call = String::from_utf8_lossy(&leg.call).into_owned();
            if fails { LegOutcome::error(-32000, "the disk is full") } else { text(&call) }
        }
    }
}

#[tokio::test]
async fn operators_see_every_task_of_a_group_with_its_scope_and_stage_and_nothing_of_its_content() {
    let t = Fixture::new("tasks_operate").await;
    let courier = t.courier().await;
    let tasks = tasks(&courier);
    let other = tasks.clone().group("other").expect("a group");
    let worker = tasks.worker().start(handle).await.expect("started");
    let (u, nobody) = (scope("app|u: *"), Scope::anonymous());
    let mut made = BTreeMap::new();
    for (call, stage, status) in [
        ("asks", TaskStage::InputRequired, TaskStatus::InputRequired),
        ("fails", TaskStage::Failed, TaskStatus::Failed),
        ("runs", TaskStage::Running, TaskStatus::Working),
        ("ends", TaskStage::Completed, TaskStatus::Completed),
    ] {
        for scope in [&u, &nobody] {
            let id = tasks.create(NewTask::new(scope, call).message("hello")).await.expect("made").task_id;
            wait_status(&tasks, scope, &id, status).await;
            made.insert((scope.as_str().to_owned(), id), stage);
        }
    }
    for key in made.iter().filter(|(_, stage)| **stage == TaskStage::Running).map(|(key, _)| key) {
        let scope = if key.0.is_empty() { &nobody } else { &u };
        wait_stage(&tasks, scope, &key.1, TaskStage::Running).await;
    }
    let late = tasks.create(NewTask::new(&u, "later").delay(ms(60_000)).ttl(ms(90_000))).await.expect("made");
    made.insert((u.as_str().to_owned(), late.task_id.clone()), TaskStage::Queued);
    other.create(NewTask::new(&u, "of the other group")).await.expect("made");

    let seen = all(&tasks).await;
    let stages: BTreeMap<_, _> = seen.iter().map(|(key, task)| (key.clone(), task.stage)).collect();
    assert_eq!(stages, made);
    let shown = serde_json::to_string(&seen.values().collect::<Vec<_>>()).expect("JSON");
    for secret in ["asks", "the question", "the error", "the result"] {
        assert!(!shown.contains(secret), "{secret} in {shown}");
    }
    for task in seen.values() {
        assert_eq!(task.worker.is_some(), task.stage == TaskStage::Running, "{task:?}");
        assert_eq!(task.waits_for.len(), usize::from(task.stage == TaskStage::InputRequired), "{task:?}");
        assert!(task.expires_in_ms > 0 && task.unchanged_ms <= task.age_ms, "{task:?}");
    }
    let waits = tasks.summary(&u, &late.task_id).await.expect("there").starts_in_ms;
    assert!(waits > 0 && waits <= 60_000, "{waits}");

    let counts = tasks.counts().await.expect("counted");
    let by_stage: BTreeMap<_, _> = counts.stages.iter().map(|(stage, count)| (*stage, count.count)).collect();
    let expected = [
        (TaskStage::Queued, 1),
        (TaskStage::Running, 2),
        (TaskStage::InputRequired, 2),
        (TaskStage::Completed, 2),
        (TaskStage::Failed, 2),
    ];
    assert_eq!(by_stage, BTreeMap::from(expected));
    assert_eq!(counts.legs, 3);
    for (stage, count) in &counts.stages {
        let oldest = seen.values().filter(|task| task.stage == *stage).map(|task| task.age_ms).max();
        assert!(count.oldest_ms >= oldest.expect("some"), "{stage}: {count:?}");
    }

    // Its content only when somebody asks for it.
    let asks = seen.values().find(|task| task.stage == TaskStage::InputRequired).expect("there").clone();
    let owner = if asks.scope.is_empty() { &nobody } else { &u };
    let (_, content) = tasks.content(owner, &asks.task_id).await.expect("there");
    assert_eq!(content.call, "asks");
    assert_eq!(content.requests.len(), 1);
    assert!(content.requests[0].1.get().contains("the question"), "{content:?}");
    let failed = seen.values().find(|task| task.stage == TaskStage::Failed && task.scope.is_empty());
    let (_, content) = tasks.content(&nobody, &failed.expect("there").task_id).await.expect("there");
    assert!(content.outcome.expect("an error").get().contains("the error"));

    // No more than a client learns of another scope, or of what never was.
    assert_eq!(tasks.summary(&scope("x"), &late.task_id).await.expect_err("no"), Error::TaskNotFound);
    assert_eq!(tasks.retry(&scope("x"), &late.task_id).await.expect_err("no"), Error::TaskNotFound);
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

/// What was fetched by pages is all there is, however many other keys there are.
#[tokio::test]
async fn a_list_goes_over_many_pages_and_misses_no_task() {
    let t = Fixture::new("tasks_pages").await;
    let tasks = tasks(&t.courier().await);
    let mut ids = Vec::new();
    for n in 0..2500 {
        // Nobody takes them: they only stand there.
        let new = NewTask::new(&scope(&format!("u{}", n % 3)), "x").delay(ms(60_000)).ttl(ms(120_000));
        ids.push(tasks.create(new).await.expect("made").task_id);
    }
    let mut pages = 0;
    let (mut found, mut from) = (Vec::new(), None);
    loop {
        let page = tasks.page(from).await.expect("a page");
        pages += 1;
        found.extend(page.tasks.into_iter().map(|task| task.task_id));
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    found.sort();
    found.dedup();
    ids.sort();
    assert!(found == ids, "{} of {}", found.len(), ids.len());
    assert!(pages > 1, "{pages}");
    assert_eq!(tasks.counts().await.expect("counted").stages[&TaskStage::Queued].count, 2500);
    t.finish().await;
}

#[tokio::test]
async fn a_leg_that_waits_for_its_backoff_starts_at_once_when_it_is_retried() {
    let t = Fixture::new("tasks_retry_backoff").await;
    let tasks = tasks(&t.courier().await);
    let (attempts, well) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
    let handler = {
        let (attempts, well) = (attempts.clone(), well.clone());
        move |_: Leg| {
            let n = attempts.fetch_add(1, Ordering::SeqCst);
            let fails = !well.is_cancelled();
            async move { if fails { LegOutcome::retry(format!("attempt {n}")) } else { text("at last") } }
        }
    };
    let hour = ms(3_600_000);
    let worker = tasks.worker().backoff(hour).backoff_cap(hour).start(handler).await.expect("started");
    let u = scope("u");
    let id = tasks.create(NewTask::new(&u, "x").ttl(ms(30_000))).await.expect("made").task_id;
    wait_count("it failed once", &attempts, 1).await;
    let stuck = wait_until("its backoff is stored", ms(5000), || async {
        let task = tasks.summary(&u, &id).await.expect("there");
        if task.stage == TaskStage::Queued && task.attempts == 1 {
            Ok(task)
        } else {
            Err(format!("{task:?}"))
        }
    })
    .await;
    assert!(stuck.starts_in_ms > 60_000, "{stuck:?}");
    well.cancel();
    assert_eq!(tasks.retry(&u, &id).await.expect("retried"), TaskRetry::Queued);
    assert_eq!(text_of(&wait_status(&tasks, &u, &id, TaskStatus::Completed).await), "at last");
    assert_eq!(tasks.retry(&u, &id).await.expect("asked"), TaskRetry::Refused(TaskStage::Completed));
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

/// A terminal state never changes: the client was told.
#[tokio::test]
async fn a_failed_task_stays_failed_and_its_work_begins_again_as_one_new_task() {
    let t = Fixture::new("tasks_retry_failed").await;
    let tasks = tasks(&t.courier().await);
    let well = CancellationToken::new();
    let worker = tasks.worker().start(fails_until(&well)).await.expect("started");
    let u = scope("u");
    let id = tasks.create(NewTask::new(&u, "the work").ttl(ms(20_000))).await.expect("made").task_id;
    let failed = wait_status(&tasks, &u, &id, TaskStatus::Failed).await;
    well.cancel();
    let TaskRetry::Again(new) = tasks.retry(&u, &id).await.expect("retried") else { panic!("not again") };
    assert_ne!(new.as_str(), id);
    assert_eq!(tasks.retry(&u, &id).await.expect("retried"), TaskRetry::Again(new.clone()), "no second one");
    assert_eq!(text_of(&wait_status(&tasks, &u, new.as_str(), TaskStatus::Completed).await), "the work");
    let after = tasks.get(&u, &id).await.expect("there");
    assert_eq!((after.status, after.revision), (TaskStatus::Failed, failed.revision));
    assert_eq!(tasks.summary(&u, &id).await.expect("there").retried_as.as_deref(), Some(new.as_str()));
    assert_eq!(all(&tasks).await.len(), 2);
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

#[tokio::test]
async fn what_runs_or_waits_for_its_client_is_not_retried() {
    let t = Fixture::new("tasks_retry_refused").await;
    let tasks = tasks(&t.courier().await);
    let worker = tasks.worker().start(handle).await.expect("started");
    let u = scope("u");
    let asks = tasks.create(NewTask::new(&u, "asks")).await.expect("made").task_id;
    wait_status(&tasks, &u, &asks, TaskStatus::InputRequired).await;
    assert_eq!(tasks.retry(&u, &asks).await.expect("asked"), TaskRetry::Refused(TaskStage::InputRequired));
    let runs = tasks.create(NewTask::new(&u, "runs")).await.expect("made").task_id;
    wait_stage(&tasks, &u, &runs, TaskStage::Running).await;
    assert_eq!(tasks.retry(&u, &runs).await.expect("asked"), TaskRetry::Refused(TaskStage::Running));
    tasks.cancel(&u, &runs).await.expect("asked");
    wait_status(&tasks, &u, &runs, TaskStatus::Cancelled).await;
    assert_eq!(tasks.retry(&u, &runs).await.expect("asked"), TaskRetry::Refused(TaskStage::Cancelled));
    tasks
        .update(&u, &asks, [("q.0".to_owned(), answer(json!(1))), ("q.1".to_owned(), answer(json!(1)))])
        .await
        .expect("taken");
    wait_status(&tasks, &u, &asks, TaskStatus::Completed).await;
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

/// What is encrypted can be made again only by who has the keys, and then all of it is there.
#[cfg(feature = "encryption")]
#[tokio::test]
async fn an_encrypted_task_is_made_again_with_its_keys_only() {
    use mcp_courier::KeyRing;
    let t = Fixture::new("tasks_retry_sealed").await;
    let courier: Courier = t.courier().await;
    let plain = tasks(&courier);
    let sealed = plain.clone().encrypted(KeyRing::new("k1", [7; 32]).expect("a ring"));
    let well = CancellationToken::new();
    let worker = sealed.worker().start(fails_until(&well)).await.expect("started");
    let u = scope("u");
    let id = sealed.create(NewTask::new(&u, "a secret").ttl(ms(20_000))).await.expect("made").task_id;
    wait_status(&plain, &u, &id, TaskStatus::Failed).await;
    well.cancel();
    let refused = plain.retry(&u, &id).await.expect_err("no keys");
    assert!(
        matches!(&refused, Error::Invalid { .. }) && refused.to_string().contains("no keys"),
        "{refused}"
    );
    let (_, content) = plain.content(&u, &id).await.expect("there");
    assert!(!content.call.contains("a secret"), "{content:?}");
    let TaskRetry::Again(new) = sealed.retry(&u, &id).await.expect("retried") else { panic!("not again") };
    assert_eq!(text_of(&wait_status(&sealed, &u, new.as_str(), TaskStatus::Completed).await), "a secret");
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}
