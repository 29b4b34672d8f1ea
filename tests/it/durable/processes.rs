//! The example as a user runs it: replicas and workers, each a process.

use std::time::Duration;

use serde_json::json;

use super::support::{client, text_of};
use crate::mcp::running::Running;
use crate::support::fixture::Fixture;
use crate::support::wait::wait_until;

/// The processes of a test that has its Redis to itself, or `None` where there can be none.
struct Site {
    url: String,
    prefix: String,
}

impl Site {
    fn of(t: &Fixture) -> Option<Self> {
        let url = t.server.url().to_owned();
        if url.starts_with("memory:") {
            eprintln!("skipped: processes cannot share memory://");
            return None;
        }
        Some(Self { url, prefix: t.prefix.clone() })
    }

    fn replica(&self) -> Option<Running> {
        Running::start("durable_tasks", &["--replica", "127.0.0.1:0", &self.url, &self.prefix])
    }

    async fn worker(&self) -> Running {
        let args = ["--worker", &self.url, &self.prefix];
        let mut worker =
            Running::start_with("durable_tasks", &args, &[("LEASE_MS", "800")]).expect("it is built");
        worker.line("working").await;
        worker
    }
}

/// Until the tool told how far it is.
async fn wait_progress(url: &str, id: &str) {
    wait_until("it works", Duration::from_secs(20), || async {
        let task = client().get(url, id).await;
        if task["statusMessage"].is_string() { Ok(()) } else { Err(task.to_string()) }
    })
    .await;
}

#[tokio::test]
async fn a_task_survives_the_replica_that_made_it_and_the_worker_that_ran_it() {
    let t = Fixture::new("durable_processes").await;
    let Some(site) = Site::of(&t) else { return };
    let (Some(mut a), Some(mut b)) = (site.replica(), site.replica()) else {
        eprintln!("skipped: the examples are not built (cargo build --examples --features rmcp)");
        return;
    };
    let (at_a, at_b) = (a.line("listening on ").await, b.line("listening on ").await);
    let mut first = site.worker().await;
    let id = client().task(&at_a, "slow_compute", json!({ "seconds": 2.5, "label": "pi" })).await;
    wait_progress(&at_b, &id).await;
    a.child.kill().await.expect("killed");
    first.child.kill().await.expect("killed");
    assert_eq!(client().get(&at_b, &id).await["status"], "working");
    let second = site.worker().await;
    let done = client().wait(&at_b, &id, "completed").await;
    assert_eq!(text_of(&done["result"]), "computed pi for 2.5 s");
    // While a person thinks no worker is needed.
    let id = client().task(&at_b, "confirm_delete", json!({ "filename": "old.txt" })).await;
    client().wait(&at_b, &id, "input_required").await;
    second.interrupt().await;
    let confirmed = json!({ "action": "accept", "content": { "confirm": true } });
    let task = client().get(&at_b, &id).await;
    let key = task["inputRequests"].as_object().expect("requests").keys().next().expect("one").clone();
    client().ok(&at_b, "tasks/update", json!({ "taskId": id, "inputResponses": { key: confirmed } })).await;
    let third = site.worker().await;
    let done = client().wait(&at_b, &id, "completed").await;
    assert_eq!(text_of(&done["result"]), "old.txt would be gone now");
    third.interrupt().await;
    b.interrupt().await;
    t.finish().await;
}

/// A worker that is told to stop, in the middle of a tool that takes longer than its grace period.
#[tokio::test]
async fn a_worker_that_is_interrupted_gives_its_task_to_the_next_one() {
    let t = Fixture::new("durable_interrupt").await;
    let Some(site) = Site::of(&t) else { return };
    let Some(mut replica) = site.replica() else {
        eprintln!("skipped: the examples are not built (cargo build --examples --features rmcp)");
        return;
    };
    let url = replica.line("listening on ").await;
    let first = site.worker().await;
    let id = client().task(&url, "interview", json!({})).await;
    client().wait(&url, &id, "input_required").await;
    // It waits in place, and hears at once that it has to go.
    first.interrupt().await;
    assert_eq!(client().get(&url, &id).await["status"], "input_required");
    let second = site.worker().await;
    for (key, value) in [("name", "Ada"), ("color", "green")] {
        let answer = json!({ "action": "accept", "content": { key: value } });
        wait_until("it asks", Duration::from_secs(20), || async {
            let task = client().get(&url, &id).await;
            if task["inputRequests"][key].is_object() { Ok(()) } else { Err(task.to_string()) }
        })
        .await;
        client().ok(&url, "tasks/update", json!({ "taskId": id, "inputResponses": { key: answer } })).await;
    }
    let done = client().wait(&url, &id, "completed").await;
    assert_eq!(text_of(&done["result"]), "\"Ada\" likes \"green\"");
    second.interrupt().await;
    replica.interrupt().await;
    t.finish().await;
}
