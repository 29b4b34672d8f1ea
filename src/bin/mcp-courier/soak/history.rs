//! What happened to one message, in the order of time.

use super::clock;
use super::faults::Fault;
use super::ledger::{Entry, Ledger, Who};
use super::message::Name;

/// What is told from before and after.
const AROUND_US: u64 = 3_000_000;

/// Lines with seconds since `start`.
pub fn of(name: Name, ledger: &Ledger, faults: &[Fault], start: u64, seed: u64) -> Vec<String> {
    let Some(entry) = ledger.get(name) else { return vec![format!("nothing is known of {name}")] };
    let mut lines: Vec<(u64, String)> = Vec::new();
    tell(entry, "", &mut lines);
    for (step, word) in [(-1, "the one before, "), (1, "the next one, ")] {
        let neighbour = name.seq.checked_add_signed(step).map(|seq| Name { seq, ..name });
        if let Some(entry) = neighbour.and_then(|name| ledger.get(name)) {
            tell(entry, &format!("{word}{}: ", entry.name), &mut lines);
        }
    }
    let from = lines.iter().map(|l| l.0).min().unwrap_or(0).saturating_sub(AROUND_US);
    let to = lines.iter().map(|l| l.0).max().unwrap_or(0) + AROUND_US;
    for turn in ledger.turns.iter().filter(|t| t.session == name.session && (from..=to).contains(&t.at)) {
        lines.push((turn.at, format!("session {}: {}, {}", turn.session, turn.what, shown(turn.who))));
    }
    for fault in faults.iter().filter(|f| f.begin <= to && f.end >= from) {
        lines.push((fault.begin, format!("fault {} begins: {}", fault.kind.word(), fault.note)));
        lines.push((fault.over, format!("fault {} is over", fault.kind.word())));
        lines.push((fault.end, format!("fault {}: all is in its place", fault.kind.word())));
    }
    lines.sort();
    let head = format!("message {name}: fate {:?}, {} bytes", name.fate(seed), name.body(seed).len());
    let told = lines
        .into_iter()
        .map(|(at, what)| format!("  {:>10.3} s  {what}", clock::between(start, at).as_secs_f64()));
    std::iter::once(head).chain(told).collect()
}

fn tell(entry: &Entry, before: &str, lines: &mut Vec<(u64, String)>) {
    if let Some((begun, at)) = entry.acked {
        lines.push((begun, format!("{before}push begun")));
        lines.push((at, format!("{before}push acknowledged")));
    }
    if let Some((begun, at, why)) = &entry.refused {
        lines.push((*begun, format!("{before}push begun")));
        lines.push((*at, format!("{before}push refused: {why}")));
    }
    for (at, who, attempt) in &entry.failed {
        lines.push((*at, format!("{before}failed on purpose at attempt {attempt}, {}", shown(*who))));
    }
    for taken in &entry.delivered {
        let what = format!("delivered, attempt {}, claim {}", taken.attempt, taken.epoch);
        lines.push((taken.at, format!("{before}{what}, {}", shown(taken.who))));
    }
}

fn shown((role, number, life): Who) -> String {
    format!("{} {number}.{life}", role.word())
}
