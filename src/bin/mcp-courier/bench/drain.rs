//! Messages that wait before anybody serves them: claimed, popped, delivered and acked, against a stream that a consumer
//! group drains.

use std::sync::Arc;
use std::time::Instant;

use mcp_courier::{MessageId, Push};

use super::Results;
use super::args::Plan;
use super::load::System as _;
use super::measures::{Measures, Meter};
use super::rounds::{Side, interleave, rows};
use super::row::{OURS, Row};
use super::server::Target;
use super::stage::{self, Stage};
use super::streams;
use crate::output::Failure;

/// In one call of `push_many`.
const CHUNK: usize = 1000;

pub async fn run(target: &Target, plan: &Plan, results: &mut Results) -> Result<(), Failure> {
    let row = |system| Row::new("drain", system).body(plan.body);
    let mut sides = Vec::new();
    if target.has_raw() {
        let run = || streams::drain(target, plan.preloaded, plan.body);
        sides.push(Side::new(row("streams"), run));
    }
    // Queues of one message each are claims more than a drain: no target asks for them.
    let least_each = if plan.judge_only { 10 } else { 1 };
    for &sessions in plan.sessions.iter().filter(|&&n| n <= plan.preloaded / least_each) {
        let run = move || courier(target, plan, sessions);
        sides.push(Side::new(row(OURS).sessions(sessions), run));
    }
    interleave("drain", plan.rounds, &mut sides).await?;
    results.add_all(rows(&sides))
}

async fn courier(target: &Target, plan: &Plan, count: u32) -> Result<Measures, Failure> {
    let name = format!("drain-{:08x}", fastrand::u32(..));
    let stage = Stage::unclaimed(target, &name, count, plan.dedupe).await?;
    preload(&stage, plan.preloaded, plan.body, Ids::Ours).await?;
    let meter = Meter::start(target).await;
    let start = Instant::now();
    stage::claim(&stage.subscriber, &stage.sessions, &stage.ledger).await?;
    stage.settle().await?;
    let seconds = start.elapsed().as_secs_f64();
    let mut measures = Measures::new();
    meter.per_message(target, u64::from(plan.preloaded), &mut measures).await;
    measures.insert("per_second".to_owned(), f64::from(plan.preloaded) / seconds);
    drop(stage);
    target.clean(&format!("{}:{name}", target.root)).await?;
    Ok(measures)
}

/// Who names the messages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// The courier.
    Ours,
    /// The caller: each id is remembered by a key of its own, for as long as the window.
    Callers,
}

/// Spreads messages over the sessions of a stage.
pub async fn preload(stage: &Arc<Stage>, messages: u32, body: usize, ids: Ids) -> Result<(), Failure> {
    let share = stage::share(stage.sessions.len(), 0, 1);
    let mut queues = share.iter().cycle();
    let mut left = messages as usize;
    while left > 0 {
        let chunk = queues
            .by_ref()
            .take(left.min(CHUNK))
            .map(|&(queue, stream)| Push::new(&stage.sessions[queue], stage.ledger.next(stream, 0, body)));
        let mut chunk: Vec<Push> = chunk.collect();
        if ids == Ids::Callers {
            let id = || MessageId::new(uuid::Uuid::new_v4().to_string());
            chunk = chunk.into_iter().map(|push| Ok(push.id(id()?))).collect::<Result<_, Failure>>()?;
        }
        for pushed in stage.producer.push_many(chunk).await {
            pushed?;
        }
        left -= left.min(CHUNK);
    }
    Ok(())
}
