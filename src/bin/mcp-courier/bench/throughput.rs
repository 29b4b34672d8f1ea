//! Throughput: one pusher and many, over all numbers of sessions, until everything is acked.

use std::sync::Arc;

use super::Results;
use super::args::Plan;
use super::brpop::Lists;
use super::load::{self, Waits};
use super::rounds::{Side, interleave, rows};
use super::row::{OURS, Row};
use super::server::Target;
use super::stage::Stage;
use crate::output::Failure;

pub async fn run(
    target: &Target,
    plan: &Plan,
    stages: &[Arc<Stage>],
    results: &mut Results,
) -> Result<(), Failure> {
    for (pushers, waits) in [
        (plan.pushers[0], Waits::Delivery),
        (plan.pushers[1], Waits::Delivery),
        (plan.pushers[1], Waits::Answer),
    ] {
        let many = pushers as usize;
        let row =
            |system| Row::new("throughput", system).pushers(pushers).body(plan.body).waits_for(waits.word());
        let lists = if target.has_raw() { Some(Lists::new(target, many).await?) } else { None };
        let mut sides = Vec::new();
        if let Some(lists) = &lists {
            let run = || load::pushers(target, lists, many, plan.body, waits, plan.load);
            sides.push(Side::new(row("brpop"), run));
        }
        for stage in stages {
            let row = row(OURS).sessions(stage.sessions.len() as u32);
            let run = || load::pushers(target, stage, many, plan.body, waits, plan.load);
            sides.push(Side::new(row, run));
        }
        interleave(&format!("throughput, {pushers} pushers"), plan.rounds, &mut sides).await?;
        results.add_all(rows(&sides))?;
    }
    Ok(())
}
