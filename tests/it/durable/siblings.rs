//! Several servers in one process, and several handlers of one server.

use std::time::Duration;

use mcp_courier::rmcp::TaskMode;
use rmcp::model::JsonObject;
use serde_json::json;

use super::support::{Replica, Tools, client, durable, text_of, work};
use crate::support::fixture::Fixture;

#[tokio::test]
async fn servers_in_one_process_keep_to_their_own_tasks_and_survive_each_others_end() {
    let t = Fixture::new("durable_siblings").await;
    let courier = t.courier().await;
    let (a, b) = (Tools::new("a"), Tools::new("b"));
    let (durable_a, durable_b) = (durable(&a, &courier), durable(&b, &courier));
    let (worker_a, worker_b) = (work(&durable_a).await, work(&durable_b).await);
    let (at_a, at_b) = (Replica::start(&durable_a).await, Replica::start(&durable_b).await);
    let (of_a, of_b) = (
        client().task(&at_a.url, "gated", json!({})).await,
        client().task(&at_b.url, "gated", json!({})).await,
    );
    a.log.wait("gated", 1).await;
    b.log.wait("gated", 1).await;
    assert_eq!(client().err(&at_a.url, "tasks/get", json!({ "taskId": of_b })).await["code"], -32602);
    assert_eq!(client().err(&at_b.url, "tasks/cancel", json!({ "taskId": of_a })).await["code"], -32602);
    // All of a's goes, in good order and less so.
    at_a.stop();
    drop((at_a, durable_a));
    worker_a.shutdown(Duration::ZERO).await;
    b.gate.cancel();
    assert_eq!(text_of(&client().wait(&at_b.url, &of_b, "completed").await["result"]), "the gate is open");
    for n in 0..20 {
        let id = client().task(&at_b.url, "sum", json!({ "a": n })).await;
        client().wait(&at_b.url, &id, "completed").await;
    }
    assert_eq!((a.log.count("sum"), b.log.count("sum")), (0, 20), "a's worker never had one of b's");
    assert!(worker_b.holding() == 0);
    // What a was at begins again when it is back.
    let again = durable(&a, &courier);
    let (worker_a, at_a) = (work(&again).await, Replica::start(&again).await);
    a.gate.cancel();
    assert_eq!(text_of(&client().wait(&at_a.url, &of_a, "completed").await["result"]), "the gate is open");
    worker_a.shutdown(Duration::from_secs(5)).await;
    worker_b.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

#[tokio::test]
async fn two_servers_with_other_tools_and_one_name_are_an_error_at_start_until_one_has_a_group_of_its_own() {
    let t = Fixture::new("durable_groups").await;
    let courier = t.courier().await;
    let first = durable(&Tools::new("same"), &courier);
    first.check().expect("alone");
    durable(&Tools::new("same"), &courier).check().expect("another replica of it");
    let second = durable(&Tools::new("same"), &courier).tool::<JsonObject>("plain", TaskMode::Optional);
    second.check().expect("the same tools, if in other modes");
    let third = mcp_courier::rmcp::DurableTasks::new(Tools::new("same"), &courier)
        .tool::<JsonObject>("raw", TaskMode::Optional);
    let error = third.check().expect_err("its tasks would be run by the others");
    assert!(error.to_string().contains("same") && error.to_string().contains("group"), "{error}");
    third.start_worker().await.map(drop).expect_err("nor is there a worker");
    third.clone().group("other").expect("a name").check().expect("a group of its own");
    assert!(third.group("").is_err());
    t.finish().await;
}

/// A factory that makes a handler for each session or request: the worker's is another one of the same kind.
#[tokio::test]
async fn each_request_may_have_a_handler_of_its_own() {
    let t = Fixture::new("durable_handlers").await;
    let courier = t.courier().await;
    let (works, serves) = (Tools::new("handlers"), Tools::new("handlers"));
    let durable = durable(&works, &courier);
    let worker = durable.start_worker().await.expect("started");
    let replica = Replica::start(&durable.with_handler(serves.clone())).await;
    let id = client().task(&replica.url, "sum", json!({ "a": 1 })).await;
    client().wait(&replica.url, &id, "completed").await;
    super::support::plain_client().call(&replica.url, "sum", json!({ "a": 1 })).await;
    assert_eq!((works.log.count("sum"), serves.log.count("sum")), (1, 1));
    worker.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}
