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
        let lists = if target.has_raw() { Some(Lists::new(target, many, false).await?) } else { None };
        // The best that lists can do: with many pushers on one connection, each request carries what waits.
        let pipelined =
            if lists.is_some() && many > 1 { Some(Lists::new(target, many, true).await?) } else { None };
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
        let pipelined_at = sides.len();
        if let Some(lists) = &pipelined {
            let run = || load::pushers(target, lists, many, plan.body, waits, plan);
            sides.push(Side::new(row("brpop-pipelined"), run));
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
        let pipelined = pipelined.is_some().then(|| sides.remove(pipelined_at));
        results.add_all(rows(&sides))?;
        if let Some(theirs) = pipelined {
            held_against("pipelined", &theirs, &sides, results)?;
        }
        let (few, many) = plan.grows();
        results.add_all(grown(&sides, few, many))?;
        if let Some(theirs) = yardstick {
            held_against("lpush", &theirs, &sides, results)?;
        }
    }
    Ok(())
}

/// One more thing to compare with, in rows of its own.
fn held_against(
    scenario: &str,
    theirs: &Side<'_>,
    sides: &[Side<'_>],
    results: &mut Results,
) -> Result<(), Failure> {
    let scenario = scenario.to_owned();
    results.add(Row { scenario: scenario.clone(), ..theirs.row.clone() }.filled(&theirs.samples))?;
    for ours in sides.iter().filter(|side| side.row.system == OURS) {
        let row = Row { scenario: scenario.clone(), ..ours.row.clone() }.filled(&ours.samples);
        results.add(row.against(&theirs.row.system, &ours.samples, &theirs.samples))?;
    }
    Ok(())
}
