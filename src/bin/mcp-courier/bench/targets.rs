//! What the project wants to reach, and how far it got: ratios to baselines of the same run, and absolute limits.

use serde::Serialize;

use super::row::{OURS, Row};
use super::table::number;

/// One thing to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    AtMost,
    AtLeast,
}

/// A target with what was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    target: &'static str,
    unit: &'static str,
    must: f64,
    aim: f64,
    at_most: bool,
    measured: Option<f64>,
    /// `aim`, `must`, or `short`.
    pub reached: &'static str,
}

impl Judged {
    fn new(
        target: &'static str,
        unit: &'static str,
        (bound, must, aim): (Bound, f64, f64),
        measured: Option<f64>,
    ) -> Self {
        let within = |limit: f64| match bound {
            Bound::AtMost => measured.is_some_and(|m| m <= limit),
            Bound::AtLeast => measured.is_some_and(|m| m >= limit),
        };
        let reached = match (within(aim), within(must)) {
            (true, _) => "aim",
            (false, true) => "must",
            (false, false) => "short",
        };
        Self { target, unit, must, aim, at_most: bound == Bound::AtMost, measured, reached }
    }

    pub fn is_short(&self) -> bool {
        self.reached == "short"
    }

    /// Target, must, aim, measured, met or short.
    pub fn cells(&self) -> [String; 5] {
        let sign = if self.at_most { "≤" } else { "≥" };
        let with_unit = |value: f64| format!("{}{}", number(value), self.unit);
        [
            self.target.to_owned(),
            format!("{sign} {}", with_unit(self.must)),
            format!("{sign} {}", with_unit(self.aim)),
            self.measured.map_or("not measured".to_owned(), with_unit),
            match self.reached {
                "aim" => "met, aim reached".to_owned(),
                "must" => "met".to_owned(),
                _ => "short".to_owned(),
            },
        ]
    }
}

/// Judges rows. What was not measured is short.
pub fn judge(rows: &[Row]) -> Vec<Judged> {
    use Bound::{AtLeast, AtMost};
    let main = rows.iter().filter(|r| !r.scenario.starts_with("growth"));
    let most = main.filter_map(|r| r.sessions).max().unwrap_or(0);
    let find = |scenario: &str, fits: &dyn Fn(&Row) -> bool| {
        rows.iter().find(|r| r.scenario == scenario && r.system == OURS && fits(r))
    };
    let ours = |scenario: &str| find(scenario, &|_| true);
    let many = |r: &Row| r.sessions == Some(most) && r.pushers.is_none_or(|p| p > 1);
    let closed = |r: &Row| many(r) && r.waits_for.as_deref() == Some("delivery");
    let value = |row: Option<&Row>, name: &str| row.and_then(|r| r.value(name));
    let ratio = |row: Option<&Row>, name: &str| row.and_then(|r| r.ratio(name));
    let grown = |scenario: &str| {
        find(scenario, &|r| r.waits_for.as_deref() != Some("answer") && r.pushers != Some(1))
            .or_else(|| ours(scenario))
    };
    let latency = find("latency", &|r| r.sessions == Some(most));
    let throughput = find("throughput", &closed);
    // A drain is of sessions that hold many messages each: one in all would be a queue, one each would be claims.
    let drain = find("drain", &|r| r.sessions.is_some_and(|n| n > 1)).or_else(|| ours("drain"));
    let idle = ours("idle");
    let per_second_less = ratio(grown("growth-throughput"), "per_second").map(|r| 1.0 / r);
    let slowest = |scenario| Some(ours(scenario)?.values.get("seconds")?.max);
    vec![
        Judged::new(
            "connections of a process with the most sessions",
            "",
            (AtMost, 2.0, 2.0),
            value(idle, "connections"),
        ),
        Judged::new(
            "idle latency p50, most sessions, against BRPOP",
            " x",
            (AtMost, 1.5, 1.2),
            ratio(latency, "p50_us"),
        ),
        Judged::new(
            "throughput, 64 pushers, most sessions, against BRPOP",
            " x",
            (AtLeast, 1.5, 2.5),
            ratio(throughput, "per_second"),
        ),
        Judged::new(
            "throughput, 64 pushers, most sessions, against redis-benchmark",
            " x",
            (AtLeast, 0.7, 1.2),
            ratio(find("lpush", &many), "per_second"),
        ),
        Judged::new(
            "drain of preloaded sessions, against a consumer group",
            " x",
            (AtLeast, 0.4, 0.8),
            ratio(drain, "per_second"),
        ),
        Judged::new(
            "Redis CPU per message, 64 pushers, against BRPOP",
            " x",
            (AtMost, 1.5, 1.0),
            ratio(throughput, "redis_us"),
        ),
        Judged::new(
            "an idle session in Redis",
            " B",
            (AtMost, 120.0, 100.0),
            value(idle, "redis_bytes_per_session"),
        ),
        Judged::new(
            "an idle session in the process",
            " B",
            (AtMost, 500.0, 250.0),
            value(idle, "process_bytes_per_session"),
        ),
        Judged::new("keys of the idle sessions", "", (AtMost, 0.0, 0.0), value(idle, "extra_keys")),
        Judged::new("channels of the idle sessions", "", (AtMost, 0.0, 0.0), value(idle, "extra_channels")),
        Judged::new("tasks of the idle sessions", "", (AtMost, 0.0, 0.0), value(idle, "extra_tasks")),
        Judged::new(
            "resident memory of the process",
            " MiB",
            (AtMost, 120.0, 120.0),
            value(idle, "process_mib"),
        ),
        Judged::new("claim of all sessions", " s", (AtMost, 1.0, 0.3), value(ours("claim"), "claim_seconds")),
        Judged::new(
            "claim of all sessions whose owners were lost",
            " s",
            (AtMost, 1.0, 0.3),
            value(ours("reclaim"), "claim_seconds"),
        ),
        Judged::new(
            "resync after both connections were cut",
            " s",
            (AtMost, 1.0, 0.3),
            value(ours("resync"), "seconds"),
        ),
        Judged::new("CPU of the idle process", " %", (AtMost, 1.0, 0.1), value(idle, "process_percent")),
        Judged::new(
            "CPU of Redis for the idle process",
            " %",
            (AtMost, 1.0, 0.1),
            value(idle, "redis_net_percent"),
        ),
        Judged::new(
            "latency p50, most sessions, against few",
            " x",
            (AtMost, 1.2, 1.05),
            ratio(ours("growth-latency"), "p50_us"),
        ),
        Judged::new("throughput, few sessions, against most", " x", (AtMost, 1.2, 1.05), per_second_less),
        Judged::new(
            "doorbell connection cut, slowest delivery",
            " s",
            (AtMost, 5.0, 2.0),
            slowest("doorbell-cut"),
        ),
        Judged::new(
            "doorbell never heard, slowest delivery",
            " s",
            (AtMost, 5.0, 2.0),
            slowest("doorbell-unheard"),
        ),
    ]
}

/// The judgement for people.
pub fn lines(judged: &[Judged]) -> Vec<String> {
    let line = |cells: [String; 5]| {
        let [target, must, aim, measured, reached] = cells;
        format!("{target:<64}{must:>12}{aim:>12}{measured:>14}   {reached}")
    };
    let head = ["target", "must", "aim", "measured", ""].map(str::to_owned);
    std::iter::once(line(head)).chain(judged.iter().map(|j| line(j.cells()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measures::Measures;

    fn row(row: Row, name: &str, ours: f64, theirs: f64) -> Row {
        let sample = |value| [Measures::from([(name.to_owned(), value)])];
        row.filled(&sample(ours)).against("raw", &sample(ours), &sample(theirs))
    }

    #[test]
    fn what_was_not_measured_is_short() {
        assert!(judge(&[]).iter().all(Judged::is_short));
    }

    #[test]
    fn a_bound_holds_on_its_side() {
        let latency = |us| row(Row::new("latency", OURS).sessions(100).pushers(1), "p50_us", us, 100.0);
        for (us, reached) in [(110.0, "aim"), (140.0, "must"), (160.0, "short")] {
            assert_eq!(judge(&[latency(us)])[1].reached, reached);
        }
        let rate = |rate| {
            let row_of = Row::new("throughput", OURS).sessions(100).pushers(64).waits_for("delivery");
            row(row_of, "per_second", rate, 100.0)
        };
        for (per_second, reached) in [(300.0, "aim"), (160.0, "must"), (140.0, "short")] {
            assert_eq!(judge(&[rate(per_second)])[2].reached, reached);
        }
    }

    /// Fewer sessions are easier: they are not what is judged.
    #[test]
    fn the_most_sessions_are_judged() {
        let latency = |n, us| row(Row::new("latency", OURS).sessions(n).pushers(1), "p50_us", us, 100.0);
        assert_eq!(judge(&[latency(1, 100.0), latency(1000, 170.0)])[1].reached, "short");
    }
}
