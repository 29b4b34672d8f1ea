//! What must hold of the messages at the end.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::faults::Window;
use super::ledger::{Entry, Ledger};
use super::message::{Fate, Name, SHORT};

/// Most messages that come again when a session changes hands: a batch is fetched at a time, and acked at its end.
const BATCH: u64 = 64;
/// Clocks are read a little before and after what they stand for.
const SLACK_US: u64 = 50_000;

/// What was found out about a message after the run, from the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It is a dead letter, for this reason.
    Dead(String),
    /// Its id is known as pushed: the servers have, or had, the message itself.
    Known,
    /// Nothing of it is there.
    Nothing,
}

/// Everything that was counted.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Counts {
    /// Pushes that were acknowledged.
    pub acknowledged: u64,
    /// Acknowledged, and delivered at least once.
    pub delivered: u64,
    /// Deliveries beyond the first.
    pub duplicates: u64,
    /// As many of them could be explained: 64 for each claim of a session beyond the first, and what was delivered while
    /// a master was replaced whose replica may not have had the acks.
    pub duplicates_bound: u64,
    /// Pushes that were refused: nothing was stored.
    pub refused: u64,
    /// Deliveries of pushes whose producer died before it could tell.
    pub untold: u64,
    pub expired: u64,
    pub dead: u64,
    /// Acknowledged by a master whose writes did not reach the replica that took its place.
    pub lost_by_replication: u64,
    pub lost: u64,
    pub out_of_order: u64,
    /// Refused or never pushed, and delivered.
    pub phantoms: u64,
    /// Delivered twice under one claim.
    pub repeated: u64,
    pub claims: u64,
}

/// A message that is not as promised.
#[derive(Clone, Debug)]
pub struct Offence {
    pub name: Name,
    pub what: String,
}

#[derive(Clone, Debug, Default)]
pub struct Verdict {
    pub counts: Counts,
    pub offences: Vec<Offence>,
    /// Not about one message.
    pub others: Vec<String>,
    /// For each window, what was lost by replication in it.
    pub lost_in: Vec<u64>,
}

/// Messages that must be asked about: acknowledged, not delivered, and not simply expired.
pub fn doubtful(ledger: &Ledger, seed: u64) -> Vec<Name> {
    let streams = streams(ledger);
    let missing = ledger.entries.iter().filter(|e| e.acked.is_some() && e.delivered.is_empty());
    missing.filter(|e| !has_expired(e, &streams, seed)).map(|e| e.name).collect()
}

type Streams<'a> = BTreeMap<(u32, u32), Vec<&'a Entry>>;

/// By session and producer, in the order of their pushes.
fn streams(ledger: &Ledger) -> Streams<'_> {
    let mut streams: Streams<'_> = BTreeMap::new();
    for entry in &ledger.entries {
        streams.entry((entry.name.session, entry.name.producer)).or_default().push(entry);
    }
    streams.values_mut().for_each(|stream| stream.sort_by_key(|e| e.name));
    streams
}

/// Whether a message that was not delivered can have expired: its time is short, and nothing that was pushed after it was
/// delivered while it was still good.
fn has_expired(entry: &Entry, streams: &Streams<'_>, seed: u64) -> bool {
    let Some((begun, _)) = entry.acked.filter(|_| entry.name.fate(seed) == Fate::Short) else { return false };
    let good_until = begun + SHORT.as_micros() as u64;
    let stream = streams.get(&(entry.name.session, entry.name.producer)).map_or(&[][..], Vec::as_slice);
    let later = stream.iter().filter(|e| e.name > entry.name && e.acked.is_some());
    later.filter_map(|e| e.first()).all(|at| at + SLACK_US > good_until)
}

/// Judges everything.
///
/// A loss is the servers' own when, and only when, both hold: the push was acknowledged between the beginning of a fault
/// that replaced a master (less the lag that a replica may have) and its end; and the server that has the session now does
/// not know the id. A push stores the message and marks its id in one script, which replicates as one transaction: where
/// the mark is, the message was, and its loss is ours. The mark outlives the run.
pub fn judge(ledger: &Ledger, found: &HashMap<Name, Found>, windows: &[Window], seed: u64) -> Verdict {
    let streams = streams(ledger);
    let mut verdict = Verdict { lost_in: vec![0; windows.len()], ..Verdict::default() };
    let in_window = |at: u64| windows.iter().any(|w| (w.from..=w.to).contains(&at));
    for entry in &ledger.entries {
        let counts = &mut verdict.counts;
        let mut offend = |what: String| verdict.offences.push(Offence { name: entry.name, what });
        counts.refused += u64::from(entry.refused.is_some());
        let delivered = !entry.delivered.is_empty();
        let Some((_, acked)) = entry.acked else {
            if let (true, Some((_, _, why))) = (delivered, &entry.refused) {
                counts.phantoms += 1;
                offend(format!("delivered, though its push was refused: {why}"));
            } else if delivered {
                counts.untold += 1;
                let next = Name { seq: entry.name.seq + 1, ..entry.name };
                if ledger.get(next).is_some_and(|e| e.begun().is_some()) {
                    counts.phantoms += 1;
                    offend("delivered, never acknowledged, and its producer went on".to_owned());
                }
            }
            continue;
        };
        counts.acknowledged += 1;
        if delivered {
            counts.delivered += 1;
            continue;
        }
        match found.get(&entry.name) {
            None if has_expired(entry, &streams, seed) => counts.expired += 1,
            Some(Found::Dead(_)) => counts.dead += 1,
            Some(Found::Nothing) if in_window(acked) => {
                counts.lost_by_replication += 1;
                // Windows may touch: the later one is the one that lost it.
                let at = windows.iter().rposition(|w| (w.from..=w.to).contains(&acked));
                verdict.lost_in[at.unwrap_or(0)] += 1;
            }
            other => {
                counts.lost += 1;
                let why = match other {
                    Some(Found::Known) => "its id is known, so it was stored where its session is now",
                    Some(Found::Nothing) => "its id is not known, and no master was replaced at that time",
                    _ => "nothing was asked about it",
                };
                offend(format!("acknowledged, and never delivered: {why}"));
            }
        }
    }
    order(&streams, &mut verdict);
    duplicates(ledger, &in_window, &mut verdict);
    verdict.others.extend(ledger.wrong.iter().map(|what| format!("delivered wrong: {what}")));
    // The first one first.
    verdict.offences.sort_by_key(|o| ledger.get(o.name).and_then(Entry::begun));
    verdict
}

/// First deliveries come in the order of the pushes.
fn order(streams: &Streams<'_>, verdict: &mut Verdict) {
    for stream in streams.values() {
        let mut high: Option<(u64, Name)> = None;
        for entry in stream {
            let Some(first) = entry.first() else { continue };
            if let Some((at, before)) = high.filter(|&(at, _)| first < at) {
                verdict.counts.out_of_order += 1;
                let ahead = (at - first) / 1000;
                let what = format!("first delivered {ahead} ms before {before}, which was pushed earlier");
                verdict.offences.push(Offence { name: entry.name, what });
            } else if entry.acked.is_some() {
                // One without an answer may have been stored at any time.
                high = Some((first, entry.name));
            }
        }
    }
}

fn duplicates(ledger: &Ledger, in_window: &dyn Fn(u64) -> bool, verdict: &mut Verdict) {
    #[derive(Default)]
    struct Session {
        claims: u64,
        again: u64,
        in_windows: u64,
    }
    let mut sessions: BTreeMap<u32, Session> = BTreeMap::new();
    for turn in ledger.turns.iter().filter(|t| t.claim) {
        sessions.entry(turn.session).or_default().claims += 1;
    }
    for entry in &ledger.entries {
        let session = sessions.entry(entry.name.session).or_default();
        session.again += (entry.delivered.len() as u64).saturating_sub(1);
        session.in_windows += entry.delivered.iter().filter(|t| in_window(t.at)).count() as u64;
        let mut seen = Vec::new();
        for taken in &entry.delivered {
            if seen.contains(&(taken.who, taken.epoch)) && !in_window(taken.at) {
                verdict.counts.repeated += 1;
                let what = format!("delivered twice under claim {}", taken.epoch);
                verdict.offences.push(Offence { name: entry.name, what });
            }
            seen.push((taken.who, taken.epoch));
        }
    }
    for (number, session) in sessions {
        let bound = BATCH * session.claims.saturating_sub(1) + session.in_windows;
        verdict.counts.claims += session.claims;
        verdict.counts.duplicates += session.again;
        verdict.counts.duplicates_bound += bound;
        if session.again > bound {
            let what =
                format!("session {number}: {} messages came again, at most {bound} may", session.again);
            verdict.others.push(what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::Role;
    use super::super::lines::Said;
    use super::*;

    const WHO: (Role, u32, u32) = (Role::Subscriber, 0, 0);
    const SEED: u64 = 1;

    /// The first so many names that the sink takes at once.
    fn plain(count: usize) -> Vec<Name> {
        let names = (0..).map(|seq| Name { session: 0, producer: 0, life: 0, seq });
        names.filter(|n| n.fate(SEED) == Fate::Plain).take(count).collect()
    }

    fn acked(ledger: &mut Ledger, name: Name, at: u64) {
        ledger.hear(WHO, Said::Acked { name, begun: at - 1, at });
    }

    fn delivered(ledger: &mut Ledger, name: Name, at: u64, epoch: u64) {
        ledger.hear(WHO, Said::Delivered { name, at, attempt: 1, epoch });
    }

    fn judged(ledger: &Ledger, found: &[(Name, Found)], windows: &[Window]) -> Verdict {
        judge(ledger, &found.iter().cloned().collect(), windows, SEED)
    }

    #[test]
    fn a_loss_is_the_servers_only_without_a_trace_and_within_a_failover() {
        let mut ledger = Ledger::default();
        let name = plain(1)[0];
        acked(&mut ledger, name, 100);
        let window = [Window { from: 50, to: 150 }];
        assert_eq!(doubtful(&ledger, SEED), [name]);
        let lost = |found: Found, windows: &[Window]| {
            let counts = judged(&ledger, &[(name, found)], windows).counts;
            (counts.lost, counts.lost_by_replication, counts.dead)
        };
        assert_eq!(lost(Found::Nothing, &window), (0, 1, 0));
        assert_eq!(lost(Found::Nothing, &[]), (1, 0, 0));
        assert_eq!(lost(Found::Nothing, &[Window { from: 101, to: 150 }]), (1, 0, 0));
        assert_eq!(lost(Found::Known, &window), (1, 0, 0));
        assert_eq!(lost(Found::Dead("rejected".into()), &[]), (0, 0, 1));
    }

    #[test]
    fn first_deliveries_are_held_against_the_order_of_pushes() {
        let mut ledger = Ledger::default();
        let names = plain(3);
        for (n, &name) in names.iter().enumerate() {
            acked(&mut ledger, name, 100 + n as u64);
        }
        delivered(&mut ledger, names[0], 200, 1);
        delivered(&mut ledger, names[2], 210, 1);
        delivered(&mut ledger, names[1], 220, 1);
        let verdict = judged(&ledger, &[], &[]);
        assert_eq!((verdict.counts.out_of_order, verdict.offences[0].name), (1, names[2]));
        // Whatever comes again changes nothing.
        let mut ledger = Ledger::default();
        for (n, &name) in names.iter().enumerate() {
            acked(&mut ledger, name, 100 + n as u64);
            delivered(&mut ledger, name, 200 + n as u64, 1);
        }
        delivered(&mut ledger, names[0], 300, 2);
        let verdict = judged(&ledger, &[], &[]);
        assert_eq!((verdict.counts.out_of_order, verdict.counts.duplicates), (0, 1));
    }

    #[test]
    fn duplicates_need_a_claim_and_never_come_twice_under_one() {
        let name = plain(1)[0];
        let mut ledger = Ledger::default();
        acked(&mut ledger, name, 100);
        delivered(&mut ledger, name, 200, 1);
        delivered(&mut ledger, name, 300, 1);
        let verdict = judged(&ledger, &[], &[]);
        assert_eq!((verdict.counts.repeated, verdict.others.len()), (1, 1), "{verdict:?}");
        for epoch in [1, 2] {
            ledger.hear(WHO, Said::Claimed { session: 0, epoch, at: epoch });
        }
        assert_eq!(judged(&ledger, &[], &[]).others.len(), 0);
        let verdict = judged(&ledger, &[], &[Window { from: 0, to: 400 }]);
        assert_eq!(verdict.counts.repeated, 0, "acks of that time may not have been replicated");
    }

    #[test]
    fn what_was_refused_must_not_come_and_what_is_untold_may_only_be_the_last() {
        let names = plain(3);
        let mut ledger = Ledger::default();
        ledger.hear(WHO, Said::Refused { name: names[0], begun: 1, at: 2, why: "OOM".into() });
        delivered(&mut ledger, names[0], 5, 1);
        delivered(&mut ledger, names[1], 6, 1);
        let counts = judged(&ledger, &[], &[]).counts;
        assert_eq!((counts.phantoms, counts.untold, counts.refused), (1, 1, 1));
        acked(&mut ledger, Name { seq: names[1].seq + 1, ..names[1] }, 7);
        assert_eq!(judged(&ledger, &[], &[]).counts.phantoms, 2);
    }

    #[test]
    fn a_short_message_that_was_passed_over_while_it_was_good_is_lost_and_not_expired() {
        let short = (0..).map(|seq| Name { session: 0, producer: 0, life: 0, seq });
        let short = short.into_iter().find(|n| n.fate(SEED) == Fate::Short).expect("one");
        let later = Name { seq: short.seq + 1, ..short };
        let good = SHORT.as_micros() as u64;
        for (at, expired) in [(good + 1_000_000, true), (good / 2, false)] {
            let mut ledger = Ledger::default();
            acked(&mut ledger, short, 100);
            acked(&mut ledger, later, 200);
            delivered(&mut ledger, later, at, 1);
            assert_eq!(doubtful(&ledger, SEED).is_empty(), expired);
            let counts = judged(&ledger, &[], &[]).counts;
            assert_eq!((counts.expired, counts.lost), (u64::from(expired), u64::from(!expired)));
        }
    }
}
