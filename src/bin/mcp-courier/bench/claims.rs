//! Claiming every session, and taking every session over from another process.

use std::sync::Arc;
use std::time::Instant;

use super::Results;
use super::args::Plan;
use super::measures::{Measures, Meter};
use super::rounds::{Side, interleave, rows};
use super::row::{OURS, Row};
use super::server::Target;
use super::stage;
use crate::output::Failure;

pub async fn run(target: &Target, plan: &Plan, results: &mut Results) -> Result<(), Failure> {
    let sessions = plan.most_sessions();
    let mut sides = [Side::new(Row::new("claim", OURS).sessions(sessions), || {
        claim_and_take_over(target, plan, sessions)
    })];
    interleave("claim", plan.rounds, &mut sides).await?;
    results.add_all(rows(&sides))
}

async fn claim_and_take_over(target: &Target, plan: &Plan, count: u32) -> Result<Measures, Failure> {
    let name = format!("claim-{:08x}", fastrand::u32(..));
    let sessions = stage::sessions(count)?;
    let ledger = Arc::new(stage::ledger(sessions.len())?);
    let mut measures = Measures::new();
    let mut owners = Vec::new();
    for what in ["claim_seconds", "takeover_seconds"] {
        let courier = target.builder(&name, plan.dedupe).connect(target.url()).await?;
        let meter = Meter::start(target).await;
        let start = Instant::now();
        stage::claim(&courier, &sessions, &ledger).await?;
        measures.insert(what.to_owned(), start.elapsed().as_secs_f64());
        if what == "claim_seconds" {
            meter.per_message(target, u64::from(count), &mut measures).await;
        }
        owners.push(courier);
    }
    drop(owners);
    target.clean(&format!("{}:{name}", target.root)).await?;
    Ok(measures)
}
