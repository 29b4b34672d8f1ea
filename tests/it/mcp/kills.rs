//! Server, worker and client in three processes, of which one is killed: two examples, and an rmcp client in this one.

use std::time::Duration;

use mcp_courier::Courier;
use rmcp::RoleClient;
use rmcp::model::{CallToolRequestParams, ElicitationAction};
use rmcp::service::RunningService;
use serde_json::json;

use super::running::Running;
use super::support::{Balancer, Plain, numbered};
use super::user::User;
use crate::support::fixture::Fixture;
use crate::support::wait::wait_until;

/// A server of the examples, and where it listens. `None`, with a line, where there can be none.
async fn server(t: &Fixture) -> Option<(Running, String)> {
    let url = t.server.url();
    if url.starts_with("memory:") {
        eprintln!("skipped: processes cannot share memory://");
        return None;
    }
    let Some(mut server) = Running::start("mcp_server", &["127.0.0.1:0", url, &t.prefix]) else {
        eprintln!("skipped: the examples are not built (cargo build --examples --features rmcp)");
        return None;
    };
    let at = server.line("listening on ").await;
    Some((server, at))
}

async fn worker(t: &Fixture) -> Running {
    let mut worker = Running::start("mcp_worker", &[t.server.url(), &t.prefix]).expect("it is built");
    worker.line("waiting for jobs").await;
    worker
}

/// Starts a report.
async fn call(client: &RunningService<RoleClient, User>) {
    let arguments = json!({ "topic": "queues" }).as_object().cloned().expect("an object");
    let call = CallToolRequestParams::new("report").with_arguments(arguments);
    client.call_tool(call).await.expect("the tool answers");
}

fn accept(user: &User, content: serde_json::Value) {
    user.say.send_replace(Some((ElicitationAction::Accept, Some(content))));
}

/// Until so many sessions have an owner. The workers' inbox is one.
async fn wait_owned(courier: &Courier, owned: u64, within: Duration) {
    wait_until(&format!("{owned} sessions"), within, || async {
        let now = courier.overview(10).await.map_err(|e| e.to_string())?.owned;
        if now == owned { Ok(()) } else { Err(now.to_string()) }
    })
    .await;
}

/// The client is told with task id, status, request id, message and schema. Accept, two questions in a row, decline,
/// cancel and a client that cannot be asked are what the worker hears. Each client counts as one served session while it
/// is there, and within a second of its end no more.
#[tokio::test]
async fn what_the_user_says_crosses_three_processes_and_the_session_count_returns() {
    let t = Fixture::new("mcp_three").await;
    let Some((server, at)) = server(&t).await else { return };
    let (worker, look) = (worker(&t).await, t.courier().await);
    wait_owned(&look, 1, Duration::from_secs(5)).await;
    let both = json!({ "pages": 60, "sure": true });
    for (user, said, questions) in [
        (User::saying(ElicitationAction::Accept, Some(json!({ "pages": 12 }))), "a report of 12 pages", 1),
        (User::saying(ElicitationAction::Accept, Some(both)), "a report of 60 pages", 2),
        (User::saying(ElicitationAction::Decline, None), "stopped: declined", 1),
        (User::saying(ElicitationAction::Cancel, None), "stopped: cancelled", 1),
        (User { able: false, ..User::silent() }, "stopped: cancelled", 0),
    ] {
        let client = user.connect(&at).await;
        call(&client).await;
        user.wait_text(said).await;
        wait_owned(&look, 2, Duration::from_secs(5)).await;
        assert_eq!(user.asked.lock().expect("not poisoned").len(), questions, "{said}");
        let heard = user.heard.lock().expect("not poisoned").clone();
        let told: Vec<_> = heard.iter().filter(|one| one["method"] == "notifications/tasks/status").collect();
        assert!(told.len() >= questions, "{heard:?}");
        if questions > 0 {
            assert_eq!(told[0]["params"]["status"], "input_required");
            let task = told[0]["params"]["taskId"].as_str().expect("a task id");
            let asked = &told[0]["meta"]["io.modelcontextprotocol/related-task"]["elicitation"];
            assert_eq!(asked["requestId"], task, "{}", told[0]);
            assert_eq!(asked["message"], "How many pages?");
            assert_eq!(asked["requestedSchema"]["required"], json!(["pages"]));
        }
        client.cancel().await.expect("it ends");
        wait_owned(&look, 1, Duration::from_secs(1)).await;
    }
    worker.interrupt().await;
    server.interrupt().await;
    t.finish().await;
}

/// A client that ends its session while it is asked: the worker hears it at once, and not after two minutes.
#[tokio::test]
async fn a_client_that_leaves_while_it_is_asked_is_gone_for_the_worker_process() {
    let t = Fixture::new("mcp_three_gone").await;
    let Some((server, at)) = server(&t).await else { return };
    let mut worker = worker(&t).await;
    let user = User::silent();
    let client = user.connect(&at).await;
    call(&client).await;
    user.wait_asked(1).await;
    client.cancel().await.expect("it ends");
    worker.line_with("session_gone").await;
    worker.interrupt().await;
    server.interrupt().await;
    t.finish().await;
}

/// SIGKILL to the server while the user thinks: the client comes back on the other one and is asked there once more.
#[tokio::test]
async fn a_server_killed_while_the_user_is_asked_has_the_client_asked_once_more_elsewhere() {
    let t = Fixture::new("mcp_kill_server").await;
    let Some((doomed, at)) = server(&t).await else { return };
    let Some((survivor, other)) = server(&t).await else { return };
    let worker = worker(&t).await;
    let balancer = Balancer::over(vec![at.clone()]).await;
    let user = User::silent();
    let client = user.connect(&balancer.url).await;
    call(&client).await;
    user.wait_asked(1).await;
    balancer.set_urls(vec![at, other]);
    doomed.kill().await;
    user.wait_asked(2).await;
    accept(&user, json!({ "pages": 12 }));
    user.wait_text("a report of 12 pages").await;
    assert_eq!(user.asked.lock().expect("not poisoned").len(), 2, "once more, and not oftener");
    client.cancel().await.expect("it ends");
    worker.interrupt().await;
    survivor.interrupt().await;
    t.finish().await;
}

/// SIGKILL to the worker while it waits: the next one waits for the same request id, and the user is asked once.
#[tokio::test]
async fn a_worker_killed_while_it_waits_is_replaced_and_the_user_is_asked_once() {
    let t = Fixture::new("mcp_kill_worker").await;
    let Some((server, at)) = server(&t).await else { return };
    let first = worker(&t).await;
    let user = User::silent();
    let client = user.connect(&at).await;
    call(&client).await;
    user.wait_asked(1).await;
    first.kill().await;
    let mut second = worker(&t).await;
    second.line_with("a report about").await;
    accept(&user, json!({ "pages": 12 }));
    user.wait_text("a report of 12 pages").await;
    assert_eq!(user.asked.lock().expect("not poisoned").len(), 1);
    client.cancel().await.expect("it ends");
    second.interrupt().await;
    server.interrupt().await;
    t.finish().await;
}

/// Behind a round-robin proxy, a client of 2025-11-25: what is pushed arrives whichever of two servers holds the stream.
/// SIGKILL to that one: the client resumes on the other with `Last-Event-ID` and misses nothing.
#[tokio::test]
async fn a_legacy_client_resumes_on_the_other_server_after_sigkill_and_misses_nothing() {
    let t = Fixture::new("mcp_kill_reader").await;
    let look = t.courier().await;
    // With one request more the stream lands on the other one.
    for more in 0..2 {
        let Some((a, a_url)) = server(&t).await else { return };
        let Some((b, b_url)) = server(&t).await else { return };
        let balancer = Balancer::over(vec![a_url.clone(), b_url.clone()]).await;
        let client = Plain::initialize(&balancer.url).await;
        for _ in 0..more {
            let ping = json!({ "jsonrpc": "2.0", "id": "p", "method": "ping" });
            client.post(&balancer.url, &ping).await.1.next().await.expect("an answer");
        }
        let mut events = client.get(&balancer.url, None).await;
        let reader = balancer.reader();
        assert_eq!(reader, if more == 0 { a_url.clone() } else { b_url }, "both have their turn");
        for n in 0..5 {
            look.push_notification(&client.id(), &numbered(n)).await.expect("queued");
        }
        let last = events.until(2).await;
        let (doomed, survivor) = if reader == a_url { (a, b) } else { (b, a) };
        doomed.kill().await;
        while events.next().await.is_some() {}
        for n in 5..10 {
            look.push_notification(&client.id(), &numbered(n)).await.expect("queued");
        }
        let mut events = client.get(&balancer.url, Some(&last)).await;
        for n in 3..10 {
            // What the dead one stored and did not ack may come twice.
            events.until(n).await;
        }
        client.delete(&balancer.url).await;
        survivor.interrupt().await;
    }
    t.finish().await;
}
