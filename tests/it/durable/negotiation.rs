//! When a call becomes a task, and when the server has the extension at all.

use mcp_courier::Error;
use mcp_courier::rmcp::{DurableTasks, TaskMode};
use rmcp::ServerHandler;
use rmcp::model::{JsonObject, ProtocolVersion, ServerCapabilities, ServerConfig};
use serde_json::{Value, json};

use super::support::{Replica, Simple, Tools, client, durable, plain_client, required, text_of, work};
use crate::mcp::support::Plain;
use crate::support::fixture::Fixture;

const TASKS: &str = "io.modelcontextprotocol/tasks";

#[tokio::test]
async fn the_extension_is_advertised_when_a_tool_may_become_a_task_and_only_then() {
    let t = Fixture::new("durable_advertised").await;
    let courier = t.courier().await;
    let with = Replica::start(&durable(&Tools::new("with"), &courier)).await;
    let bare = DurableTasks::new(Tools::new("bare"), &courier);
    let forbidden = Replica::start(&bare.clone().tool::<JsonObject>("plain", TaskMode::Forbidden)).await;
    let bare = Replica::start(&bare).await;
    let found = client().ok(&with.url, "server/discover", json!({})).await;
    assert_eq!(found["capabilities"]["extensions"][TASKS], json!({}), "{found}");
    assert!(
        found["capabilities"]["tasks"].is_null() && found["capabilities"]["tools"].is_object(),
        "{found}"
    );
    for replica in [&bare, &forbidden] {
        let found = client().ok(&replica.url, "server/discover", json!({})).await;
        assert!(found["capabilities"]["extensions"][TASKS].is_null(), "{found}");
        // Then nothing of it is there.
        let error = client().err(&replica.url, "tasks/get", json!({ "taskId": "x" })).await;
        assert_eq!(error["code"], -32601, "{error}");
        assert_eq!(text_of(&client().call(&replica.url, "sum", json!({ "a": 1 })).await), "1 ");
    }
    t.finish().await;
}

#[tokio::test]
async fn an_optional_tool_is_a_task_for_those_who_ask_for_it_in_this_request_and_an_answer_for_others() {
    let t = Fixture::new("durable_optional").await;
    let server = Simple::start(&t.courier().await).await;
    let url = &server.url;
    let made = client().call(url, "sum", json!({ "a": 40, "b": 2 })).await;
    assert_eq!(made["resultType"], "task");
    assert!(
        made["result"].is_null() && made["content"].is_null() && made["inputRequests"].is_null(),
        "{made}"
    );
    let done = client().wait(url, made["taskId"].as_str().expect("an id"), "completed").await;
    assert_eq!(text_of(&done["result"]), "42 ");
    // Neither an earlier request of the same client counts, nor a parameter of an older protocol.
    let answered = plain_client().call(url, "sum", json!({ "a": 40, "b": 2 })).await;
    assert_eq!((answered["resultType"].as_str(), text_of(&answered)), (Some("complete"), "42 "));
    let params = json!({ "name": "sum", "arguments": { "a": 1 }, "task": { "ttl": 1000 } });
    let answered = plain_client().ok(url, "tools/call", params).await;
    assert_eq!(text_of(&answered), "1 ");
    server.stop().await;
    t.finish().await;
}

#[tokio::test]
async fn a_forbidden_tool_and_an_unnamed_one_never_become_tasks() {
    let t = Fixture::new("durable_forbidden").await;
    let courier = t.courier().await;
    let tools = Tools::new("forbidden");
    let only = DurableTasks::new(tools.clone(), &courier)
        .tool::<JsonObject>("plain", TaskMode::Forbidden)
        .tool::<JsonObject>("who", TaskMode::Optional);
    let replica = Replica::start(&only).await;
    for (tool, answer) in [("plain", "plain"), ("raw", "{}"), ("waits", "no task")] {
        let params = json!({ "name": tool, "arguments": {}, "task": {} });
        let answered = client().ok(&replica.url, "tools/call", params).await;
        assert_eq!((answered["resultType"].as_str(), text_of(&answered)), (Some("complete"), answer));
    }
    t.finish().await;
}

#[tokio::test]
async fn a_required_tool_is_refused_without_the_capability_before_anything_is_done() {
    let t = Fixture::new("durable_required").await;
    let courier = t.courier().await;
    let tools = Tools::new("required");
    let server = required(durable(&tools, &courier), "gated");
    let worker = work(&server).await;
    let replica = Replica::start(&server).await;
    let call = json!({ "name": "gated", "arguments": {} });
    let (status, answer) = plain_client().send(&replica.url, "tools/call", call.clone()).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!(-32021)), "{answer}");
    assert_eq!(
        answer["error"]["data"]["requiredCapabilities"],
        json!({ "extensions": { TASKS: {} } }),
        "{answer}"
    );
    let began = json!({ "name": "asks_first", "arguments": {} });
    let error = plain_client().err(&replica.url, "tools/call", began).await;
    assert_eq!(error["code"], -32021, "also for one that begins by itself");
    // The same for what asks about tasks.
    for (method, params) in [
        ("tasks/get", json!({ "taskId": "x" })),
        ("tasks/update", json!({ "taskId": "x", "inputResponses": {} })),
        ("tasks/cancel", json!({ "taskId": "x" })),
        ("tasks/get", json!({})),
    ] {
        let (status, answer) = plain_client().send(&replica.url, method, params).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!(-32021)), "{method}: {answer}");
        assert!(answer["error"]["data"]["requiredCapabilities"]["extensions"][TASKS].is_object());
    }
    assert!(tools.log.all().is_empty(), "no tool ran");
    assert!(t.keys().await.iter().all(|(key, _)| !key.starts_with("t:")), "no task was made");
    client().task(&replica.url, "gated", json!({})).await;
    tools.log.wait("gated", 1).await;
    tools.gate.cancel();
    worker.shutdown(std::time::Duration::from_secs(5)).await;
    t.finish().await;
}

/// SEP-2663, backward compatibility: under 2025-11-25 the capability does not enable anything.
#[tokio::test]
async fn a_client_of_an_older_protocol_gets_answers_and_no_tasks_whatever_it_declares() {
    let t = Fixture::new("durable_legacy").await;
    let courier = t.courier().await;
    let tools = Tools::new("legacy");
    let server = required(durable(&tools, &courier), "gated");
    let replica = Replica::start(&server).await;
    let declared = json!({ "extensions": { TASKS: {} } });
    let (session, initialized) = Plain::initialize_with(&replica.url, declared.clone()).await;
    assert!(initialized["capabilities"]["extensions"][TASKS].is_null(), "not advertised: {initialized}");
    let call = |tool: &str, arguments: Value| {
        let meta = json!({ "io.modelcontextprotocol/clientCapabilities": declared });
        let params =
            json!({ "name": tool, "arguments": arguments, "task": { "ttl": 60_000 }, "_meta": meta });
        json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params })
    };
    let answer = async |message: Value| {
        let (_, mut events) = session.post(&replica.url, &message).await;
        events.next().await.expect("an answer").message
    };
    let answered = answer(call("sum", json!({ "a": 3 }))).await;
    assert_eq!(text_of(&answered["result"]), "3 ", "{answered}");
    assert!(answered["result"]["taskId"].is_null());
    let refused = answer(call("gated", json!({}))).await;
    assert_eq!(refused["error"]["code"], -32021, "{refused}");
    for method in ["tasks/get", "tasks/cancel", "tasks/result", "tasks/list"] {
        let params = json!({ "taskId": "x" });
        let refused = answer(json!({ "jsonrpc": "2.0", "id": 8, "method": method, "params": params })).await;
        let passed_on = refused["result"]["method"] == method;
        assert!(refused["error"]["code"] == -32601 || passed_on, "{method}: {refused}");
    }
    assert_eq!(tools.log.all(), ["sum"], "the required one did not run");
    session.delete(&replica.url).await;
    t.finish().await;
}

/// A server from the time of rmcp's `TaskManager`.
#[derive(Clone)]
struct Migrated(Tools);

impl ServerHandler for Migrated {
    fn get_info(&self) -> ServerConfig {
        let mut info = self.0.get_info();
        let tasks = ServerCapabilities::builder().enable_tasks().build();
        info.capabilities.extensions = tasks.extensions;
        info
    }
}

#[tokio::test]
async fn a_handler_that_advertises_tasks_itself_does_so_once_and_not_to_older_clients() {
    let t = Fixture::new("durable_migrated").await;
    let durable = DurableTasks::new(Migrated(Tools::new("migrated")), &t.courier().await)
        .tool::<JsonObject>("sum", TaskMode::Optional);
    let replica = Replica::start(&durable).await;
    let found = client().ok(&replica.url, "server/discover", json!({})).await;
    assert_eq!(found["capabilities"]["extensions"], json!({ TASKS: {} }), "{found}");
    let (session, initialized) = Plain::initialize_with(&replica.url, json!({})).await;
    assert!(initialized["capabilities"]["extensions"].is_null(), "{initialized}");
    session.delete(&replica.url).await;
    t.finish().await;
}

/// A server that does not speak the version which has the extension.
#[derive(Clone)]
struct Old(Tools);

impl ServerHandler for Old {
    fn get_info(&self) -> ServerConfig {
        self.0.get_info()
    }

    fn supported_protocol_versions(&self) -> std::borrow::Cow<'static, [ProtocolVersion]> {
        ProtocolVersion::known_up_to(&ProtocolVersion::V_2025_11_25).into()
    }
}

#[tokio::test]
async fn a_task_tool_on_a_server_without_the_extension_fails_loudly_at_start() {
    let t = Fixture::new("durable_loud").await;
    let courier = t.courier().await;
    let why = |error: Error| match error {
        Error::Invalid { why, .. } => why.to_string(),
        other => panic!("{other}"),
    };
    let old =
        DurableTasks::new(Old(Tools::new("old")), &courier).tool::<JsonObject>("sum", TaskMode::Optional);
    let error = why(old.start_worker().await.map(drop).expect_err("no worker"));
    assert!(error.contains("sum") && error.contains("2026-07-28"), "{error}");
    assert_eq!(why(old.check().expect_err("no server")), error);
    // Whoever forgot to check learns it from the first client.
    let replica = Replica::start(&old).await;
    let (_, answer) = Plain::try_initialize(&replica.url, json!({})).await;
    assert!(answer["error"]["message"].as_str().is_some_and(|m| m.contains("sum")), "{answer}");
    // The same server without task tools is a good one.
    let plain = DurableTasks::new(Old(Tools::new("old")), &courier);
    plain.check().expect("nothing to run");

    let unknown = durable(&Tools::new("unknown"), &courier).tool::<JsonObject>("smu", TaskMode::Required);
    let error = why(unknown.check().expect_err("a tool that nobody has"));
    assert!(error.contains("smu"), "{error}");
    let error = client().err(&Replica::start(&unknown).await.url, "server/discover", json!({})).await;
    assert!(error["message"].as_str().is_some_and(|m| m.contains("smu")), "{error}");

    let nameless = durable(&Tools::new(&"x".repeat(65)), &courier);
    let error = why(nameless.check().expect_err("no group has this name"));
    assert!(error.contains("group"), "{error}");
    nameless.group("short").expect("a name").check().expect("a group");

    let headers = durable(&Tools::new("headers"), &courier).keep_header("Authorization");
    let error = why(headers.check().expect_err("a secret in clear"));
    assert!(error.contains("encrypted"), "{error}");
    t.finish().await;
}
