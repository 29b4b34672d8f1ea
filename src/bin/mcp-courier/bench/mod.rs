//! `mcp-courier bench`: delivery under load, and what it costs, beside raw baselines in the same interleaved run.
//!
//! Every scenario counts and checks: what is lost or out of order ends the run with exit code 1.

mod args;
mod bodies;
mod brpop;
mod claims;
mod commands;
mod drain;
mod faults;
mod growth;
mod idle;
mod latency;
mod ledger;
mod load;
mod measures;
mod memory;
mod node;
mod plot;
mod process;
mod redis_benchmark;
mod report;
mod rounds;
mod row;
mod server;
mod stage;
mod streams;
mod table;
mod targets;
mod throughput;

use std::io::Write as _;
use std::sync::Arc;

pub use self::args::Bench;
use self::args::{Plan, Scenario};
pub use self::node::{BenchNode, run as run_node};
use self::row::Row;
use self::server::Target;
use self::stage::Stage;
use crate::args::Server;
use crate::output::{self, Failure};
use crate::signals;

/// Where rows go as they come.
struct Results {
    json: bool,
    out: Option<std::fs::File>,
    redis: String,
    rows: Vec<Row>,
}

impl Results {
    fn add(&mut self, mut row: Row) -> Result<(), Failure> {
        row.redis = self.redis.clone();
        row.version = env!("CARGO_PKG_VERSION").to_owned();
        if let Some(out) = &mut self.out {
            writeln!(out, "{}", serde_json::to_string(&row).map_err(std::io::Error::other)?)?;
        }
        if self.json {
            output::json(&row)?;
        } else {
            for line in table::lines(&row) {
                output::line(&line)?;
            }
        }
        self.rows.push(row);
        Ok(())
    }

    fn add_all(&mut self, rows: impl IntoIterator<Item = Row>) -> Result<(), Failure> {
        rows.into_iter().try_for_each(|row| self.add(row))
    }
}

pub async fn run(server: Server, json: bool, args: Bench) -> Result<u8, Failure> {
    if let Some(folder) = &args.render {
        return report::render(folder).map(|()| 0);
    }
    let mut stopping = Box::pin(signals::stop()?);
    let target = Arc::new(Target::open(&server, &args.server_program).await?);
    let out = args.out.as_ref().map(std::fs::File::create).transpose()?;
    let mut results = Results { json, out, redis: target.version.clone(), rows: Vec::new() };
    let plan = args.plan();
    if !json {
        output::line(&format!("redis {}, mcp-courier {}", target.version, env!("CARGO_PKG_VERSION")))?;
        output::line(&table::head())?;
    }
    let mut measuring = {
        let target = target.clone();
        // In a task: the thread that blocks on a runtime's root would be one hop more.
        tokio::spawn(async move {
            let done = measure(&target, &plan, &mut results).await;
            (done, results)
        })
    };
    let done = tokio::select! {
        () = &mut stopping => {
            measuring.abort();
            let _ = measuring.await;
            Err(Failure::failed("interrupted"))
        }
        done = &mut measuring => match done {
            Ok((Ok(()), results)) => finish(&args, &results),
            Ok((Err(e), _)) => Err(e),
            Err(e) => Err(Failure::failed(e.to_string())),
        }
    };
    // Why the run failed matters more than why nobody could tidy up.
    let left = target.leave().await;
    done.and_then(|code| left.map(|()| code))
}

/// What is made of the rows; the exit code.
fn finish(args: &Bench, results: &Results) -> Result<u8, Failure> {
    if let Some(folder) = &args.report {
        report::write(&results.rows, folder)?;
    }
    if !args.targets {
        return Ok(0);
    }
    let judged = targets::judge(&results.rows);
    if results.json {
        judged.iter().try_for_each(output::json)?;
    } else {
        output::line("")?;
        targets::lines(&judged).iter().try_for_each(|line| output::line(line))?;
    }
    Ok(judged.iter().filter(|j| j.is_short()).count() as u8)
}

/// What a reader must know to judge the figures. A load average beyond the cores means that they are of no use.
fn machine(plan: &Plan, load: Option<f64>) -> Row {
    let mut values = measures::Measures::new();
    values.insert("cores".to_owned(), process::cores() as f64);
    values.insert("seconds_of_load".to_owned(), plan.load.as_secs_f64());
    values.extend(load.map(|load| ("load_average_before".to_owned(), load)));
    Row::new("machine", "host").filled(&[values])
}

async fn measure(target: &Target, plan: &Plan, results: &mut Results) -> Result<(), Failure> {
    results.add(machine(plan, process::load_average()))?;
    if plan.has(Scenario::Latency) || plan.has(Scenario::Throughput) {
        let mut stages = Vec::new();
        for &sessions in &plan.sessions {
            eprintln!("claiming {sessions} sessions");
            stages.push(Stage::new(target, &format!("s{sessions}"), sessions, plan.dedupe).await?);
        }
        if plan.has(Scenario::Latency) {
            latency::run(target, plan, &stages, results).await?;
        }
        if plan.has(Scenario::Throughput) {
            throughput::run(target, plan, &stages, results).await?;
        }
    }
    if plan.has(Scenario::Drain) {
        drain::run(target, plan, results).await?;
    }
    if plan.has(Scenario::Bodies) {
        bodies::run(target, plan, results).await?;
    }
    if plan.has(Scenario::Idle) {
        idle::run(target, plan, results).await?;
    }
    if plan.has(Scenario::Memory) {
        memory::run(target, plan, results).await?;
    }
    if plan.has(Scenario::Claim) {
        claims::run(target, plan, results).await?;
    }
    if [Scenario::Resync, Scenario::Reclaim, Scenario::Doorbell].iter().any(|s| plan.has(*s)) {
        faults::run(target, plan, results).await?;
    }
    if plan.has(Scenario::Growth) {
        growth::run(target, plan, results).await?;
    }
    Ok(())
}
