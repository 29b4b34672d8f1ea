//! `mcp-courier soak`: several processes that push and deliver, on servers of their own, a fault after the other, and in
//! the end everything is accounted for.

mod args;
mod check;
mod clock;
mod closing;
mod crew;
mod faults;
mod history;
mod ledger;
mod lines;
mod message;
mod process;
mod proxy;
mod recovery;
mod report;
mod servers;
mod stage;

use std::time::Duration;

pub use self::args::{Soak, SoakNode};
use self::crew::Crew;
use self::faults::{Kind, Window};
use self::ledger::Ledger;
pub use self::process::run as run_node;
use self::report::Report;
use self::servers::Servers;
use self::stage::Stage;
use crate::output::{self, FAILED, Failure};
use crate::signals;

/// Of all keys of a run.
const PREFIX: &str = "soak";
/// Writes that a replica lacks are no older, or the master refuses new ones (`min-replicas-max-lag 2`).
const LAG_US: u64 = 2_000_000;
/// What a run may take beyond its time: the last fault, the drain, the end.
const AT_MOST: Duration = Duration::from_secs(300);
/// Why one fault of the list is not there.
const NO_CLOCK: &str = "clock-jump: left out, redis-server has no command that moves its clock";

pub async fn run(json: bool, args: Soak) -> Result<u8, Failure> {
    let mut stopping = Box::pin(signals::stop()?);
    let kinds = kinds(&args)?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1 << 53));
    // First: whatever happens, it can be done again.
    eprintln!("seed {seed}");
    let time = args.time() + AT_MOST;
    let ended = async {
        tokio::select! {
            () = &mut stopping => Failure::failed(format!("seed {seed}: interrupted")),
            () = tokio::time::sleep(time) => Failure::failed(format!("seed {seed}: not over after {time:?}")),
        }
    };
    soak(json, &args, seed, &kinds, ended).await
}

fn kinds(args: &Soak) -> Result<Vec<Kind>, Failure> {
    let known = Kind::all_of(args.topology);
    if args.faults.is_empty() {
        return Ok(known);
    }
    if args.faults.contains(&Kind::ClockJump) {
        return Err(Failure::usage(NO_CLOCK));
    }
    match args.faults.iter().find(|kind| !known.contains(kind)) {
        Some(kind) => {
            Err(Failure::usage(format!("--topology {} knows no {}", args.topology.word(), kind.word())))
        }
        None => Ok(args.faults.clone()),
    }
}

/// Everything that is started ends here, also when `ended` comes first.
async fn soak(
    json: bool,
    args: &Soak,
    seed: u64,
    kinds: &[Kind],
    ended: impl Future<Output = Failure>,
) -> Result<u8, Failure> {
    let mut ended = std::pin::pin!(ended);
    let servers = tokio::select! {
        servers = Servers::start(args) => servers?,
        // Those that were started end with the pipes to their keepers.
        why = &mut ended => return Err(why),
    };
    if !json {
        output::line(&format!(
            "redis {}, mcp-courier {}, {}, seed {seed}",
            servers.version,
            env!("CARGO_PKG_VERSION"),
            args.topology.word()
        ))?;
    }
    let crew = Crew::new(servers.url(), PREFIX.to_owned(), seed, args)?;
    let start = clock::now();
    let mut stage = Stage::new(args.clone(), seed, servers, crew);
    let soaking = async {
        stage.crew.start().await?;
        stage.suffer_all(kinds, json).await?;
        stage.close().await
    };
    let done = tokio::select! {
        done = soaking => done,
        why = &mut ended => Err(why),
    };
    stage.end().await;
    let mut closing = done?;
    closing.left.extend(stage.servers.still_there());
    tamper(args, seed, &mut closing.ledger);
    let windows: Vec<Window> = stage.faults.iter().filter_map(|f| f.window).collect();
    let verdict = check::judge(&closing.ledger, &closing.found, &windows, seed);
    let mut faults = std::mem::take(&mut stage.faults);
    let failovers = faults.iter_mut().filter(|f| f.window.is_some());
    failovers.zip(&verdict.lost_in).for_each(|(fault, &lost)| fault.lost_by_replication = lost);
    let report = Report::new(args, seed, &stage.servers, faults, &closing, &verdict, start);
    if let Some(out) = &args.out {
        std::fs::write(out, serde_json::to_string_pretty(&report).map_err(std::io::Error::other)?)?;
    }
    if json {
        output::json(&report)?;
    } else {
        report.lines().iter().try_for_each(|line| output::line(line))?;
    }
    Ok(if report.violations.is_empty() { 0 } else { FAILED })
}

/// For the test of the checker itself.
fn tamper(args: &Soak, seed: u64, ledger: &mut Ledger) {
    let plain = |e: &&ledger::Entry| {
        e.acked.is_some() && !e.delivered.is_empty() && e.name.fate(seed) == message::Fate::Plain
    };
    let some = ledger.entries.iter().filter(plain).map(|e| e.name).nth(ledger.entries.len() / 2);
    let Some(name) = some else { return };
    if args.forget_one
        && let Some(entry) = ledger.get_mut(name)
    {
        entry.delivered.clear();
    }
    let next = message::Name { seq: name.seq + 1, ..name };
    if args.swap_two
        && let Some(later) = ledger.get(next).and_then(ledger::Entry::first)
        && let Some(entry) = ledger.get_mut(name)
    {
        entry.delivered.iter_mut().for_each(|taken| taken.at = later + 1);
    }
}
