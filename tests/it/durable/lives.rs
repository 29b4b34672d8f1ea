//! How long a task lives, and what its tool hears of it.

use std::time::Duration;

use serde_json::json;

use super::support::{Replica, Tools, client, durable, text_of, work};
use crate::support::fixture::Fixture;
use crate::support::wait::wait_until;

/// ISO 8601 as milliseconds of the day, which is enough to compare two of a test.
fn ms_of_day(time: &str) -> u64 {
    let part = |from: usize, to: usize| time[from..to].parse::<u64>().expect("digits");
    ((part(11, 13) * 60 + part(14, 16)) * 60 + part(17, 19)) * 1000 + part(20, 23)
}

#[tokio::test]
async fn f43_a_tool_that_works_longer_than_the_ttl_is_never_shown_a_wrong_end() {
    let t = Fixture::new("durable_f43").await;
    let tools = Tools::new("f43");
    let durable =
        durable(&tools, &t.courier().await).settings(|tasks| tasks.ttl(Duration::from_millis(1500)));
    let (worker, replica) = (work(&durable).await, Replica::start(&durable).await);
    let id = client().task(&replica.url, "gated", json!({})).await;
    tools.log.wait("gated", 1).await;
    let begin = t.server_ms().await;
    let mut ttls = Vec::new();
    while t.server_ms().await < begin + 4000 {
        let task = client().get(&replica.url, &id).await;
        assert_eq!(task["status"], "working", "{task}");
        ttls.push(task["ttlMs"].as_u64().expect("a number"));
    }
    assert!(ttls.is_sorted() && ttls.last() > ttls.first(), "it is extended, and says so: {ttls:?}");
    tools.gate.cancel();
    let done = client().wait(&replica.url, &id, "completed").await;
    assert_eq!(text_of(&done["result"]), "the gate is open");
    let time = |name: &str| ms_of_day(done[name].as_str().expect("a time"));
    let planned = time("createdAt") + done["ttlMs"].as_u64().expect("a number");
    let kept = planned.saturating_sub(time("lastUpdatedAt"));
    assert!((1400..=1500).contains(&kept), "the result is kept for the TTL: {kept} ms");
    let gone = wait_until("it expires", Duration::from_secs(10), || async {
        let (_, answer) = client().send(&replica.url, "tasks/get", json!({ "taskId": id })).await;
        if answer["error"].is_object() { Ok(answer["error"].clone()) } else { Err(answer.to_string()) }
    })
    .await;
    assert_eq!(gone["code"], -32602, "{gone}");
    worker.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

#[tokio::test]
async fn f43_a_parked_task_waits_its_whole_ttl_and_then_it_is_unknown() {
    let t = Fixture::new("durable_f43_parked").await;
    let tools = Tools::new("f43 parked");
    let durable =
        durable(&tools, &t.courier().await).settings(|tasks| tasks.ttl(Duration::from_millis(1500)));
    let (worker, replica) = (work(&durable).await, Replica::start(&durable).await);
    let id = client().task(&replica.url, "asks", json!({})).await;
    let parked = client().wait(&replica.url, &id, "input_required").await;
    let until = t.server_ms().await + 1000;
    while t.server_ms().await < until {
        let task = client().get(&replica.url, &id).await;
        assert_eq!(task, parked, "asking for it changes nothing");
    }
    wait_until("it expires", Duration::from_secs(10), || async {
        let (_, answer) = client().send(&replica.url, "tasks/get", json!({ "taskId": id })).await;
        if answer["error"]["code"] == -32602 { Ok(()) } else { Err(answer.to_string()) }
    })
    .await;
    let update = json!({ "taskId": id, "inputResponses": { "x.1": {}, "y.1": {} } });
    assert_eq!(client().err(&replica.url, "tasks/update", update).await["code"], -32602);
    assert_eq!(tools.log.all(), ["asks 0"]);
    assert!(t.keys().await.iter().all(|(key, _)| !key.starts_with("t:")), "no key of it is left");
    worker.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Whoever waits in place for an answer hears that the task expired; a late answer finds no task.
#[tokio::test]
async fn f38_a_tool_that_waits_for_an_answer_hears_that_its_task_expired() {
    let t = Fixture::new("durable_f38").await;
    let tools = Tools::new("f38");
    let durable = durable(&tools, &t.courier().await)
        .settings(|tasks| tasks.ttl(Duration::from_millis(1500)).fixed_ttl());
    let (worker, replica) = (work(&durable).await, Replica::start(&durable).await);
    let id = client().task(&replica.url, "waits", json!({})).await;
    client().wait(&replica.url, &id, "input_required").await;
    tools.log.wait("exit the task expired", 1).await;
    wait_until("the worker is free", Duration::from_secs(5), || async {
        if worker.holding() == 0 { Ok(()) } else { Err(worker.holding().to_string()) }
    })
    .await;
    let update = json!({ "taskId": id, "inputResponses": { "q": {} } });
    assert_eq!(client().err(&replica.url, "tasks/update", update).await["code"], -32602);
    assert_eq!(tools.log.count("waits"), 1, "nor is it run again");
    worker.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The time of a person is not the tool's.
#[tokio::test]
async fn f38_a_work_budget_stands_still_while_a_tool_waits_for_an_answer() {
    let t = Fixture::new("durable_f38_budget").await;
    let tools = Tools::new("f38 budget");
    let durable = durable(&tools, &t.courier().await);
    let worker = durable.worker().work_budget(Duration::from_millis(500)).start(durable.legs());
    let (worker, replica) = (worker.await.expect("started"), Replica::start(&durable).await);
    let id = client().task(&replica.url, "waits", json!({})).await;
    client().wait(&replica.url, &id, "input_required").await;
    t.wait_server_ms(t.server_ms().await + 1000).await;
    client().answer(&replica.url, &id, &[("q", "late")]).await;
    assert_eq!(text_of(&client().wait(&replica.url, &id, "completed").await["result"]), "late");
    assert_eq!(tools.log.count("waits"), 1);
    worker.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}
