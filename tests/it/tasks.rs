//! What the tests of durable tasks share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mcp_courier::tasks::{DetailedTask, Leg, LegOutcome, Scope, TaskHandler, TaskStatus, Tasks};
use mcp_courier::{CancellationToken, Courier};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::support::wait::wait_until;

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn scope(name: &str) -> Scope {
    Scope::named(name).expect("a scope")
}

pub fn answer(value: Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(&value).expect("JSON")
}

/// A result as tools give it.
pub fn text(text: &str) -> LegOutcome {
    LegOutcome::completed(&json!({"content": [{"type": "text", "text": text}]}))
}

/// The text of a completed task's result.
pub fn text_of(task: &DetailedTask) -> String {
    let result = task.result.as_ref().unwrap_or_else(|| panic!("no result: {task:?}"));
    let result: Value = serde_json::from_str(result.get()).expect("JSON");
    result["content"][0]["text"].as_str().expect("a text").to_owned()
}

/// The error of a failed task: code and message.
pub fn error_of(task: &DetailedTask) -> (i64, String) {
    let error = task.error.as_ref().unwrap_or_else(|| panic!("no error: {task:?}"));
    let error: Value = serde_json::from_str(error.get()).expect("JSON");
    (error["code"].as_i64().expect("a code"), error["message"].as_str().expect("a message").to_owned())
}

/// What the client is asked, by key.
pub fn requests_of(task: &DetailedTask) -> BTreeMap<String, Value> {
    let requests = task.input_requests.as_ref().unwrap_or_else(|| panic!("no requests: {task:?}"));
    requests.iter().map(|(k, v)| (k.clone(), serde_json::from_str(v.get()).expect("JSON"))).collect()
}

/// Until a task has this status.
pub async fn wait_status(tasks: &Tasks, scope: &Scope, id: &str, status: TaskStatus) -> DetailedTask {
    wait_until(&format!("{status:?}"), Duration::from_secs(20), || async {
        let task = tasks.get(scope, id).await.expect("found");
        if task.status == status { Ok(task) } else { Err(format!("{task:?}")) }
    })
    .await
}

/// The key of a task in the default group, under the fixture's prefix.
pub fn key(scope: &str, id: &str) -> String {
    format!("t:default:{scope}:{id}")
}

/// Until a count is reached.
pub async fn wait_count(what: &str, count: &AtomicUsize, expected: usize) {
    wait_until(what, Duration::from_secs(20), || async {
        let n = count.load(Ordering::SeqCst);
        if n >= expected { Ok(()) } else { Err(format!("{n} of {expected}")) }
    })
    .await;
}

/// A handler that counts its start and says something when the gate opens.
pub fn gated(
    gate: &CancellationToken,
    started: &Arc<AtomicUsize>,
    says: fn(&Leg) -> String,
) -> impl TaskHandler + use<> {
    let (gate, started) = (gate.clone(), started.clone());
    move |leg: Leg| {
        let (gate, started) = (gate.clone(), started.clone());
        async move {
            started.fetch_add(1, Ordering::SeqCst);
            gate.cancelled().await;
            text(&says(&leg))
        }
    }
}

/// The tasks of a test, in their default group.
pub fn tasks(courier: &Courier) -> Tasks {
    courier.tasks().ttl(Duration::from_secs(60))
}
