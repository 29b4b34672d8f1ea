//! Throughput by the size of the bodies.

use super::Results;
use super::args::Plan;
use super::brpop::Lists;
use super::load::{self, Waits};
use super::rounds::{Side, interleave, rows};
use super::row::{OURS, Row};
use super::server::Target;
use super::stage::Stage;
use crate::output::Failure;

/// Sessions behind it: many enough to be spread, few enough to be no matter.
const SESSIONS: u32 = 1000;

pub async fn run(target: &Target, plan: &Plan, results: &mut Results) -> Result<(), Failure> {
    let (pushers, waits) = (plan.pushers[1], Waits::Delivery);
    let many = pushers as usize;
    let stage = Stage::new(target, "bodies", SESSIONS.min(plan.most_sessions()), plan.dedupe).await?;
    let lists = if target.has_raw() { Some(Lists::new(target, many, false).await?) } else { None };
    for &body in &plan.bodies {
        let row = |system| Row::new("bodies", system).pushers(pushers).body(body).waits_for(waits.word());
        let mut sides = Vec::new();
        if let Some(lists) = &lists {
            let run = || load::pushers(target, lists, many, body, waits, plan);
            sides.push(Side::new(row("brpop"), run));
        }
        let run = || load::pushers(target, &stage, many, body, waits, plan);
        sides.push(Side::new(row(OURS).sessions(stage.sessions.len() as u32), run));
        interleave(&format!("bodies of {body} bytes"), plan.rounds, &mut sides).await?;
        results.add_all(rows(&sides))?;
    }
    Ok(())
}
