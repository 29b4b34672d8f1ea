//! What a run is told as: lines for people, one JSON object for programs.

use std::collections::BTreeMap;

use serde::Serialize;

use super::args::Soak;
use super::check::{Counts, Verdict};
use super::closing::Closing;
use super::faults::{Fault, Kind};
use super::history;
use super::servers::Servers;

/// How long messages took to come again after one kind of fault, in seconds.
#[derive(Debug, Serialize)]
pub struct Recovered {
    fault: Kind,
    starts: &'static str,
    count: usize,
    /// From the fault's begin to where recovery counts from.
    outage_median: f64,
    first_median: Option<f64>,
    first_max: Option<f64>,
    all_median: Option<f64>,
    all_max: Option<f64>,
    target: f64,
    met: bool,
    /// Over all of them.
    lost_by_replication: u64,
}

/// Everything about a run.
#[derive(Debug, Serialize)]
pub struct Report {
    version: &'static str,
    redis: String,
    topology: &'static str,
    pub seed: u64,
    minutes: f64,
    sessions: u32,
    producers: u32,
    subscribers: u32,
    rate: f64,
    min_replicas: bool,
    appendfsync: String,
    counts: Counts,
    dead_reasons: Vec<(String, u64)>,
    recovery: Vec<Recovered>,
    faults: Vec<Fault>,
    /// Why the run failed; empty when it did not.
    pub violations: Vec<String>,
    /// What happened to the first message that is not as promised.
    history: Vec<String>,
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn most(values: &[f64]) -> Option<f64> {
    values.iter().copied().reduce(f64::max)
}

fn recovered(faults: &[Fault]) -> Vec<Recovered> {
    let mut kinds: BTreeMap<Kind, Vec<&Fault>> = BTreeMap::new();
    for fault in faults {
        kinds.entry(fault.kind).or_default().push(fault);
    }
    let row = |(kind, faults): (Kind, Vec<&Fault>)| {
        let first: Vec<f64> = faults.iter().filter_map(|f| f.recovery.first).collect();
        let all: Vec<f64> = faults.iter().filter_map(|f| f.recovery.all).collect();
        Recovered {
            fault: kind,
            starts: kind.starts(),
            count: faults.len(),
            outage_median: median(faults.iter().map(|f| f.outage()).collect()).unwrap_or(0.0),
            first_max: most(&first),
            met: most(&first).is_none_or(|max| max <= kind.target()),
            first_median: median(first),
            all_max: most(&all),
            all_median: median(all),
            target: kind.target(),
            lost_by_replication: faults.iter().map(|f| f.lost_by_replication).sum(),
        }
    };
    kinds.into_iter().map(row).collect()
}

impl Report {
    pub fn new(
        args: &Soak,
        seed: u64,
        servers: &Servers,
        faults: Vec<Fault>,
        closing: &Closing,
        verdict: &Verdict,
        start: u64,
    ) -> Self {
        let mut violations: Vec<String> =
            verdict.offences.iter().map(|o| format!("message {}: {}", o.name, o.what)).collect();
        violations.extend(verdict.others.iter().cloned());
        violations.extend(closing.left.iter().cloned());
        for fault in faults.iter().filter(|f| !f.recovery.silent.is_empty()) {
            let silent = &fault.recovery.silent;
            violations
                .push(format!("sessions {silent:?} had no delivery in 30 s after {}", fault.kind.word()));
        }
        let history = verdict
            .offences
            .first()
            .map(|offence| history::of(offence.name, &closing.ledger, &faults, start, seed));
        Self {
            version: env!("CARGO_PKG_VERSION"),
            redis: servers.version.clone(),
            topology: args.topology.word(),
            seed,
            minutes: args.minutes,
            sessions: args.sessions,
            producers: args.producers,
            subscribers: args.subscribers,
            rate: args.rate,
            min_replicas: args.topology != super::args::Topology::Single && !args.no_min_replicas,
            appendfsync: args.appendfsync.clone(),
            counts: verdict.counts.clone(),
            dead_reasons: closing.dead_reasons.clone(),
            recovery: recovered(&faults),
            faults,
            violations,
            history: history.unwrap_or_default(),
        }
    }

    /// For people.
    pub fn lines(&self) -> Vec<String> {
        let c = &self.counts;
        let dead: Vec<String> = self.dead_reasons.iter().map(|(why, n)| format!("{n} {why}")).collect();
        let mut lines = vec![
            String::new(),
            format!("{:<22}{}", "acknowledged", c.acknowledged),
            format!("{:<22}{}", "delivered", c.delivered),
            format!("{:<22}{} (0 of what was acknowledged may be)", "lost", c.lost),
            format!("{:<22}{}", "out of order", c.out_of_order),
            format!(
                "{:<22}{} (acknowledged by a master that was replaced)",
                "lost by replication", c.lost_by_replication
            ),
            format!(
                "{:<22}{} of {} at most, {} claims",
                "came again", c.duplicates, c.duplicates_bound, c.claims
            ),
            format!("{:<22}{}", "twice under one claim", c.repeated),
            format!("{:<22}{}", "came though refused", c.phantoms),
            format!("{:<22}{}", "refused", c.refused),
            format!("{:<22}{}", "outcome not told", c.untold),
            format!("{:<22}{}", "expired", c.expired),
            format!("{:<22}{} ({})", "dead letters", c.dead, dead.join("; ")),
            String::new(),
            format!(
                "{:<18}{:>6}{:>10}{:>16}{:>16}{:>8}{:>6}  counted from",
                "seconds until", "count", "outage", "first delivery", "all sessions", "target", "lost"
            ),
        ];
        let pair = |median: Option<f64>, max: Option<f64>| match (median, max) {
            (Some(median), Some(max)) => format!("{median:.2} / {max:.2}"),
            _ => "-".to_owned(),
        };
        for r in &self.recovery {
            lines.push(format!(
                "{:<18}{:>6}{:>10.2}{:>16}{:>16}{:>8}{:>6}  {}",
                r.fault.word(),
                r.count,
                r.outage_median,
                pair(r.first_median, r.first_max),
                pair(r.all_median, r.all_max),
                format!("{}{:.0}", if r.met { "" } else { "! " }, r.target),
                r.lost_by_replication,
                r.starts
            ));
        }
        lines.push("(median / longest; outage: from the fault's begin to where recovery is counted from; lost: by replication)".to_owned());
        lines.push(super::NO_CLOCK.to_owned());
        lines.push(String::new());
        lines.extend(self.history.iter().cloned());
        match self.violations.len() {
            0 => lines.push(format!("seed {}: nothing lost, nothing out of order, nothing left", self.seed)),
            n => {
                lines.extend(self.violations.iter().take(20).map(|v| format!("FAILED {v}")));
                lines.push(format!("seed {}: {n} violations", self.seed));
            }
        }
        lines
    }
}
