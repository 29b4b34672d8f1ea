//! The bridge to FastMCP 3: against its keys and envelope, and against a real one.

use std::time::Duration;

use mcp_courier::bridge::fastmcp::{Answer, FastMcp, Sessions};
use mcp_courier::{
    CancellationToken, Courier, Delivery, MessageId, Notification, NotificationSink, Push, SinkError,
};
use serde_json::{Value, json};

use crate::support::fastmcp::{FastMcpProcess, python_or_skip};
use crate::support::fixture::{Fixture, Recorder, session, wait_pending};
use crate::support::wait::wait_until;

const LONG: Duration = Duration::from_secs(15);
const RELATED: &str = "io.modelcontextprotocol/related-task";

/// FastMCP's side as its sources have it, under a Docket name of the test's own.
struct Theirs<'a> {
    t: &'a Fixture,
    docket: String,
}

impl<'a> Theirs<'a> {
    fn new(t: &'a Fixture) -> Self {
        Self { t, docket: format!("{}:docket", t.prefix) }
    }

    async fn bridge(&self, courier: &Courier) -> FastMcp {
        let bridge = FastMcp::connect(courier, self.t.server.url(), &self.docket).await.expect("connected");
        bridge.look_every(Duration::from_millis(5))
    }

    fn queue(&self, session: &str) -> String {
        format!("{}:fastmcp:notifications:{session}", self.docket)
    }

    /// What a worker of FastMCP's does: LPUSH, then EXPIRE.
    async fn push(&self, session: &str, text: &str) {
        let key = self.queue(session);
        let _: i64 = self.t.send(redis::cmd("LPUSH").arg(&key).arg(text)).await;
        let _: i64 = self.t.send(redis::cmd("EXPIRE").arg(&key).arg(300)).await;
    }

    async fn queued(&self, session: &str) -> Vec<String> {
        self.t.send(redis::cmd("LRANGE").arg(self.queue(session)).arg(0).arg(-1)).await
    }
}

fn question(n: u64) -> String {
    json!({"notification": {"method": "notifications/tasks/status",
        "params": {"taskId": format!("t-{n}"), "status": "input_required", "createdAt": "2026-12-01T10:00:00+00:00",
                   "lastUpdatedAt": "2026-12-01T10:00:00+00:00", "ttl": 3_600_000},
        "_meta": {RELATED: {"taskId": format!("t-{n}"), "task_scope": null, "elicitation": {"requestId": "r"}}}},
        "attempt": 0, "enqueued_at": "2026-12-01T10:00:00+00:00"})
    .to_string()
}

fn task(delivery: &Delivery) -> String {
    let n = delivery.notification().expect("a notification");
    n.params.expect("params")["taskId"].as_str().expect("text").to_owned()
}

/// What FastMCP's workers push arrives in order and as MCP has it, for every session; what is none of its envelopes too.
#[tokio::test]
async fn what_fastmcp_workers_push_is_delivered_in_order() {
    let t = Fixture::plain("from_fastmcp").await;
    let (courier, theirs) = (t.courier().await, Theirs::new(&t));
    let sinks = [Recorder::new(), Recorder::new()];
    for (id, sink) in ["a:1", "b"].iter().zip(&sinks) {
        courier.subscribers().ensure_running(&session(id), sink.clone()).await.expect("claimed");
        for n in 0..100 {
            theirs.push(id, &question(n)).await;
        }
        theirs.push(id, "no envelope").await;
    }
    // A marker of FastMCP's subscriber is no queue.
    let _: () = t.send(redis::cmd("SET").arg(theirs.queue("b") + ":active").arg("1").arg("EX").arg(60)).await;
    let (bridge, cancel) = (theirs.bridge(&courier).await, CancellationToken::new());
    let running = tokio::spawn({
        let cancel = cancel.clone();
        async move { bridge.run_to_courier(Sessions::All, &cancel).await }
    });
    for sink in &sinks {
        assert_eq!(sink.wait_for(101).await[100], "no envelope");
        let tasks: Vec<_> = sink.seen()[..100].iter().map(task).collect();
        assert_eq!(tasks, (0..100).map(|n| format!("t-{n}")).collect::<Vec<_>>());
        let first = sink.seen()[0].notification().expect("JSON");
        assert_eq!(first.meta_value(RELATED).expect("in the params")["elicitation"]["requestId"], "r");
        assert!(first.beside().is_empty());
        assert!(sink.seen()[0].expires_at_ms <= t.server_ms().await + 300_000);
    }
    // Pushed while it runs, for a session it has not seen.
    let late = Recorder::new();
    courier.subscribers().ensure_running(&session("late"), late.clone()).await.expect("claimed");
    theirs.push("late", &question(7)).await;
    late.wait_for(1).await;
    cancel.cancel();
    let brought = running.await.expect("no panic");
    assert_eq!((brought.messages, brought.expired, brought.held), (203, 0, 0));
    courier.shutdown(LONG).await;
    t.finish().await;
}

/// A queue of ours that is full holds up its own session, in order and without loss; another bridge goes on with it.
#[tokio::test]
async fn a_full_queue_holds_messages_back_and_another_bridge_goes_on_with_them() {
    let t = Fixture::plain("held").await;
    let (small, theirs) = (t.connect(t.builder().max_pending(2)).await, Theirs::new(&t));
    for n in 0..5 {
        theirs.push("s", &question(n)).await;
    }
    theirs.push("other", &question(9)).await;
    let both = [session("s"), session("other")];
    let first = theirs.bridge(&small).await;
    let brought = first.bring(&both).await.expect("brought");
    assert_eq!((brought.messages, brought.held), (3, 1));
    assert_eq!(first.bring(&both).await.expect("held").messages, 0);
    drop(first);

    let sink = Recorder::new();
    small.subscribers().ensure_running(&both[0], sink.clone()).await.expect("claimed");
    let second = theirs.bridge(&t.courier().await).await;
    wait_until("the rest", LONG, || async {
        second.bring(&both).await.expect("brought");
        if sink.seen().len() == 5 { Ok(()) } else { Err(format!("{} so far", sink.seen().len())) }
    })
    .await;
    assert_eq!(
        sink.seen().iter().map(task).collect::<Vec<_>>(),
        (0..5).map(|n| format!("t-{n}")).collect::<Vec<_>>()
    );
    small.subscribers().ensure_running(&both[1], Recorder::new()).await.expect("claimed");
    wait_pending(&small, &both[1], 0).await;
    small.shutdown(LONG).await;
    t.finish().await;
}

/// The bridge is killed again and again: what it had in its hands is neither lost nor delivered twice.
#[cfg(feature = "cli")]
#[tokio::test]
async fn a_bridge_that_is_killed_all_the_time_loses_nothing_and_repeats_nothing() {
    use crate::support::cli::Running;

    let t = Fixture::plain("bridge_kills").await;
    if t.server.url().starts_with("memory:") {
        return eprintln!("skipped: other processes do not reach memory://");
    }
    let (courier, theirs) = (t.courier().await, Theirs::new(&t));
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&session("s"), sink.clone()).await.expect("claimed");
    let args = [
        "--url",
        t.server.url(),
        "--prefix",
        &t.prefix,
        "bridge",
        "fastmcp",
        "--to-courier",
        "--docket",
        &theirs.docket,
        "--session",
        "s",
        "--look-every",
        "1ms",
    ];
    let (mut pushed, mut kills) = (0, 0);
    while pushed < 2000 {
        let mut bridge = Running::start(&args);
        let before = sink.seen().len();
        let end = pushed + 250;
        while pushed < end {
            theirs.push("s", &question(pushed)).await;
            pushed += 1;
        }
        // In the middle of its work, not of its start.
        wait_until("it works", LONG, || async {
            if sink.seen().len() > before { Ok(()) } else { Err("nothing yet".to_owned()) }
        })
        .await;
        bridge.sigkill().await;
        kills += 1;
    }
    let mut last = Running::start(&args);
    sink.wait_for(2000).await;
    last.sigterm().await;
    assert!(last.wait(LONG).await.success());
    assert_eq!(kills, 8);
    let tasks: Vec<_> = sink.seen().iter().map(task).collect();
    assert_eq!(tasks, (0..2000).map(|n| format!("t-{n}")).collect::<Vec<_>>());
    assert_eq!(theirs.queued("s").await, [""; 0]);
    courier.shutdown(LONG).await;
    t.finish().await;
}

/// What is in our queue stands in FastMCP's, in its form and with an expiry; what its subscriber would drop is kept.
#[tokio::test]
async fn what_is_in_our_queue_stands_in_fastmcps_list_once() {
    let t = Fixture::plain("to_fastmcp").await;
    let (courier, theirs) = (t.courier().await, Theirs::new(&t));
    let s = session("s:1");
    let status = |n: u64| {
        Notification::new("notifications/tasks/status")
            .param("taskId", format!("t-{n}"))
            .param("status", "input_required")
            .meta(RELATED, json!({"elicitation": {"requestId": "r"}}))
    };
    courier.push_notification(&s, &status(0)).await.expect("queued");
    courier.push_notification(&s, &Notification::tools_list_changed()).await.expect("queued");
    courier.push(Push::new(&s, "no notification")).await.expect("queued");
    courier.push_notification(&s, &status(1)).await.expect("queued");
    let _: () =
        t.send(redis::cmd("SET").arg(theirs.queue("s:1") + ":active").arg("1").arg("EX").arg(60)).await;

    let (bridge, cancel) = (theirs.bridge(&courier).await, CancellationToken::new());
    let running = tokio::spawn({
        let (bridge, cancel) = (bridge.clone(), cancel.clone());
        async move { bridge.run_to_fastmcp(Sessions::All, &cancel).await }
    });
    let queued = wait_until("two messages", LONG, || async {
        let queued = theirs.queued("s:1").await;
        if queued.len() == 2 { Ok(queued) } else { Err(format!("{queued:?}")) }
    })
    .await;
    let newest: Value = serde_json::from_str(&queued[0]).expect("JSON");
    let told = &newest["notification"];
    assert_eq!((&newest["attempt"], &told["params"]["taskId"]), (&json!(0), &json!("t-1")));
    assert_eq!(told["_meta"][RELATED].get("task_scope"), Some(&Value::Null), "or it would not ask");
    assert!(told["params"].get("_meta").is_none() && told["params"].get("ttl").is_some());
    let ttl: i64 = t.send(redis::cmd("PTTL").arg(theirs.queue("s:1"))).await;
    assert!((290_000..=300_000).contains(&ttl), "{ttl}");
    wait_pending(&courier, &s, 0).await;
    let (dead, letters) = courier.dead_letters(&s).list(0, 10).await.expect("listed");
    assert_eq!(dead, 2);
    assert!(letters[0].last_error.contains("tools/list_changed"), "{:?}", letters[0]);

    // A delivery whose ack was lost comes again.
    let again = Delivery::synthetic(
        &s,
        &MessageId::new("m").expect("valid"),
        1,
        serde_json::to_vec(&status(2)).expect("JSON"),
    );
    for _ in 0..3 {
        bridge.sink().deliver(again.clone()).await.expect("handed over");
    }
    assert_eq!(theirs.queued("s:1").await.len(), 3);
    let odd = Delivery::synthetic(&s, &MessageId::new("o").expect("valid"), 1, "{}");
    assert!(matches!(bridge.sink().deliver(odd).await, Err(SinkError::Rejected(_))));

    // Its subscriber goes: the session is given back.
    let _: i64 = t.send(redis::cmd("DEL").arg(theirs.queue("s:1") + ":active")).await;
    wait_until("the session is free", LONG, || async {
        if courier.subscribers().count() == 0 { Ok(()) } else { Err("served".to_owned()) }
    })
    .await;
    cancel.cancel();
    running.await.expect("no panic").expect("to its end");
    courier.dead_letters(&s).purge(None).await.expect("purged");
    t.finish().await;
}

/// One answer counts; the state says so before the worker can wake, and a late one changes nothing.
#[tokio::test]
async fn the_first_answer_to_a_fastmcp_worker_counts_and_a_late_one_is_refused() {
    let t = Fixture::plain("answers").await;
    let (courier, theirs) = (t.courier().await, Theirs::new(&t));
    let bridge = theirs.bridge(&courier).await;
    for (scope, tag) in [(None, "anon"), (Some("client|sub"), "auth:client%7Csub")] {
        let key = |name: &str| format!("{}:fastmcp:task:{tag}:t-1:elicit:{name}", theirs.docket);
        let yes = Answer::Accept(json!({"value": "blue"}).as_object().expect("an object").clone());
        assert_eq!(bridge.answer(scope, "t-1", &yes).await, Ok(false), "nobody asked");
        let _: () = t.send(redis::cmd("SET").arg(key("status")).arg("waiting").arg("EX").arg(60)).await;
        assert_eq!(bridge.answer(Some("somebody else"), "t-1", &yes).await, Ok(false));
        assert_eq!(bridge.answer(scope, "t-1", &yes).await, Ok(true));
        for late in [&yes, &Answer::Decline, &Answer::Cancel] {
            assert_eq!(bridge.answer(scope, "t-1", late).await, Ok(false));
        }
        let given: Vec<String> = t.send(redis::cmd("LRANGE").arg(key("response")).arg(0).arg(-1)).await;
        assert_eq!(given.len(), 1);
        let given: Value = serde_json::from_str(&given[0]).expect("JSON");
        assert_eq!(given, json!({"action": "accept", "content": {"value": "blue"}}));
        let status: String = t.send(redis::cmd("GET").arg(key("status"))).await;
        assert_eq!(status, "responded");
    }
    t.finish().await;
}

/// F47: FastMCP keeps its callers' tokens and headers beside its tasks. The bridge carries none of it.
#[tokio::test]
async fn f47_callers_credentials_at_fastmcp_stay_there() {
    let t = Fixture::plain("f47_bridge").await;
    let (courier, theirs) = (t.courier().await, Theirs::new(&t));
    let canary = "canary-77aa";
    let snapshot = format!("{}:fastmcp:task:anon:t-1:snapshot", theirs.docket);
    let secret =
        json!({"access_token_json": canary, "http_headers": {"authorization": canary}, "session_id": "s"});
    let _: () = t.send(redis::cmd("SET").arg(&snapshot).arg(secret.to_string()).arg("EX").arg(60)).await;
    theirs.push("s", &question(1)).await;
    theirs.bridge(&courier).await.bring(&[session("s")]).await.expect("brought");
    let sink = Recorder::new();
    let ours: Vec<String> = t.ask(&format!("LRANGE {} 0 -1", t.key("q", "s"))).await;
    assert!(ours.len() == 1 && !ours[0].contains(canary), "{ours:?}");
    courier.subscribers().ensure_running(&session("s"), sink.clone()).await.expect("claimed");
    assert!(sink.wait_for(1).await.iter().all(|body| !body.contains(canary)));
    courier.shutdown(LONG).await;
    t.finish().await;
}

/// A question of a real FastMCP 3 worker is delivered by our subscriber, and its answer lets the worker go on.
#[tokio::test]
async fn a_question_of_a_real_fastmcp_worker_is_delivered_and_answered() {
    let t = Fixture::plain("real_worker").await;
    if t.server.url().starts_with("memory:") {
        return eprintln!("skipped: other processes do not reach memory://");
    }
    let Some(python) = python_or_skip("a_question_of_a_real_fastmcp_worker_is_delivered_and_answered").await
    else {
        return;
    };
    let (courier, docket) = (t.courier().await, format!("real-{}", t.prefix));
    let mut worker = FastMcpProcess::start(&python, &["worker", t.server.admin_url(), &docket]);
    let id = worker.line().await["session"].as_str().expect("a session").to_owned();
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&session(&id), sink.clone()).await.expect("claimed");
    let bridge = FastMcp::connect(&courier, t.server.admin_url(), &docket).await.expect("connected");
    let cancel = CancellationToken::new();
    let running = tokio::spawn({
        let (bridge, cancel) = (bridge.clone(), cancel.clone());
        async move { bridge.run_to_courier(Sessions::All, &cancel).await }
    });
    wait_until("the question", Duration::from_secs(60), || async {
        if sink.seen().is_empty() { Err("nothing yet".to_owned()) } else { Ok(()) }
    })
    .await;
    let asked = sink.seen()[0].notification().expect("a notification");
    let params = asked.params.as_ref().expect("params");
    assert_eq!(
        (asked.method.as_str(), &params["status"]),
        ("notifications/tasks/status", &json!("input_required"))
    );
    let related = asked.meta_value(RELATED).expect("metadata");
    assert_eq!(related["elicitation"]["message"], "Which colour?");
    let answer = Answer::Accept(json!({"value": "blue"}).as_object().expect("an object").clone());
    let given = bridge
        .answer(related["task_scope"].as_str(), params["taskId"].as_str().expect("text"), &answer)
        .await;
    assert_eq!(given, Ok(true));
    assert_eq!(worker.line().await["result"], "accept: blue");
    worker.end().await;
    cancel.cancel();
    assert_eq!(running.await.expect("no panic").messages, 1);
    courier.shutdown(LONG).await;
    t.finish().await;
}

/// What is pushed with us is delivered by a real FastMCP 3 subscriber, in order.
#[tokio::test]
async fn what_we_push_is_delivered_by_a_real_fastmcp_subscriber() {
    let t = Fixture::plain("real_subscriber").await;
    if t.server.url().starts_with("memory:") {
        return eprintln!("skipped: other processes do not reach memory://");
    }
    let Some(python) = python_or_skip("what_we_push_is_delivered_by_a_real_fastmcp_subscriber").await else {
        return;
    };
    let (courier, docket, s) = (t.courier().await, format!("real-{}", t.prefix), session("s-1"));
    let mut subscriber =
        FastMcpProcess::start(&python, &["subscriber", t.server.admin_url(), &docket, "s-1"]);
    assert_eq!(subscriber.line().await["subscribed"], "s-1");
    for n in 0..3 {
        let note = mcp_courier::TaskNote::new(
            format!("t-{n}"),
            mcp_courier::TaskState::Working,
            "2026-12-01T10:00:00Z",
            "2026-12-01T10:00:01Z",
        );
        courier
            .push_notification(&s, &Notification::task_status(&note.message("on it")))
            .await
            .expect("queued");
    }
    let bridge = FastMcp::connect(&courier, t.server.admin_url(), &docket).await.expect("connected");
    let cancel = CancellationToken::new();
    let running = tokio::spawn({
        let cancel = cancel.clone();
        async move { bridge.run_to_fastmcp(Sessions::All, &cancel).await }
    });
    for n in 0..3 {
        let sent = subscriber.line().await;
        assert_eq!(sent["sent"]["method"], "notifications/tasks/status");
        assert_eq!(sent["sent"]["params"]["taskId"], format!("t-{n}"));
        assert_eq!(sent["sent"]["params"]["statusMessage"], "on it");
    }
    subscriber.end().await;
    cancel.cancel();
    running.await.expect("no panic").expect("to its end");
    wait_pending(&courier, &s, 0).await;
    courier.shutdown(LONG).await;
    t.finish().await;
}
