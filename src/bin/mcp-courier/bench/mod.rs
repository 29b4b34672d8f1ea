//! `mcp-courier bench`: delivery under load, and what it costs, beside raw baselines in the same interleaved run.
//!
//! Every scenario counts and checks: what is lost or out of order ends the run with exit code 1.

#![allow(dead_code, reason = "the scenarios still to come use it")]

mod args;
mod brpop;
mod latency;
mod ledger;
mod load;
mod measures;
mod process;
mod rounds;
mod row;
mod server;
mod stage;
mod table;
mod throughput;

use std::io::Write as _;
use std::sync::Arc;

pub use self::args::Bench;
use self::args::{Plan, Scenario};
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

    fn add_all(&mut self, rows: Vec<Row>) -> Result<(), Failure> {
        rows.into_iter().try_for_each(|row| self.add(row))
    }
}

pub async fn run(server: Server, json: bool, args: Bench) -> Result<u8, Failure> {
    let mut stopping = Box::pin(signals::stop()?);
    let target = Arc::new(Target::open(&server, &args.server_program).await?);
    let out = args.out.as_ref().map(std::fs::File::create).transpose()?;
    let mut results = Results { json, out, redis: target.version.clone(), rows: Vec::new() };
    let plan = args.plan();
    if !json {
        output::line(&format!("redis {}, mcp-courier {}", target.version, env!("CARGO_PKG_VERSION")))?;
        output::line(&table::head())?;
    }
    let measuring = {
        let target = target.clone();
        // In a task: the thread that blocks on a runtime's root would be one hop more.
        tokio::spawn(async move {
            let done = measure(&target, &plan, &mut results).await;
            (done, results)
        })
    };
    let abort = measuring.abort_handle();
    let done = tokio::select! {
        () = &mut stopping => { abort.abort(); Err(Failure::failed("interrupted")) }
        done = measuring => match done {
            Ok((Ok(()), _)) => Ok(0),
            Ok((Err(e), _)) => Err(e),
            Err(e) => Err(Failure::failed(e.to_string())),
        }
    };
    if target.private_port().is_none() {
        target.clean(&target.root).await?;
    }
    done
}

async fn measure(target: &Target, plan: &Plan, results: &mut Results) -> Result<(), Failure> {
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
    Ok(())
}
