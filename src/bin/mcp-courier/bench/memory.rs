//! Bytes of a pending message: in Redis, beside a plain list and a stream, and in the owner that has fetched it.

use std::time::{Duration, Instant};

use super::Results;
use super::args::Plan;
use super::drain::{Ids, preload};
use super::ledger::PATIENCE;
use super::measures::Measures;
use super::node::Node;
use super::row::{OURS, Row};
use super::server::{Target, raw_failure};
use super::stage::Stage;
use crate::output::Failure;

/// As many as an owner fetches at a time.
const EACH: u32 = 64;

pub async fn run(target: &Target, plan: &Plan, results: &mut Results) -> Result<(), Failure> {
    if !target.has_raw() {
        eprintln!("memory: left out, memory:// does not say what it uses");
        return Ok(());
    }
    let sessions = (plan.preloaded / 100).max(10);
    let row = |system| Row::new("memory", system).sessions(sessions).body(plan.body);
    for (system, command) in [("lists", "LPUSH"), ("streams", "XADD")] {
        let bytes = raw(target, command, sessions, plan.body).await?;
        let sample = Measures::from([("redis_bytes_per_pending".to_owned(), bytes)]);
        results.add(row(system).filled(&[sample]))?;
    }
    results.add(row(OURS).filled(&[courier(target, plan, sessions).await?]))
}

/// What a message costs in Redis when it waits in a queue of 64.
async fn raw(target: &Target, command: &str, sessions: u32, body: usize) -> Result<f64, Failure> {
    let name = format!("{}:memory-{}", target.root, command.to_lowercase());
    let mut raw = target.raw().await?;
    let before = target.memory().await;
    for n in 0..sessions {
        let mut pipeline = redis::Pipeline::new();
        for _ in 0..EACH {
            let one = pipeline.cmd(command).arg(format!("{name}:{n}"));
            if command == "XADD" {
                one.arg("*").arg("b");
            }
            one.arg(vec![b'x'; body]).ignore();
        }
        pipeline.exec_async(&mut raw).await.map_err(raw_failure)?;
    }
    let bytes = per(before, target.memory().await, sessions * EACH);
    target.clean(&name).await?;
    bytes.ok_or_else(|| Failure::failed("INFO memory: no used_memory"))
}

async fn courier(target: &Target, plan: &Plan, sessions: u32) -> Result<Measures, Failure> {
    let mut measures = Measures::new();
    let mut put = |name: &str, value: Option<f64>| {
        measures.extend(value.map(|value| (name.to_owned(), value)));
    };
    let messages = sessions * EACH;

    // One each, then 63 more of each: the first one pays for the queue and its place in the index.
    let stage = Stage::unclaimed(target, "memory", sessions, Duration::ZERO).await?;
    let before = target.memory().await;
    preload(&stage, sessions, plan.body, Ids::Ours).await?;
    let first = target.memory().await;
    put("redis_bytes_of_first_pending", per(before, first, sessions));
    preload(&stage, messages - sessions, plan.body, Ids::Ours).await?;
    put("redis_bytes_per_pending", per(before, target.memory().await, messages));

    let prefix = format!("{}:memory", target.root);
    let mut node = Node::start(target.url(), &prefix, true)?;
    let idle = node.report().await?.resident;
    node.claim(sessions).await?;
    let start = Instant::now();
    let held = loop {
        let report = node.report().await?;
        if report.delivered == u64::from(sessions) {
            break report.resident;
        }
        if start.elapsed() > PATIENCE {
            return Err(Failure::failed(format!("memory: {} of {sessions} held", report.delivered)));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    put("process_bytes_per_fetched", per(idle, held, messages));
    node.end().await?;
    drop(stage);
    target.clean(&prefix).await?;

    for (name, ids) in [("our", Ids::Ours), ("callers", Ids::Callers)] {
        let stage_name = format!("memory-{name}");
        let stage = Stage::unclaimed(target, &stage_name, sessions, Duration::from_secs(60)).await?;
        let before = target.memory().await;
        preload(&stage, messages, plan.body, ids).await?;
        let bytes = per(before, target.memory().await, messages);
        put(&format!("redis_bytes_per_pending_with_window_and_{name}_ids"), bytes);
        target.clean(&format!("{}:{stage_name}", target.root)).await?;
    }
    Ok(measures)
}

fn per(from: Option<u64>, to: Option<u64>, count: u32) -> Option<f64> {
    Some((to? as f64 - from? as f64) / f64::from(count))
}
