//! `subscriptions/listen` with `taskIds`.

use std::time::Duration;

use serde_json::{Value, json};

use super::support::{Replica, Simple, Tools, client, durable, plain_client, work};
use crate::mcp::support::Events;
use crate::support::fixture::Fixture;

const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";

/// The next message of a subscription, without what marks it as one; the method of a notification is put beside its params.
async fn next(events: &mut Events) -> Value {
    let mut message = events.next().await.expect("a message").message;
    let body = if message["method"].is_string() { "params" } else { "result" };
    let meta = message[body]["_meta"].take();
    assert_eq!(meta["io.modelcontextprotocol/subscriptionId"], "r", "{message}");
    message[body].as_object_mut().expect("an object").remove("_meta");
    message
}

/// The next state of a task. States that follow each other quickly may be passed over.
async fn state(events: &mut Events) -> Value {
    let message = next(events).await;
    assert_eq!(message["method"], "notifications/tasks", "{message}");
    message["params"].clone()
}

async fn until(events: &mut Events, id: &str, status: &str) -> Value {
    loop {
        let task = state(events).await;
        if task["taskId"] == id && task["status"] == status {
            return task;
        }
    }
}

/// What `tasks/get` says, as a notification says it.
async fn got(url: &str, id: &str) -> Value {
    let mut task = client().get(url, id).await;
    let task = task.as_object_mut().expect("an object");
    task.remove("resultType");
    task.remove("_meta");
    Value::Object(task.clone())
}

#[tokio::test]
async fn a_listener_hears_every_task_of_its_own_as_tasks_get_says_it_until_all_have_ended() {
    let t = Fixture::new("durable_listen").await;
    let tools = Tools::new("listen");
    // Three processes: where the client listens, where it sends the rest, and where the tool runs.
    let [near, far, working] =
        [t.courier().await, t.courier().await, t.courier().await].map(|courier| durable(&tools, &courier));
    let (near, far, worker) = (Replica::start(&near).await, Replica::start(&far).await, work(&working).await);
    let foreign = client().caller("app|bob").task(&far.url, "gated", json!({})).await;
    let asks = client().task(&far.url, "asks", json!({})).await;
    let done = client().task(&far.url, "tool_error", json!({})).await;
    client().wait(&far.url, &asks, "input_required").await;
    client().wait(&far.url, &done, "completed").await;

    let asked = json!({ "taskIds": [&asks, &foreign, "unknown", &done, &asks] });
    let mut events = client().listen(&near.url, asked).await;
    let acknowledged = next(&mut events).await;
    assert_eq!(acknowledged["method"], ACKNOWLEDGED);
    assert_eq!(acknowledged["params"]["notifications"], json!({ "taskIds": [&asks, &done] }));
    // Where each stands now, so that nothing between the look and the listening is missed.
    let mut first = [state(&mut events).await, state(&mut events).await];
    first.sort_by_key(|task| task["taskId"] == done);
    assert_eq!(first[0], got(&far.url, &asks).await);
    assert_eq!(first[1], got(&far.url, &done).await);
    assert!(first[0]["inputRequests"].is_object() && first[1]["result"]["isError"] == true, "{first:?}");

    client().answer(&far.url, &asks, &[("x", "1"), ("y", "2")]).await;
    let again = until(&mut events, &asks, "input_required").await;
    assert_eq!(again, got(&far.url, &asks).await);
    client().answer(&far.url, &asks, &[("x", "3")]).await;
    let end = until(&mut events, &asks, "completed").await;
    assert_eq!(end, got(&far.url, &asks).await);
    let result = next(&mut events).await;
    assert_eq!(result["result"], json!({ "resultType": "complete" }), "{result}");
    assert!(events.next().await.is_none(), "the stream ends");
    tools.gate.cancel();
    worker.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

#[tokio::test]
async fn a_listener_without_the_capability_is_refused_before_the_stream_begins() {
    let t = Fixture::new("durable_listen_refused").await;
    let server = Simple::start(&t.courier().await).await;
    let listen = json!({ "notifications": { "taskIds": ["a"], "toolsListChanged": true } });
    let (status, answer) = plain_client().send(&server.url, "subscriptions/listen", listen).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!(-32021)), "{answer}");
    let required = &answer["error"]["data"]["requiredCapabilities"]["extensions"];
    assert_eq!(required, &json!({ "io.modelcontextprotocol/tasks": {} }));
    for bad in [
        json!({ "taskIds": "a" }),
        json!({ "taskIds": [1] }),
        json!({ "taskIds": [], "toolsListChanged": 1 }),
    ] {
        let error = client().err(&server.url, "subscriptions/listen", json!({ "notifications": bad })).await;
        assert_eq!(error["code"], -32602, "{bad}: {error}");
    }
    // Without tasks it is rmcp's, and needs no capability for them.
    let mut events = plain_client().listen(&server.url, json!({ "toolsListChanged": true })).await;
    let acknowledged = next(&mut events).await;
    assert_eq!(acknowledged["params"]["notifications"], json!({ "toolsListChanged": true }));
    assert_eq!(server.tools.log.count("listen"), 1);
    server.stop().await;
    t.finish().await;
}

/// The wrapped handler's own notifications and those about tasks share a stream; either of them may end first.
#[tokio::test]
async fn tasks_and_what_else_was_asked_for_come_on_one_stream() {
    let t = Fixture::new("durable_listen_both").await;
    let server = Simple::start(&t.courier().await).await;
    let id = client().task(&server.url, "asks", json!({})).await;
    client().wait(&server.url, &id, "input_required").await;
    let asked = json!({ "taskIds": [&id], "toolsListChanged": true, "promptsListChanged": true });
    let mut events = client().listen(&server.url, asked.clone()).await;
    let acknowledged = next(&mut events).await;
    // The server has no prompts.
    let accepted = json!({ "taskIds": [&id], "toolsListChanged": true });
    assert_eq!(acknowledged["params"]["notifications"], accepted);
    let mut methods = [next(&mut events).await, next(&mut events).await].map(|m| m["method"].clone());
    methods.sort_by_key(ToString::to_string);
    assert_eq!(methods, ["notifications/tasks", "notifications/tools/list_changed"]);
    client().ok(&server.url, "tasks/cancel", json!({ "taskId": id })).await;
    until(&mut events, &id, "cancelled").await;
    // The rest goes on, and has its own end.
    server.tools.gate.cancel();
    let result = next(&mut events).await;
    assert_eq!(result["result"]["resultType"], "complete", "{result}");
    assert_eq!(server.tools.log.count("listen: over"), 1);
    server.stop().await;
    t.finish().await;
}

#[tokio::test]
async fn a_client_that_leaves_its_stream_ends_what_was_done_for_it() {
    let t = Fixture::new("durable_listen_left").await;
    let server = Simple::start(&t.courier().await).await;
    let id = client().task(&server.url, "gated", json!({})).await;
    let mut events = client().listen(&server.url, json!({ "taskIds": [id], "toolsListChanged": true })).await;
    assert_eq!(next(&mut events).await["method"], ACKNOWLEDGED);
    server.tools.log.wait("listen", 1).await;
    drop(events);
    server.tools.log.wait("listen: gone", 1).await;
    server.stop().await;
    t.finish().await;
}

#[tokio::test]
async fn a_stream_ends_in_good_order_when_the_courier_does() {
    let t = Fixture::new("durable_listen_shutdown").await;
    let (courier, other) = (t.courier().await, t.courier().await);
    let tools = Tools::new("shutdown");
    let replica = Replica::start(&durable(&tools, &courier)).await;
    let elsewhere = Replica::start(&durable(&tools, &other)).await;
    let id = client().task(&elsewhere.url, "gated", json!({})).await;
    let mut events = client().listen(&replica.url, json!({ "taskIds": [id] })).await;
    assert_eq!(next(&mut events).await["method"], ACKNOWLEDGED);
    assert_eq!(state(&mut events).await["status"], "working");
    courier.shutdown(Duration::from_secs(5)).await;
    let result = next(&mut events).await;
    assert_eq!(result["result"]["resultType"], "complete", "{result}");
    client().ok(&elsewhere.url, "tasks/cancel", json!({ "taskId": id })).await;
    t.finish().await;
}

/// A task that expires says nothing any more: it is no longer waited for.
#[tokio::test]
async fn a_stream_ends_when_its_task_expires() {
    let t = Fixture::new("durable_listen_expired").await;
    let tools = Tools::new("expired");
    let durable =
        durable(&tools, &t.courier().await).settings(|tasks| tasks.ttl(Duration::from_millis(1200)));
    let replica = Replica::start(&durable).await;
    let id = client().task(&replica.url, "gated", json!({})).await;
    let mut events = client().listen(&replica.url, json!({ "taskIds": [id] })).await;
    assert_eq!(next(&mut events).await["method"], ACKNOWLEDGED);
    assert_eq!(state(&mut events).await["status"], "working");
    assert_eq!(next(&mut events).await["result"]["resultType"], "complete");
    t.finish().await;
}

/// rmcp by itself does not know the field.
#[tokio::test]
async fn without_the_layer_tasks_are_not_acknowledged() {
    let t = Fixture::new("durable_listen_bare").await;
    let tools = Tools::new("bare");
    let replica = Replica::start_with(&durable(&tools, &t.courier().await), |service| service).await;
    let mut events =
        client().listen(&replica.url, json!({ "taskIds": ["a"], "toolsListChanged": true })).await;
    let acknowledged = next(&mut events).await;
    assert_eq!(acknowledged["params"]["notifications"], json!({ "toolsListChanged": true }));
    t.finish().await;
}
