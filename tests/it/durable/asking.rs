//! Tools that ask: before the task, by ending a leg, and in place.

use std::time::Duration;

use serde_json::json;

use super::support::{Client, Replica, Simple, Tools, accept, client, durable, text_of, work};
use crate::support::fixture::Fixture;
use crate::support::wait::wait_until;

#[tokio::test]
async fn a_tool_that_asks_in_its_result_is_called_again_with_state_and_answers_and_no_key_comes_twice() {
    let t = Fixture::new("durable_rounds").await;
    let server = Simple::start(&t.courier().await).await;
    let url = &server.url;
    let id = client().task(url, "asks", json!({})).await;
    let first = client().wait(url, &id, "input_required").await;
    let open: Vec<String> = first["inputRequests"].as_object().expect("requests").keys().cloned().collect();
    assert_eq!(open.len(), 2);
    assert_eq!(first["inputRequests"][&open[0]]["method"], "elicitation/create");
    assert!(first["requestState"].is_null(), "the state is the server's: {first}");
    // One of the two, and some that nobody asked for.
    let part =
        json!({ "taskId": id, "inputResponses": { &open[0]: accept("one"), "zz": accept("nothing") } });
    client().ok(url, "tasks/update", part).await;
    let left = client().get(url, &id).await;
    let left = left["inputRequests"].as_object().expect("requests");
    assert_eq!(left.keys().collect::<Vec<_>>(), [&open[1]]);
    // An answer that was given stays; the last one starts the next leg.
    let rest =
        json!({ "taskId": id, "inputResponses": { &open[0]: accept("other"), &open[1]: accept("two") } });
    client().ok(url, "tasks/update", rest).await;
    let second = wait_until("the next question", Duration::from_secs(20), || async {
        let task = client().get(url, &id).await;
        let keys = task["inputRequests"].as_object().map(|open| open.keys().cloned().collect::<Vec<_>>());
        match keys {
            Some(keys) if keys.len() == 1 && keys != open[1..] => Ok(keys[0].clone()),
            _ => Err(task.to_string()),
        }
    })
    .await;
    assert!(!open.contains(&second), "a new key for a new question");
    let last = json!({ "taskId": id, "inputResponses": { &second: accept("three") } });
    client().ok(url, "tasks/update", last).await;
    let done = client().wait(url, &id, "completed").await;
    assert_eq!(text_of(&done["result"]), "one and two, then three");
    assert_eq!(server.tools.log.all(), ["asks 0", "asks 1", "asks 2"]);
    server.stop().await;
    t.finish().await;
}

#[tokio::test]
async fn a_tool_that_asks_before_its_task_answers_the_request_and_only_then_makes_a_task() {
    let t = Fixture::new("durable_first").await;
    let server = Simple::start(&t.courier().await).await;
    let url = &server.url;
    let asked = client().call(url, "asks_first", json!({})).await;
    assert_eq!(
        (asked["resultType"].as_str(), &asked["requestState"]),
        (Some("input_required"), &json!("asked"))
    );
    assert!(asked["taskId"].is_null());
    let again = |answer: serde_json::Value| {
        json!({
            "name": "asks_first", "arguments": {}, "requestState": "asked", "inputResponses": { "who": answer },
        })
    };
    let refused = client().err(url, "tools/call", again(json!({ "action": "decline" }))).await;
    assert_eq!((&refused["code"], &refused["message"]), (&json!(-32602), &json!("then not")));
    assert!(t.keys().await.iter().all(|(key, _)| !key.starts_with("t:")), "no task was made");
    let made = client().ok(url, "tools/call", again(accept("Ada"))).await;
    assert!(made["resultType"] == "task" && made["requestState"].is_null(), "{made}");
    let done = client().wait(url, made["taskId"].as_str().expect("an id"), "completed").await;
    assert_eq!(text_of(&done["result"]), "Ada");
    assert!(done["requestState"].is_null() && done["inputRequests"].is_null());
    assert_eq!(server.tools.log.count("in the task"), 1);
    server.stop().await;
    t.finish().await;
}

#[tokio::test]
async fn the_body_of_a_tool_that_begins_its_task_runs_once_and_in_the_task() {
    let t = Fixture::new("durable_begins").await;
    let server = Simple::start(&t.courier().await).await;
    let id = client().task(&server.url, "begins", json!({ "a": 5 })).await;
    let done = client().wait(&server.url, &id, "completed").await;
    assert_eq!(text_of(&done["result"]), "5 2026-07-28", "the request's own version");
    assert_eq!(server.tools.log.all(), ["begins true"]);
    let plain = super::support::plain_client().call(&server.url, "begins", json!({ "a": 5 })).await;
    assert_eq!(text_of(&plain), "5 2026-07-28");
    assert_eq!(server.tools.log.all(), ["begins true", "begins false"]);
    server.stop().await;
    t.finish().await;
}

/// A client is never asked for what it did not say that it can do.
#[tokio::test]
async fn a_request_of_a_kind_that_the_client_did_not_declare_fails_the_task() {
    let t = Fixture::new("durable_undeclared").await;
    let server = Simple::start(&t.courier().await).await;
    let url = &server.url;
    let id = client().task(url, "samples", json!({})).await;
    let failed = client().wait(url, &id, "failed").await;
    assert_eq!(failed["error"]["code"], -32021, "{failed}");
    assert_eq!(failed["error"]["data"]["requiredCapabilities"], json!({ "sampling": {} }), "{failed}");
    let extensions = json!({ "io.modelcontextprotocol/tasks": {} });
    let sampler = Client { capabilities: json!({ "sampling": {}, "extensions": extensions }), ..client() };
    let id = sampler.task(url, "samples", json!({})).await;
    sampler.answer(url, &id, &[("s", "Hello")]).await;
    assert_eq!(text_of(&sampler.wait(url, &id, "completed").await["result"]), "sampled");
    // The same in place.
    let id = sampler.task(url, "waits", json!({})).await;
    let failed = sampler.wait(url, &id, "failed").await;
    assert!(failed["error"]["message"].as_str().is_some_and(|m| m.contains("elicitation")), "{failed}");
    server.stop().await;
    t.finish().await;
}

#[tokio::test]
async fn a_tool_that_waits_in_place_goes_on_with_the_answer_and_begins_again_where_its_worker_left() {
    let t = Fixture::new("durable_in_place").await;
    let tools = Tools::new("in place");
    let (first, second) = (durable(&tools, &t.courier().await), durable(&tools, &t.courier().await));
    let replica = Replica::start(&first).await;
    let worker = work(&first).await;
    let id = client().task(&replica.url, "waits", json!({})).await;
    client().wait(&replica.url, &id, "input_required").await;
    // It leaves in good order: the tool hears it, and is run again by the next one.
    worker.shutdown(Duration::from_secs(2)).await;
    assert_eq!(tools.log.count("exit the worker shuts down"), 1, "{:?}", tools.log.all());
    let worker = work(&second).await;
    tools.log.wait("waits", 2).await;
    client().answer(&replica.url, &id, &[("q", "here")]).await;
    let done = client().wait(&replica.url, &id, "completed").await;
    assert_eq!(text_of(&done["result"]), "here");
    worker.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}
