//! A process with many sessions and nothing to do: what it costs in CPU, memory, connections, keys, channels and tasks.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use mcp_courier::Push;

use super::Results;
use super::args::Plan;
use super::ledger::PATIENCE;
use super::measures::Measures;
use super::node::{Node, Report};
use super::process;
use super::row::{OURS, Row};
use super::server::Target;
use super::stage;
use crate::output::Failure;

/// Messages that show the process alive after it idled.
const ALIVE: u32 = 100;

pub async fn run(target: &Target, plan: &Plan, results: &mut Results) -> Result<(), Failure> {
    if !target.has_raw() {
        eprintln!("idle: left out, memory:// is not shared with another process");
        return Ok(());
    }
    let sessions = plan.most_sessions();
    // What the server needs for itself, with nobody there.
    let slice = plan.idle / plan.rounds;
    eprintln!("idle: {:?} without a process, {:?} with one", plan.idle / 3, plan.idle);
    let mut empty = Vec::new();
    for _ in 0..plan.rounds {
        empty.push(watch(target, None, slice / 3).await?);
    }
    results.add(Row::new("idle", "empty-server").filled(&empty))?;

    let prefix = format!("{}:idle", target.root);
    let mut node = Node::start(target.url(), &prefix, false)?;
    let one = node.claim(1).await?;
    let first = footprint(target, &prefix, &node).await?;
    let memory = target.memory().await;
    let all = node.claim(sessions).await?;
    let mut sample = footprint(target, &prefix, &node).await?;
    let extra = f64::from(sessions.saturating_sub(1)).max(1.0);
    // The tasks of the claims end, and the server gives back the buffers that so many claims at once needed.
    tokio::time::sleep((plan.idle / 10).min(Duration::from_secs(3))).await;
    let settled = node.report().await?;
    let mut put = |name: &str, value: f64| sample.insert(name.to_owned(), value);
    if let (Some(from), Some(to)) = (memory, target.memory().await) {
        put("redis_bytes_per_session", (to as f64 - from as f64) / extra);
    }
    if let (Some(from), Some(to)) = (one.resident, settled.resident) {
        put("process_bytes_per_session", (to as f64 - from as f64) / extra);
        put("process_mib", to as f64 / f64::from(1 << 20));
    }
    put("extra_tasks", settled.tasks as f64 - one.tasks as f64);
    put("claim_seconds", all.seconds);
    for name in ["keys", "channels", "connections"] {
        let (one, all) = (first.get(name).copied(), sample.get(name).copied());
        if let (Some(one), Some(all)) = (one, all) {
            sample.insert(format!("extra_{name}"), all - one);
        }
    }
    let mut samples = Vec::new();
    for _ in 0..plan.rounds {
        let mut watched = watch(target, Some(&mut node), slice).await?;
        watched.extend(sample.clone());
        samples.push(watched);
    }
    let (producer, connections) = alive(target, &prefix, &mut node, sessions).await?;
    for sample in &mut samples {
        sample.extend(producer.map(|n| ("producer_connections".to_owned(), n)));
        sample.extend(connections.map(|n| ("connections_after_load".to_owned(), n)));
    }
    node.end().await?;
    let row = Row::new("idle", OURS).sessions(sessions).filled(&samples);
    results.add(row.net("redis_percent", "redis_net_percent", &samples, &empty))
}

/// Percent of a core, here and in Redis, over a while.
async fn watch(target: &Target, mut node: Option<&mut Node>, time: Duration) -> Result<Measures, Failure> {
    let before = match &mut node {
        Some(node) => node.report().await?,
        None => Report::default(),
    };
    let (start, redis) = (Instant::now(), target.cpu().await);
    tokio::time::sleep(time).await;
    let redis_after = target.cpu().await;
    let seconds = start.elapsed().as_secs_f64();
    let mut measures = Measures::new();
    if let (Some(from), Some(to)) = (redis, redis_after) {
        let used = to.saturating_sub(from).as_secs_f64();
        measures.insert("redis_percent".to_owned(), used / seconds * 100.0);
    }
    if let Some(node) = node {
        let after = node.report().await?;
        if let (Some(from), Some(to)) = (before.cpu_us, after.cpu_us) {
            let used = to.saturating_sub(from) as f64 / 1e6;
            measures.insert("process_percent".to_owned(), used / seconds * 100.0);
        }
    }
    Ok(measures)
}

/// What can be counted: connections of the process, keys and channels of its prefix.
async fn footprint(target: &Target, prefix: &str, node: &Node) -> Result<Measures, Failure> {
    let mut measures = Measures::new();
    let ports = process::ports(node.pid());
    measures.extend(connections(target, &ports).await?.map(|n| ("connections".to_owned(), n)));
    measures.insert("keys".to_owned(), target.keys(prefix).await? as f64);
    measures.insert("channels".to_owned(), target.channels(prefix).await? as f64);
    Ok(measures)
}

/// How many of these local ports the server sees. Nothing where the system does not tell a process's ports.
async fn connections(target: &Target, ports: &HashSet<u16>) -> Result<Option<f64>, Failure> {
    if ports.is_empty() {
        return Ok(None);
    }
    let connected = target.connected().await?;
    Ok(Some(connected.iter().filter(|c| c.port.is_some_and(|p| ports.contains(&p))).count() as f64))
}

/// It idled, and did not sleep: messages still arrive, all of them. Answers the connections of the one who pushed, and of
/// the process afterwards.
async fn alive(
    target: &Target,
    prefix: &str,
    node: &mut Node,
    sessions: u32,
) -> Result<(Option<f64>, Option<f64>), Failure> {
    let others = process::ports(None);
    let producer = mcp_courier::Courier::builder().prefix(prefix).connect(target.url()).await?;
    for _ in 0..ALIVE {
        producer.push(Push::new(&stage::session(fastrand::u32(..sessions))?, b"x")).await?;
    }
    let start = Instant::now();
    loop {
        let seen = node.report().await?;
        if seen.delivered == u64::from(ALIVE) && seen.acked == u64::from(ALIVE) {
            break;
        }
        if start.elapsed() > PATIENCE {
            return Err(Failure::failed(format!("idle: {} of {ALIVE} messages delivered", seen.delivered)));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mine = process::ports(None).difference(&others).copied().collect();
    Ok((connections(target, &mine).await?, connections(target, &process::ports(node.pid())).await?))
}
