//! Faults, and the time until all is delivered again: both connections cut, the doorbell connection cut, a doorbell that
//! never rings.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mcp_courier::{Courier, Push};

use super::Results;
use super::args::{Plan, Scenario};
use super::ledger::PATIENCE;
use super::load::System as _;
use super::measures::Measures;
use super::process;
use super::rounds::{Side, interleave, rows};
use super::row::{OURS, Row};
use super::server::{Connected, Target, raw_failure};
use super::stage::{self, Stage};
use crate::output::Failure;

/// Sessions with something pending when the connections are back.
const PENDING: usize = 100;

pub async fn run(target: &Target, plan: &Plan, results: &mut Results) -> Result<(), Failure> {
    if !target.has_raw() {
        eprintln!("resync, reclaim, doorbell: left out, memory:// has no connections to cut");
        return Ok(());
    }
    let (resync, doorbell) = (plan.has(Scenario::Resync), plan.has(Scenario::Doorbell));
    let sessions = plan.most_sessions();
    // Connected before the stage, so that its connection is not taken for the subscriber's.
    let mute = if doorbell { mute_producer(target, plan).await? } else { None };
    eprintln!("claiming {sessions} sessions");
    let stage = Stage::new(target, "faults", sessions, plan.dedupe).await?;
    if lines(target, &stage).await?.is_empty() {
        eprintln!("resync and doorbell: left out, this system does not say which connections are ours");
        return Ok(());
    }
    if resync {
        let row = Row::new("resync", OURS).sessions(sessions);
        let mut sides = [Side::new(row, || cut_all(target, &stage))];
        interleave("resync", plan.rounds, &mut sides).await?;
        results.add_all(rows(&sides))?;
    }
    if plan.has(Scenario::Reclaim) {
        let row = Row::new("reclaim", OURS).sessions(sessions);
        let mut sides = [Side::new(row, || lose_owners(target, &stage))];
        interleave("reclaim", plan.rounds, &mut sides).await?;
        results.add_all(rows(&sides))?;
    }
    if doorbell {
        let row = |what| Row::new(what, OURS).sessions(sessions);
        let mut sides = vec![Side::new(row("doorbell-cut"), || cut_bell(target, &stage))];
        if let Some(mute) = &mute {
            sides.push(Side::new(row("doorbell-unheard"), || push_unheard(mute, &stage)));
        }
        interleave("doorbell", plan.rounds, &mut sides).await?;
        results.add_all(rows(&sides))?;
    }
    Ok(())
}

/// The subscriber's lines in `CLIENT LIST`.
async fn lines(target: &Target, stage: &Stage) -> Result<Vec<Connected>, Failure> {
    let mine = process::ports(None);
    let of_subscriber = |c: &Connected| {
        !c.raw && c.port.is_some_and(|p| mine.contains(&p) && !stage.other_ports.contains(&p))
    };
    Ok(target.connected().await?.into_iter().filter(of_subscriber).collect())
}

async fn cut(target: &Target, lines: &[Connected]) -> Result<(), Failure> {
    let mut raw = target.raw().await?;
    let mut pipeline = redis::Pipeline::new();
    for line in lines {
        pipeline.cmd("CLIENT").arg("KILL").arg("ID").arg(line.id).ignore();
    }
    pipeline.exec_async(&mut raw).await.map_err(raw_failure)
}

/// Kills both connections and pushes to a hundred sessions at once: until all of it is delivered and acked.
async fn cut_all(target: &Target, stage: &Arc<Stage>) -> Result<Measures, Failure> {
    steady(target, stage).await?;
    let lines = lines(target, stage).await?;
    let connections = lines.len() as f64;
    let share = stage::share(stage.sessions.len(), 0, 1);
    let chosen: HashSet<usize> = (0..PENDING).map(|_| fastrand::usize(..share.len())).collect();
    cut(target, &lines).await?;
    let start = Instant::now();
    let pushes = chosen.iter().map(|&n| {
        let (queue, stream) = share[n];
        Push::new(&stage.sessions[queue], stage.ledger.next(stream, 0, 256))
    });
    for pushed in stage.producer.push_many(pushes).await {
        pushed?;
    }
    stage.settle().await?;
    let measured = [("seconds", start.elapsed().as_secs_f64()), ("connections", connections)];
    Ok(measured.map(|(name, value)| (name.to_owned(), value)).into())
}

/// Removes everything that stands in Redis, as a server does that comes back empty (all messages were acked before):
/// until every session has its owner again. `claim_seconds` is from the first to the last; before that passes up to one
/// heartbeat, which notices.
async fn lose_owners(target: &Target, stage: &Arc<Stage>) -> Result<Measures, Failure> {
    stage.settle().await?;
    let all = stage.sessions.len() as u64;
    target.clean(&format!("{}:{}", target.root, stage.name)).await?;
    let (start, mut first) = (Instant::now(), None);
    loop {
        let owned = stage.producer.overview(0).await?.owned;
        if owned > 0 {
            first.get_or_insert_with(Instant::now);
        }
        if owned == all {
            break;
        }
        if start.elapsed() > PATIENCE {
            return Err(Failure::failed(format!("reclaim: {owned} of {all} sessions have an owner")));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let claiming = first.map_or(0.0, |first| first.elapsed().as_secs_f64());
    // They are served, and not only owned.
    one(&stage.producer, stage).await?;
    let measured = [("seconds", start.elapsed().as_secs_f64()), ("claim_seconds", claiming)];
    Ok(measured.map(|(name, value)| (name.to_owned(), value)).into())
}

/// Kills the connection that hears doorbells and pushes at once.
async fn cut_bell(target: &Target, stage: &Arc<Stage>) -> Result<Measures, Failure> {
    steady(target, stage).await?;
    let bell: Vec<_> = lines(target, stage).await?.into_iter().filter(|c| c.subscribed).collect();
    cut(target, &bell).await?;
    one(&stage.producer, stage).await
}

/// Pushes as somebody whose `PUBLISH` is refused: the message is queued, and nobody is told.
async fn push_unheard(mute: &Courier, stage: &Arc<Stage>) -> Result<Measures, Failure> {
    one(mute, stage).await
}

/// One message, from just before its push to its delivery.
async fn one(producer: &Courier, stage: &Arc<Stage>) -> Result<Measures, Failure> {
    let share = stage::share(stage.sessions.len(), 0, 1);
    let (queue, stream) = share[fastrand::usize(..share.len())];
    let start = Instant::now();
    producer.push(Push::new(&stage.sessions[queue], stage.ledger.next(stream, 0, 256))).await?;
    stage.ledger.settle("one message").await?;
    Ok([("seconds".to_owned(), start.elapsed().as_secs_f64())].into())
}

/// Until both connections are up, and have been for long enough to be taken for good ones: a connection that is cut just
/// after it came back waits longer before the next try, and that is not what is measured here.
async fn steady(target: &Target, stage: &Stage) -> Result<(), Failure> {
    let mut known = Vec::new();
    let mut since = Instant::now();
    for _ in 0..200 {
        let ids: Vec<u64> = lines(target, stage).await?.iter().map(|c| c.id).collect();
        if ids.len() != 2 || ids != known {
            (known, since) = (ids, Instant::now());
        } else if since.elapsed().as_millis() > 2200 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Err(Failure::failed(format!("the subscriber has {} connections, not 2", known.len())))
}

/// A producer without the right to publish. Only where users are ours to make.
async fn mute_producer(target: &Target, plan: &Plan) -> Result<Option<Courier>, Failure> {
    let Some(port) = target.private_port() else {
        eprintln!("doorbell-unheard: left out, it needs a user of its own on the server");
        return Ok(None);
    };
    let mut raw = target.raw().await?;
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER").arg("mute").arg("on").arg(">mute").arg("~*").arg("+@all").arg("allchannels");
    user.exec_async(&mut raw).await.map_err(raw_failure)?;
    let url = format!("redis://mute:mute@127.0.0.1:{port}");
    let mute = target.builder("faults", plan.dedupe).connect(url).await?;
    // A courier without the right would not start.
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER").arg("mute").arg("resetchannels");
    user.exec_async(&mut raw).await.map_err(raw_failure)?;
    Ok(Some(mute))
}
