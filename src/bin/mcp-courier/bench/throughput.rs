//! Throughput: one pusher and many, over all numbers of sessions, until everything is acked.

use std::sync::Arc;

use super::Results;
use super::args::Plan;
use super::brpop::Lists;
use super::load::{self, Waits};
use super::redis_benchmark;
use super::rounds::{Side, grown, interleave, rows};
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
        if plan.judge_only && pushers == 1 {
            continue;
        }
        let many = pushers as usize;
        let row =
            |system| Row::new("throughput", system).pushers(pushers).body(plan.body).waits_for(waits.word());
        let lists = if target.has_raw() { Some(Lists::new(target, many).await?) } else { None };
        let mut sides = Vec::new();
        if let Some(lists) = &lists {
            let run = || load::pushers(target, lists, many, plan.body, waits, plan);
            sides.push(Side::new(row("brpop"), run));
        }
        for stage in stages {
            let row = row(OURS).sessions(stage.sessions.len() as u32);
            let run = || load::pushers(target, stage, many, plan.body, waits, plan);
            sides.push(Side::new(row, run));
        }
        // It sends its next request when it has the answer: to be compared with pushers that do the same.
        let yardstick = waits == Waits::Answer && redis_benchmark::usable(target);
        if yardstick {
            let row = Row::new("lpush", "redis-benchmark").pushers(pushers).body(plan.body);
            sides.push(Side::new(row, || redis_benchmark::run(target, plan)));
        }
        let name = format!("throughput, {pushers} pushers, next at {}", waits.word());
        interleave(&name, plan.rounds, &mut sides).await?;
        let yardstick = yardstick.then(|| sides.pop()).flatten();
        results.add_all(rows(&sides))?;
        let (few, many) = plan.grows();
        results.add_all(grown(&sides, few, many))?;
        if let Some(theirs) = yardstick {
            results.add(theirs.row.clone().filled(&theirs.samples))?;
            for ours in sides.iter().filter(|side| side.row.system == OURS) {
                let row = Row { scenario: "lpush".to_owned(), ..ours.row.clone() }.filled(&ours.samples);
                results.add(row.against(&theirs.row.system, &ours.samples, &theirs.samples))?;
            }
        }
    }
    Ok(())
}
