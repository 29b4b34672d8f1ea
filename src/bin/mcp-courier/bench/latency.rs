//! Idle latency: one message at a time, from just before the push to the sink's entry.

use std::sync::Arc;

use super::Results;
use super::args::Plan;
use super::brpop::Lists;
use super::load;
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
    let row = |system| Row::new("latency", system).pushers(1).body(plan.body);
    let lists = if target.has_raw() { Some(Lists::new(target, 1).await?) } else { None };
    let mut sides = Vec::new();
    if let Some(lists) = &lists {
        sides.push(Side::new(row("brpop"), || load::singles(lists, plan.singles, plan.body)));
    }
    for stage in stages {
        let row = row(OURS).sessions(stage.sessions.len() as u32);
        sides.push(Side::new(row, || load::singles(stage, plan.singles, plan.body)));
    }
    interleave("latency", plan.rounds, &mut sides).await?;
    results.add_all(rows(&sides))
}
