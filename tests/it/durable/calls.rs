//! A task's life over the wire: made, asked for, ended.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::support::{Replica, Simple, Tools, client, durable, plain_client, text_of, work};
use crate::support::fixture::Fixture;

#[tokio::test]
async fn a_task_is_found_on_every_replica_as_soon_as_it_is_made_and_no_two_have_the_same_id() {
    let t = Fixture::new("durable_replicas").await;
    let tools = Tools::new("replicas");
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(Replica::start(&durable(&tools, &t.courier().await)).await);
    }
    let mut ids = HashSet::new();
    for n in 0..30 {
        // There is no worker yet.
        let id = client().task(&replicas[n % 3].url, "sum", json!({ "a": n })).await;
        assert!(id.len() >= 26 && id.bytes().all(|byte| byte.is_ascii_graphic()), "{id}");
        for replica in &replicas {
            assert_eq!(client().get(&replica.url, &id).await["status"], "working");
        }
        ids.insert(id);
    }
    assert_eq!(ids.len(), 30);
    // In a process that serves nobody.
    let worker = work(&durable(&tools, &t.courier().await)).await;
    for (n, id) in ids.iter().enumerate() {
        client().wait(&replicas[n % 3].url, id, "completed").await;
    }
    assert_eq!(tools.log.count("sum"), 30);
    worker.shutdown(std::time::Duration::from_secs(5)).await;
    t.finish().await;
}

#[tokio::test]
async fn ttl_and_poll_interval_are_there_from_the_beginning_to_the_end_and_the_rest_is_as_the_schema_has_it()
{
    let t = Fixture::new("durable_fields").await;
    let server = Simple::start(&t.courier().await).await;
    let made = client().call(&server.url, "sum", json!({ "a": 1 })).await;
    let id = made["taskId"].as_str().expect("an id");
    let done = client().wait(&server.url, id, "completed").await;
    for task in [&made, &done] {
        assert!(task["ttlMs"].as_u64().is_some_and(|ttl| (60_000..90_000).contains(&ttl)), "{task}");
        assert_eq!(task["pollIntervalMs"], 250, "{task}");
        for time in ["createdAt", "lastUpdatedAt"] {
            let time = task[time].as_str().expect("a time");
            assert!(time.len() == 24 && time.ends_with('Z') && time.as_bytes()[10] == b'T', "{time}");
        }
        for old in ["ttl", "pollInterval", "task", "requestState", "keepAlive"] {
            assert!(task[old].is_null(), "{old} in {task}");
        }
    }
    assert_eq!((made["resultType"].as_str(), done["resultType"].as_str()), (Some("task"), Some("complete")));
    assert_eq!(made["createdAt"], done["createdAt"]);
    assert!(done["result"]["_meta"]["io.modelcontextprotocol/related-task"].is_null());
    server.stop().await;
    t.finish().await;
}

#[tokio::test]
async fn an_error_of_the_tool_is_a_result_and_an_error_of_the_protocol_is_a_failure() {
    let t = Fixture::new("durable_errors").await;
    let server = Simple::start(&t.courier().await).await;
    let url = &server.url;
    let id = client().task(url, "tool_error", json!({})).await;
    let done = client().wait(url, &id, "completed").await;
    assert_eq!((&done["result"]["isError"], text_of(&done["result"])), (&json!(true), "no luck"));
    assert!(done["error"].is_null());
    let id = client().task(url, "rpc_error", json!({})).await;
    let failed = client().wait(url, &id, "failed").await;
    assert_eq!(failed["error"], json!({ "code": -32042, "message": "broken", "data": { "part": 7 } }));
    assert!(failed["result"].is_null() && failed["statusMessage"] == "broken", "{failed}");
    // It is the error that the request itself would have had.
    let call = json!({ "name": "rpc_error", "arguments": {} });
    assert_eq!(plain_client().err(url, "tools/call", call).await, failed["error"]);
    server.stop().await;
    t.finish().await;
}

#[tokio::test]
async fn a_tool_that_panics_is_tried_again() {
    let t = Fixture::new("durable_panic").await;
    let server = Simple::start(&t.courier().await).await;
    let id = client().task(&server.url, "panics_once", json!({})).await;
    let done = client().wait(&server.url, &id, "completed").await;
    assert_eq!(text_of(&done["result"]), "attempt 2");
    server.stop().await;
    t.finish().await;
}

/// What is refused, and with which words, does not depend on whether the call would have been a task; and what is taken
/// means the same.
#[tokio::test]
async fn arguments_are_read_before_there_is_a_task_exactly_as_without_one() {
    let t = Fixture::new("durable_arguments").await;
    let server = Simple::start(&t.courier().await).await;
    let url = &server.url;
    let bad = [
        json!({}),
        json!({ "a": "1" }),
        json!({ "a": 1.5 }),
        json!({ "a": 1.0 }),
        json!({ "a": null }),
        json!({ "a": true }),
        json!({ "a": 1, "b": [2] }),
        json!({ "a": 1, "note": 5 }),
        json!({ "a": 9_223_372_036_854_775_808_u64 }),
    ];
    for tool in ["sum", "begins"] {
        for arguments in &bad {
            let call = json!({ "name": tool, "arguments": arguments });
            let task = client().send(url, "tools/call", call.clone()).await;
            let plain = plain_client().send(url, "tools/call", call).await;
            // rmcp's router gives it back as the tool's error.
            assert_eq!(task.1["result"]["isError"], true, "{tool} {arguments}: {task:?}");
            assert_eq!(task, plain, "{tool} {arguments}");
        }
    }
    for call in [json!({ "name": "sum" }), json!({ "name": "sum", "arguments": [1] })] {
        let task = client().send(url, "tools/call", call.clone()).await;
        assert_eq!(task, plain_client().send(url, "tools/call", call).await);
        // Of the second rmcp makes a request that it does not know.
        assert_ne!(task.1["result"]["resultType"], "task", "{task:?}");
    }
    let unknown = json!({ "name": "nothing", "arguments": {} });
    let task = client().send(url, "tools/call", unknown.clone()).await;
    assert_eq!(task, plain_client().send(url, "tools/call", unknown).await);
    assert!(server.tools.log.all().is_empty(), "no tool ran");
    assert!(t.keys().await.iter().all(|(key, _)| !key.starts_with("t:")), "no task was made");

    let good = [
        json!({ "a": -5, "b": 0, "note": null, "unknown": [] }),
        json!({ "a": 9_007_199_254_740_993_i64, "note": "ü\u{1F600}\u{0}" }),
    ];
    for arguments in good {
        let id = client().task(url, "sum", arguments.clone()).await;
        let done = client().wait(url, &id, "completed").await;
        let plain = plain_client().call(url, "sum", arguments).await;
        assert_eq!(text_of(&done["result"]), text_of(&plain));
    }
    let odd = json!({
        "floats": [0.1, 1e-7, 1.7976931348623157e308, 5e-324, 2.2250738585072014e-308, 123456789.12345679, -0.0],
        "integers": [u64::MAX, i64::MIN, 0],
        "empty": [[], {}, ""],
        "deep": { "a": { "b": [null, true] } },
    });
    let id = client().task(url, "raw", odd.clone()).await;
    let done = client().wait(url, &id, "completed").await;
    let plain = plain_client().call(url, "raw", odd).await;
    assert_eq!(text_of(&done["result"]), text_of(&plain));
    server.stop().await;
    t.finish().await;
}

#[tokio::test]
async fn unknown_tasks_and_malformed_params_are_invalid_params() {
    let t = Fixture::new("durable_invalid").await;
    let server = Simple::start(&t.courier().await).await;
    let url = &server.url;
    let long = "x".repeat(5000);
    for id in ["a", "no-such-task", "../x", "a b", "*", long.as_str()] {
        for (method, params) in [
            ("tasks/get", json!({ "taskId": id })),
            ("tasks/update", json!({ "taskId": id, "inputResponses": {} })),
            ("tasks/cancel", json!({ "taskId": id })),
        ] {
            let error = client().err(url, method, params).await;
            assert_eq!(error, json!({ "code": -32602, "message": "task not found" }), "{method} {id}");
        }
    }
    let id = client().task(url, "asks", json!({})).await;
    client().wait(url, &id, "input_required").await;
    for (method, params) in [
        ("tasks/get", json!({})),
        ("tasks/get", json!({ "taskId": 5 })),
        ("tasks/get", json!({ "taskId": null })),
        ("tasks/cancel", json!({ "id": id })),
        ("tasks/update", json!({ "taskId": id })),
        ("tasks/update", json!({ "taskId": id, "inputResponses": [] })),
        ("tasks/update", json!({ "inputResponses": {} })),
    ] {
        let (status, answer) = client().send(url, method, params.clone()).await;
        assert_eq!((status, &answer["error"]["code"]), (200, &json!(-32602)), "{method} {params}: {answer}");
    }
    // What is not the extension's goes to the handler as ever, and the removed methods are unknown there.
    let other = client().ok(url, "tasks/list", json!({})).await;
    assert_eq!(other["method"], "tasks/list");
    // Acknowledgements say nothing but that they are.
    let ack = client().ok(url, "tasks/update", json!({ "taskId": id, "inputResponses": { "zz": 1 } })).await;
    assert_eq!(without_meta(ack), json!({ "resultType": "complete" }));
    let ack = client().ok(url, "tasks/cancel", json!({ "taskId": id })).await;
    assert_eq!(without_meta(ack), json!({ "resultType": "complete" }));
    server.stop().await;
    t.finish().await;
}

fn without_meta(mut result: Value) -> Value {
    result.as_object_mut().expect("an object").remove("_meta");
    result
}

#[tokio::test]
async fn progress_of_the_tool_is_the_status_message() {
    let t = Fixture::new("durable_progress").await;
    let server = Simple::start(&t.courier().await).await;
    let id = client().task(&server.url, "progresses", json!({})).await;
    server.tools.log.wait("half", 1).await;
    let task = crate::support::wait::wait_until("a message", std::time::Duration::from_secs(10), || async {
        let task = client().get(&server.url, &id).await;
        if task["statusMessage"].is_string() { Ok(task) } else { Err(task.to_string()) }
    })
    .await;
    assert_eq!((&task["status"], &task["statusMessage"]), (&json!("working"), &json!("1 of 2")));
    server.tools.gate.cancel();
    client().wait(&server.url, &id, "completed").await;
    server.stop().await;
    t.finish().await;
}

/// Clients that leave the header out are served, and a wrong one is still wrong.
#[tokio::test]
async fn a_missing_mcp_name_is_filled_in_and_a_wrong_one_is_refused() {
    let t = Fixture::new("durable_names").await;
    let courier = t.courier().await;
    let tools = Tools::new("names");
    let durable = durable(&tools, &courier);
    let fills = Replica::start(&durable).await;
    let strict = Replica::start_with(&durable, mcp_courier::rmcp::TaskHttp::new).await;
    let id = client().task(&fills.url, "asks", json!({})).await;
    let silent = super::support::Client { names: false, ..client() };
    let params = json!({ "taskId": id });
    let error = silent.err(&strict.url, "tasks/get", params.clone()).await;
    assert_eq!(error["code"], -32020, "{error}");
    assert_eq!(silent.ok(&fills.url, "tasks/get", params.clone()).await["status"], "working");
    let update = json!({ "taskId": id, "inputResponses": {} });
    silent.ok(&fills.url, "tasks/update", update).await;
    let wrong = super::support::Client { headers: vec![("mcp-name", "other".into())], ..silent.clone() };
    let error = wrong.err(&fills.url, "tasks/get", params.clone()).await;
    assert_eq!(error["code"], -32020, "{error}");
    // A larger request than is read passes as it is.
    let small = Replica::start_with(&durable, |service| {
        mcp_courier::rmcp::TaskHttp::new(service).fill_names(true).max_body_bytes(64)
    })
    .await;
    assert_eq!(client().get(&small.url, &id).await["status"], "working");
    let error = silent.err(&small.url, "tasks/get", params.clone()).await;
    assert_eq!(error["code"], -32020, "{error}");
    silent.ok(&fills.url, "tasks/cancel", params).await;
    t.finish().await;
}
