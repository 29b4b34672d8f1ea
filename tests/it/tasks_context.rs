//! Tasks: what a leg knows of the request that made its task, and what others can read of it.

use std::sync::{Arc, Mutex};

use mcp_courier::Error;
use mcp_courier::tasks::{ContextSnapshot, InputRequired, Leg, LegOutcome, NewTask, Scope, TaskStatus};
use serde_json::json;

use crate::support::capture::Capture;
use crate::support::fixture::Fixture;
use crate::support::wait::wait_until;
use crate::tasks::{answer, ms, scope, tasks, text, text_of, wait_status};

const CANARY: &str = "canary-7f3a";

/// Everything under the test's prefix, as text.
async fn dump(t: &Fixture) -> String {
    let mut all = String::new();
    for (name, _) in t.keys().await {
        let key = t.key(&name, "");
        let kind: String = t.ask(&format!("TYPE {key}")).await;
        if kind == "hash" {
            let fields: Vec<Vec<u8>> = t.ask(&format!("HGETALL {key}")).await;
            fields.iter().for_each(|field| all += &format!("{}\n", String::from_utf8_lossy(field)));
        }
        all += &name;
    }
    all
}

/// What the legs of one worker saw: the scope, and a header.
type Seen = Arc<Mutex<Vec<(String, Option<String>)>>>;

fn recording(seen: &Seen) -> impl mcp_courier::tasks::TaskHandler {
    let seen = seen.clone();
    move |leg: Leg| {
        let header = leg.context.headers.get("authorization").cloned();
        seen.lock().expect("not poisoned").push((leg.scope.as_str().to_owned(), header));
        async { text("done") }
    }
}

/// One field finds all that happened to a task: who made it, each leg, who answered.
#[tokio::test]
async fn spans_of_create_legs_update_and_cancel_name_their_task() {
    let t = Fixture::new("tasks_spans").await;
    let tasks = tasks(&t.courier().await);
    let handler = |leg: Leg| async move {
        tracing::info!("from the handler");
        match leg.answers.len() {
            0 => LegOutcome::InputRequired(InputRequired::new().request("q", &json!({})).expect("JSON")),
            _ => text("done"),
        }
    };
    let worker =
        tasks.worker().handlers_on(tokio::runtime::Handle::current()).start(handler).await.expect("started");
    let capture = Capture::start();
    let u = scope("u");
    let id = tasks.create(NewTask::new(&u, CANARY)).await.expect("made").task_id;
    wait_status(&tasks, &u, &id, TaskStatus::InputRequired).await;
    tasks.update(&u, &id, [("q.1".to_owned(), answer(json!(CANARY)))]).await.expect("taken");
    wait_status(&tasks, &u, &id, TaskStatus::Completed).await;
    tasks.cancel(&u, &id).await.expect("acknowledged");
    let task = format!("task={id}");
    for (span, times) in [
        (format!("task_create{{{task}}}"), 1),
        (format!("leg{{{task} leg=0 attempt=1}}"), 1),
        (format!("leg{{{task} leg=1 attempt=1}}"), 1),
        (format!("task_update{{{task} answers=1 accepted=1}}"), 1),
        (format!("task_cancel{{{task}}}"), 1),
    ] {
        wait_until(&span, ms(5000), || async {
            match capture.lines_with(&[&span, "close"]).len() {
                n if n == times => Ok(()),
                n => Err(format!("{n}: {}", capture.text())),
            }
        })
        .await;
    }
    let from = capture.lines_with(&["from the handler"]);
    assert!(from.len() == 2 && from.iter().all(|line| line.contains(&task)), "{from:?}");
    assert!(!capture.text().contains(CANARY), "{}", capture.text());
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

/// Legs run in another process, and later: their spans are children of the one that made the task.
#[cfg(feature = "otel")]
#[tokio::test]
async fn a_task_made_in_a_trace_runs_in_it_unless_it_was_given_another_one() {
    use crate::support::otel;
    use tracing::Instrument as _;

    let t = Fixture::new("tasks_otel").await;
    let (near, far) = (tasks(&t.courier().await), tasks(&t.courier().await));
    let handler = |leg: Leg| async move {
        text(leg.context.trace_context().expect("traced").traceparent().split('-').nth(1).expect("an id"))
    };
    let worker =
        far.worker().handlers_on(tokio::runtime::Handle::current()).start(handler).await.expect("started");
    let traces = otel::Traces::start();
    let span = tracing::info_span!("request");
    let trace_id = otel::trace_id(&span);
    let given = "0af7651916cd43dd8448eb211c80319c";
    let context = ContextSnapshot::default().trace("traceparent", format!("00-{given}-b7ad6b7169203331-01"));
    let u = scope("u");
    for (new, trace) in [(NewTask::new(&u, "x"), &*trace_id), (NewTask::new(&u, "x").context(context), given)]
    {
        let id = near.create(new).instrument(span.clone()).await.expect("made").task_id;
        assert_eq!(text_of(&wait_status(&near, &u, &id, TaskStatus::Completed).await), trace);
        traces.wait_for("leg", trace, 1).await;
    }
    drop(span);
    traces.wait_for("task_create", &trace_id, 2).await;
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

#[tokio::test]
async fn a_leg_gets_the_facts_of_the_request_that_made_its_task() {
    let t = Fixture::new("tasks_context").await;
    let tasks = tasks(&t.courier().await).headers_in_clear();
    let context = ContextSnapshot::default()
        .header("X-Tenant", "acme")
        .trace("traceparent", "00-1-2-01")
        .protocol_version("2026-07-28")
        .capabilities(&json!({"elicitation": {}}))
        .expect("JSON");
    let handler = |leg: Leg| async move {
        let c = leg.context;
        text(&format!(
            "{:?} {:?} {:?} {:?}",
            c.headers,
            c.trace,
            c.protocol_version,
            c.capabilities.map(|c| c.to_string())
        ))
    };
    let worker = tasks.worker().start(handler).await.expect("started");
    let id = tasks.create(NewTask::new(&scope("u"), "x").context(context)).await.expect("made").task_id;
    let done = wait_status(&tasks, &scope("u"), &id, TaskStatus::Completed).await;
    assert_eq!(
        crate::tasks::text_of(&done),
        r#"{"x-tenant": "acme"} {"traceparent": "00-1-2-01"} Some("2026-07-28") Some("{\"elicitation\":{}}")"#
    );
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

/// Without keys no header gets in at all, unless somebody says that it may.
#[tokio::test]
async fn f47_headers_are_refused_where_they_would_be_readable() {
    let t = Fixture::new("f47_clear").await;
    let tasks = tasks(&t.courier().await);
    let context = ContextSnapshot::default().header("authorization", CANARY);
    let refused = tasks.create(NewTask::new(&scope("u"), "x").context(context)).await.expect_err("refused");
    assert!(matches!(&refused, Error::Invalid { what: "task context", .. }), "{refused}");
    assert!(!format!("{refused} {refused:?}").contains(CANARY));
    assert!(!dump(&t).await.contains(CANARY));
    t.finish().await;
}

/// One worker, callers in turn: nobody inherits from the one before.
#[cfg(feature = "encryption")]
#[tokio::test]
async fn f47_each_leg_sees_its_own_caller_and_redis_shows_none_of_it() {
    use mcp_courier::KeyRing;
    let t = Fixture::new("f47").await;
    let ring = KeyRing::new("2026-07", [7; 32]).expect("a key");
    let tasks = tasks(&t.courier().await).encrypted(ring);
    let seen = Seen::default();
    let first = |s: &Scope, token: &str| {
        let context = ContextSnapshot::default().header("Authorization", token);
        NewTask::new(s, format!("{CANARY} argument")).context(context)
    };
    let (u, v, nobody) = (scope("u"), scope("v"), Scope::anonymous());
    let mut ids = vec![
        (u.clone(), tasks.create(first(&u, CANARY)).await.expect("made").task_id),
        (nobody.clone(), tasks.create(NewTask::new(&nobody, "x")).await.expect("made").task_id),
        (v.clone(), tasks.create(first(&v, "v's")).await.expect("made").task_id),
    ];
    let stored = dump(&t).await;
    assert!(!stored.contains(CANARY) && !stored.contains("v's"), "{stored}");
    assert!(stored.contains("2026-07"), "the key's id is there: {stored}");
    let worker = tasks.worker().concurrency(1).start(recording(&seen)).await.expect("started");
    for (scope, id) in ids.drain(..) {
        wait_status(&tasks, &scope, &id, TaskStatus::Completed).await;
    }
    let mut seen = seen.lock().expect("not poisoned").clone();
    seen.sort();
    let expected = [("", None), ("u", Some(CANARY)), ("v", Some("v's"))];
    assert_eq!(seen, expected.map(|(scope, token)| (scope.to_owned(), token.map(str::to_owned))));
    worker.shutdown(ms(2000)).await;
    assert!(!dump(&t).await.contains(CANARY));
    t.finish().await;
}

/// Fails closed: no key, another key under the same name, or a task in clear where there are keys.
#[cfg(feature = "encryption")]
#[tokio::test]
async fn f47_a_worker_that_cannot_open_a_task_fails_it_and_never_runs_it() {
    use mcp_courier::KeyRing;
    let t = Fixture::new("f47_closed").await;
    let plain = tasks(&t.courier().await);
    let ring = |byte| KeyRing::new("k", [byte; 32]).expect("a key");
    let sealed = plain.clone().encrypted(ring(1));
    let rotated = plain
        .clone()
        .encrypted(KeyRing::new("next", [9; 32]).expect("a key").and("k", [1; 32]).expect("one"));
    let u = scope("u");
    let cases = [
        (&sealed, plain.clone(), TaskStatus::Failed),
        (&sealed, plain.clone().encrypted(ring(2)), TaskStatus::Failed),
        (&plain, sealed.clone(), TaskStatus::Failed),
        (&sealed, rotated, TaskStatus::Completed),
    ];
    for (maker, worker, expected) in cases {
        let seen = Seen::default();
        let context = ContextSnapshot::default().protocol_version("2026-07-28");
        let id = maker.create(NewTask::new(&u, "x").context(context)).await.expect("made").task_id;
        let running = worker.worker().start(recording(&seen)).await.expect("started");
        let end = crate::support::wait::wait_until("its end", ms(10_000), || async {
            let task = maker.get(&u, &id).await.expect("found");
            if task.status.is_terminal() { Ok(task) } else { Err(format!("{task:?}")) }
        })
        .await;
        assert_eq!(end.status, expected);
        assert_eq!(seen.lock().expect("not poisoned").len(), usize::from(expected == TaskStatus::Completed));
        if expected == TaskStatus::Failed {
            let error = crate::tasks::error_of(&end);
            assert_eq!(error, (-32603, "the stored task cannot be read by its worker".into()));
        }
        running.shutdown(ms(2000)).await;
    }
    t.finish().await;
}

/// A sealed text opens in its own task only.
#[cfg(feature = "encryption")]
#[tokio::test]
async fn f47_what_was_sealed_for_one_task_does_not_open_in_another() {
    use mcp_courier::KeyRing;
    let t = Fixture::new("f47_moved").await;
    let tasks = tasks(&t.courier().await).encrypted(KeyRing::new("k", [1; 32]).expect("a key"));
    let (u, v) = (scope("u"), scope("v"));
    let rich = tasks
        .create(NewTask::new(&u, "x").context(ContextSnapshot::default().header("authorization", "u's")));
    let rich = rich.await.expect("made").task_id;
    let poor = tasks.create(NewTask::new(&v, "x")).await.expect("made").task_id;
    let key = |s: &str, id: &str| t.key(&crate::tasks::key(s, id), "");
    let stolen: Vec<u8> = t.ask(&format!("HGET {} context", key("u", &rich))).await;
    let mut moving = redis::cmd("HSET");
    let _: u64 = t.send(moving.arg(key("v", &poor)).arg("context").arg(stolen)).await;
    let seen = Seen::default();
    let worker = tasks.worker().start(recording(&seen)).await.expect("started");
    wait_status(&tasks, &v, &poor, TaskStatus::Failed).await;
    wait_status(&tasks, &u, &rich, TaskStatus::Completed).await;
    assert_eq!(*seen.lock().expect("not poisoned"), [("u".to_owned(), Some("u's".to_owned()))]);
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}
