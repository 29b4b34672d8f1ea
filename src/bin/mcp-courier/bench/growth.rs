//! The same with ten times the sessions.

use super::Results;
use super::args::Plan;
use super::load::{self, Waits};
use super::rounds::{Side, grown, interleave};
use super::row::{OURS, Row};
use super::server::Target;
use super::stage::Stage;
use crate::output::Failure;

pub async fn run(target: &Target, plan: &Plan, results: &mut Results) -> Result<(), Failure> {
    let (few, many) = (plan.most_sessions(), plan.most_sessions().saturating_mul(10));
    let mut stages = Vec::new();
    for sessions in [few, many] {
        eprintln!("claiming {sessions} sessions");
        stages.push(Stage::new(target, &format!("growth{sessions}"), sessions, plan.dedupe).await?);
    }
    let pushers = plan.pushers[1];
    let mut sides = Vec::new();
    for stage in &stages {
        let row = Row::new("latency", OURS).pushers(1).body(plan.body);
        let run = || load::singles(stage, plan.singles, plan.body);
        sides.push(Side::new(row.sessions(stage.sessions.len() as u32), run));
    }
    interleave("growth, latency", plan.rounds, &mut sides).await?;
    results.add_all(grown(&sides, few, many))?;
    let mut sides = Vec::new();
    for stage in &stages {
        let row = Row::new("throughput", OURS).pushers(pushers).body(plan.body);
        let row = row.sessions(stage.sessions.len() as u32).waits_for(Waits::Delivery.word());
        let run = || load::pushers(target, stage, pushers as usize, plan.body, Waits::Delivery, plan);
        sides.push(Side::new(row, run));
    }
    interleave("growth, throughput", plan.rounds, &mut sides).await?;
    results.add_all(grown(&sides, few, many))
}
