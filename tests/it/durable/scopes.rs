//! Who sees which task.

use std::time::Duration;

use mcp_courier::rmcp::DurableTasks;
use mcp_courier::tasks::Scope;
use rmcp::ErrorData;
use serde_json::{Value, json};

use super::support::{Client, Replica, Simple, Tools, client, durable, text_of, work};
use crate::support::fixture::Fixture;

/// Status, headers and body of an answer, without what changes from answer to answer.
async fn whole(client: &Client, url: &str, method: &str, params: Value) -> String {
    let answer = client.post(url, method, params).await.expect("the server answers");
    let mut headers: Vec<_> = answer.headers().iter().filter(|(name, _)| *name != "date").collect();
    headers.sort_by_key(|(name, _)| name.to_string());
    let headers = format!("{} {headers:?}", answer.status());
    format!("{headers} {}", answer.text().await.expect("text"))
}

#[tokio::test]
async fn f41_another_callers_task_cannot_be_told_from_one_that_never_was() {
    let t = Fixture::new("durable_f41").await;
    let server = Simple::start(&t.courier().await).await;
    let url = &server.url;
    let callers = ["app|u", "app|u:v", "app|U", "app:u|", "|app|u"].map(|caller| client().caller(caller));
    let callers: Vec<Client> = callers.into_iter().chain([client()]).collect();
    let mut tasks = Vec::new();
    for caller in &callers {
        let id = caller.task(url, "asks", json!({})).await;
        tasks.push((id.clone(), caller.wait(url, &id, "input_required").await));
    }
    for (at, caller) in callers.iter().enumerate() {
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let params = |id: &str| match method {
                "tasks/update" => json!({ "taskId": id, "inputResponses": { "x.1": {}, "y.1": {} } }),
                _ => json!({ "taskId": id }),
            };
            let unknown = whole(caller, url, method, params(&"a".repeat(32))).await;
            assert!(unknown.contains("-32602") && unknown.contains("task not found"), "{unknown}");
            for (_, (id, _)) in tasks.iter().enumerate().filter(|(of, _)| *of != at) {
                assert_eq!(whole(caller, url, method, params(id)).await, unknown);
            }
        }
        // All of them are asked for, and one's own is what is acknowledged.
        let ids: Vec<&str> = tasks.iter().map(|(id, _)| id.as_str()).collect();
        let mut events = caller.listen(url, json!({ "taskIds": ids })).await;
        let acknowledged = events.next().await.expect("an acknowledgement").message;
        assert_eq!(acknowledged["params"]["notifications"]["taskIds"], json!([tasks[at].0]));
    }
    for (caller, (id, before)) in callers.iter().zip(&tasks) {
        let after = caller.get(url, id).await;
        assert_eq!(
            (&after["lastUpdatedAt"], &after["inputRequests"]),
            (&before["lastUpdatedAt"], &before["inputRequests"])
        );
        caller.ok(url, "tasks/cancel", json!({ "taskId": id })).await;
    }
    server.stop().await;
    t.finish().await;
}

/// The task is the caller's, not a connection's, a session's or a process's.
#[tokio::test]
async fn f40_a_caller_finds_its_task_after_a_restart_of_the_server_and_another_one_does_not() {
    let t = Fixture::new("durable_f40").await;
    let (ada, bob) = (client().caller("app|ada"), client().caller("app|bob"));
    let courier = t.courier().await;
    let server = Simple::start(&courier).await;
    let [first, second] =
        [ada.task(&server.url, "asks", json!({})).await, ada.task(&server.url, "asks", json!({})).await];
    ada.wait(&server.url, &first, "input_required").await;
    ada.wait(&server.url, &second, "input_required").await;
    server.stop().await;
    courier.shutdown(Duration::from_secs(5)).await;
    drop(courier);

    let server = Simple::start(&t.courier().await).await;
    let url = &server.url;
    // Not as another caller, whatever of ada's it sends along.
    let sly = Client { headers: vec![("mcp-session-id", "ada's session".into())], ..bob };
    for method in ["tasks/get", "tasks/cancel"] {
        assert_eq!(sly.err(url, method, json!({ "taskId": first })).await["code"], -32602);
    }
    ada.answer(url, &first, &[("x", "1"), ("y", "2")]).await;
    ada.answer(url, &first, &[("x.2", "3")]).await;
    assert_eq!(text_of(&ada.wait(url, &first, "completed").await["result"]), "1 and 2, then 3");
    ada.ok(url, "tasks/cancel", json!({ "taskId": second })).await;
    ada.wait(url, &second, "cancelled").await;
    server.stop().await;
    t.finish().await;
}

/// One worker, three callers, one after the other: each tool sees its own caller and what was kept of its own request.
#[cfg(feature = "encryption")]
#[tokio::test]
async fn f47_each_tool_sees_its_own_caller_and_redis_shows_none_of_what_was_kept() {
    use mcp_courier::KeyRing;
    let t = Fixture::new("durable_f47").await;
    let ring = || KeyRing::new("k1", [7; 32]).expect("a key");
    let tools = Tools::new("f47");
    let durable =
        durable(&tools, &t.courier().await).keep_header("X-Secret").settings(|tasks| tasks.encrypted(ring()));
    let replica = Replica::start(&durable).await;
    let secret = |caller: Client, value: &str| Client { headers: vec![("x-secret", value.into())], ..caller };
    let ada = secret(client().caller("app|ada"), "canary-of-ada");
    let bob = secret(client().caller("app|bob"), "canary-of-bob");
    let traced = Client {
        meta: vec![("traceparent", json!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))],
        capabilities: json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } }),
        ..client()
    };
    let mut ids = Vec::new();
    for caller in [&ada, &traced, &bob] {
        ids.push(caller.task(&replica.url, "who", json!({ "in": "canary-argument" })).await);
    }
    let mut stored = String::new();
    for (key, _) in t.keys().await {
        if key.starts_with("t:") {
            let mut get = redis::cmd("HGETALL");
            get.arg(t.key(&key, ""));
            let fields: Vec<Vec<u8>> = t.send(&get).await;
            stored += &fields.iter().map(|field| String::from_utf8_lossy(field)).collect::<String>();
        }
    }
    assert!(stored.contains("working") && !stored.contains("canary"), "{stored}");
    let worker = work(&durable).await;
    let mut seen = Vec::new();
    for (caller, id) in [&ada, &traced, &bob].into_iter().zip(&ids) {
        let done = caller.wait(&replica.url, id, "completed").await;
        seen.push(text_of(&done["result"]).to_owned());
    }
    assert_eq!(
        seen,
        [
            "app|ada canary-of-ada true ",
            " none false 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "app|bob canary-of-bob true ",
        ]
    );
    worker.shutdown(Duration::from_secs(5)).await;

    // A worker with another key never runs it as nobody.
    let id = ada.task(&replica.url, "who", json!({})).await;
    let wrong =
        durable.clone().settings(|tasks| tasks.encrypted(KeyRing::new("k2", [8; 32]).expect("a key")));
    let worker = work(&wrong).await;
    let failed = ada.wait(&replica.url, &id, "failed").await;
    assert_eq!(failed["error"]["code"], -32603, "{failed}");
    worker.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A server's own idea of who a caller is; whom it does not know gets its error, and no task.
#[tokio::test]
async fn a_server_names_its_callers_and_refuses_whom_it_does_not_know() {
    let t = Fixture::new("durable_scope_by").await;
    let tools = Tools::new("scope by");
    let durable: DurableTasks<Tools> = durable(&tools, &t.courier().await).scope_by(|context| {
        let parts = context.extensions.get::<http::request::Parts>();
        let tenant = parts.and_then(|parts| parts.headers.get("x-tenant")?.to_str().ok());
        let tenant = tenant.ok_or_else(|| ErrorData::invalid_request("no tenant", None))?;
        Scope::named(tenant).map_err(|e| ErrorData::invalid_request(e.to_string(), None))
    });
    let worker = work(&durable).await;
    let replica = Replica::start(&durable).await;
    let of = |tenant: &str| Client { headers: vec![("x-tenant", tenant.into())], ..client() };
    let id = of("one").task(&replica.url, "who", json!({})).await;
    assert_eq!(text_of(&of("one").wait(&replica.url, &id, "completed").await["result"]), "one none true ");
    assert_eq!(of("two").err(&replica.url, "tasks/get", json!({ "taskId": id })).await["code"], -32602);
    let call = json!({ "name": "sum", "arguments": { "a": 1 } });
    for (method, params) in [
        ("tools/call", call),
        ("tasks/get", json!({ "taskId": id })),
        ("subscriptions/listen", json!({ "notifications": { "taskIds": [id] } })),
    ] {
        let error = client().err(&replica.url, method, params).await;
        assert_eq!((&error["code"], &error["message"]), (&json!(-32600), &json!("no tenant")), "{method}");
    }
    worker.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}
