//! `tasks/cancel`, wherever the task is.

use std::time::Duration;

use serde_json::json;

use super::support::{Replica, Simple, Tools, client, durable, text_of};
use crate::support::fixture::Fixture;

#[tokio::test]
async fn cancelling_reaches_a_running_tool_a_parked_one_a_waiting_one_and_changes_nothing_at_the_end() {
    let t = Fixture::new("durable_cancel").await;
    let server = Simple::start(&t.courier().await).await;
    let url = &server.url;
    let cancel = async |id: &str| client().ok(url, "tasks/cancel", json!({ "taskId": id })).await;
    let running = client().task(url, "gated", json!({})).await;
    server.tools.log.wait("gated", 1).await;
    cancel(&running).await;
    client().wait(url, &running, "cancelled").await;
    let parked = client().task(url, "asks", json!({})).await;
    client().wait(url, &parked, "input_required").await;
    cancel(&parked).await;
    let cancelled = client().wait(url, &parked, "cancelled").await;
    assert!(cancelled["inputRequests"].is_null() && cancelled["result"].is_null(), "{cancelled}");
    // An answer that comes too late is acknowledged and starts nothing.
    client().ok(url, "tasks/update", json!({ "taskId": parked, "inputResponses": { "x.1": {} } })).await;
    let waiting = client().task(url, "waits", json!({})).await;
    client().wait(url, &waiting, "input_required").await;
    cancel(&waiting).await;
    client().wait(url, &waiting, "cancelled").await;
    server.tools.log.wait("exit the task was cancelled", 1).await;
    let done = client().task(url, "sum", json!({ "a": 1 })).await;
    let before = client().wait(url, &done, "completed").await;
    cancel(&done).await;
    assert_eq!(client().get(url, &done).await, before, "a finished task stays as it is");
    for id in [&running, &parked, &waiting] {
        cancel(id).await;
        assert_eq!(client().get(url, id).await["status"], "cancelled");
    }
    assert_eq!(server.tools.log.count("asks 1"), 0, "the parked one did not go on");
    server.stop().await;
    t.finish().await;
}

/// Cooperative: who does not hear it finishes.
#[tokio::test]
async fn a_tool_that_does_not_hear_of_cancelling_completes() {
    let t = Fixture::new("durable_deaf").await;
    let server = Simple::start(&t.courier().await).await;
    let id = client().task(&server.url, "deaf", json!({})).await;
    server.tools.log.wait("deaf", 1).await;
    client().ok(&server.url, "tasks/cancel", json!({ "taskId": id })).await;
    assert_eq!(client().get(&server.url, &id).await["status"], "working");
    server.tools.gate.cancel();
    let done = client().wait(&server.url, &id, "completed").await;
    assert_eq!(text_of(&done["result"]), "done all the same");
    server.stop().await;
    t.finish().await;
}

#[tokio::test]
async fn a_task_that_no_worker_has_taken_is_cancelled_at_once_and_never_runs() {
    let t = Fixture::new("durable_cancel_queued").await;
    let tools = Tools::new("queued");
    let durable = durable(&tools, &t.courier().await);
    let replica = Replica::start(&durable).await;
    let id = client().task(&replica.url, "gated", json!({})).await;
    client().ok(&replica.url, "tasks/cancel", json!({ "taskId": id })).await;
    assert_eq!(client().get(&replica.url, &id).await["status"], "cancelled");
    let worker = super::support::work(&durable).await;
    let other = client().task(&replica.url, "sum", json!({ "a": 1 })).await;
    client().wait(&replica.url, &other, "completed").await;
    assert_eq!(tools.log.all(), ["sum"]);
    worker.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The request that made the task is over: neither its end nor the end of its connection ends the task.
#[tokio::test]
async fn a_client_that_goes_away_does_not_cancel_its_task() {
    let t = Fixture::new("durable_gone").await;
    let server = Simple::start(&t.courier().await).await;
    let id = client().task(&server.url, "gated", json!({})).await;
    server.tools.log.wait("gated", 1).await;
    // Its client, its connection and its request are dropped.
    let cancelled = json!({ "requestId": "r" });
    let _ = client().post(&server.url, "notifications/cancelled", cancelled).await;
    server.tools.gate.cancel();
    let done = client().wait(&server.url, &id, "completed").await;
    assert_eq!(text_of(&done["result"]), "the gate is open");
    server.stop().await;
    t.finish().await;
}
