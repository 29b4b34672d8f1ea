//! Processes that serve sessions are killed by SIGKILL, again and again, in the middle of everything.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use mcp_courier::{Courier, Push};
use serde_json::Value;

use crate::support::cli::Running;
use crate::support::fixture::{Fixture, Recorder, session, wait_pending};
use crate::support::wait::wait_until;

const SESSIONS: usize = 20;
const MESSAGES: usize = 10_000;
const PROCESSES: usize = 2;
/// Most messages that an owner has delivered and not acked.
const BATCH: u64 = 64;

/// What the processes of one slot printed, life by life.
#[derive(Default)]
struct Printed {
    lives: Vec<Vec<Value>>,
    kills: usize,
}

/// One slot: a `listen` process, killed after some lines, and the next one in its place, until `quiet` is told.
async fn slot(
    url: String,
    prefix: String,
    sessions: Vec<String>,
    done: tokio::sync::watch::Receiver<bool>,
) -> Printed {
    // Kills may meet the same head again and again: it must not end as a dead letter, however busy the machine is.
    let listen = ["listen", "--delay", "200us", "--max-attempts", "1000"];
    let mut args = vec!["--url", &url, "--prefix", &prefix, "--json"];
    args.extend(listen);
    for s in &sessions {
        args.extend(["--session", s]);
    }
    let mut printed = Printed::default();
    let mut done = done;
    loop {
        let mut process = Running::start(&args);
        // By the clock, not by the line: a kill must be able to hit a process that is still starting.
        let life = Duration::from_millis(fastrand::u64(100..600));
        let ended = tokio::select! {
            () = tokio::time::sleep(life) => false,
            _ = done.wait_for(|done| *done) => true,
        };
        if ended {
            process.sigterm().await;
        } else {
            process.sigkill().await;
            printed.kills += 1;
        }
        let mut lines = Vec::new();
        for line in process.rest(Duration::from_secs(30)).await {
            match serde_json::from_str(&line) {
                Ok(line) => lines.push(line),
                Err(e) => assert!(
                    !ended && e.is_eof(),
                    "only the last line of a killed process may be torn: {line}"
                ),
            }
        }
        printed.lives.push(lines);
        if ended {
            // It may have been told before its first instruction.
            let status = process.wait(Duration::from_secs(10)).await;
            assert!(status.success() || status.signal() == Some(15), "{status}: {}", process.stderr());
            return printed;
        }
    }
}

/// The main promise: 10,000 messages over 20 sessions, whose processes are killed every few hundred milliseconds. Every
/// message is printed, first appearances are in order, and what is printed twice was near a kill.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_messages_survive_processes_that_are_killed_all_the_time() {
    let mut t = Fixture::new("kills").await;
    if t.server.url().starts_with("memory:") {
        eprintln!("skipped: other processes do not reach memory://");
        return;
    }
    let worker = Courier::builder().prefix(&t.prefix).connect(t.server.url()).await.expect("connected");
    let (finished, done) = tokio::sync::watch::channel(false);
    let mut slots = tokio::task::JoinSet::new();
    for p in 0..PROCESSES {
        let sessions = (p..SESSIONS).step_by(PROCESSES).map(|n| format!("s{n}")).collect();
        slots.spawn(slot(t.server.url().to_owned(), t.prefix.clone(), sessions, done.clone()));
    }
    for n in 0..MESSAGES / SESSIONS {
        for s in 0..SESSIONS {
            let body = format!("{{\"method\":\"notifications/message\",\"params\":{{\"n\":{n}}}}}");
            worker.push(Push::new(&session(&format!("s{s}")), body)).await.expect("queued");
        }
        // About as fast as it is read, so that the kills fall into the middle of it.
        tokio::time::sleep(Duration::from_millis(8)).await;
    }
    for s in 0..SESSIONS {
        wait_pending(&worker, &session(&format!("s{s}")), 0).await;
    }
    finished.send_replace(true);

    let (mut kills, mut repeated) = (0, 0);
    let mut next: HashMap<String, u64> = HashMap::new();
    while let Some(printed) = slots.join_next().await {
        let printed = printed.expect("no panic");
        kills += printed.kills;
        for life in printed.lives {
            let mut in_this_life: HashMap<String, u64> = HashMap::new();
            for line in life {
                let n = line["notification"]["params"]["n"].as_u64().expect("a notification");
                let s = line["session"].as_str().expect("text").to_owned();
                let next = next.entry(s.clone()).or_default();
                match in_this_life.insert(s.clone(), n) {
                    // A process begins with what was not acked: at most a batch before what comes next.
                    None => assert!(
                        n <= *next && *next - n <= BATCH,
                        "{s}: a life begins with {n}, not with {next}"
                    ),
                    Some(last) => assert_eq!(n, last + 1, "{s}: in order, nothing twice in one life"),
                }
                if n < *next {
                    repeated += 1;
                } else {
                    *next = n + 1;
                }
            }
        }
    }
    assert!(kills >= 10, "{kills} kills");
    for s in 0..SESSIONS {
        assert_eq!(next.get(&format!("s{s}")), Some(&((MESSAGES / SESSIONS) as u64)), "s{s}: all of it");
    }
    println!("{kills} kills, {repeated} of {MESSAGES} printed twice");
    for s in 0..SESSIONS {
        let stats = worker.stats(&session(&format!("s{s}"))).await.expect("stats");
        assert_eq!((stats.dead, stats.pending), (0, 0), "s{s}");
    }
    let dead: Vec<_> = crate::support::leaks::keys(&mut t.raw, &t.prefix).await;
    assert!(dead.iter().all(|k| !k.name.contains(":dead:") && !k.name.contains(":q:")), "{dead:?}");
    t.finish().await;
}

/// Two processes stand still, one in the middle of a delivery, past their leases; another one takes their sessions, and
/// they go on: what they do then changes nothing for the new owner. They say that they were replaced, and end.
#[tokio::test(flavor = "multi_thread")]
async fn processes_that_stood_still_past_their_lease_have_no_effect_on_the_new_owner() {
    let t = Fixture::new("sigstop").await;
    if t.server.url().starts_with("memory:") {
        eprintln!("skipped: other processes do not reach memory://");
        return;
    }
    let ids = [["a", "b"], ["c", "d"]];
    let body = |n: usize| format!("{{\"method\":\"notifications/message\",\"params\":{{\"n\":{n}}}}}");
    let courier = t.courier().await;
    let mut stopped = Vec::new();
    for ids in ids {
        let args = ["--url", t.server.url(), "--prefix", &t.prefix, "--json", "listen", "--delay", "2s"];
        let of_sessions = ids.iter().flat_map(|id| ["--session", id]);
        stopped.push(Running::start(&args.into_iter().chain(of_sessions).collect::<Vec<_>>()));
    }
    for id in ids.concat() {
        wait_until("its owner", Duration::from_secs(15), || async {
            t.token(id).await.map(drop).ok_or_else(|| id.to_owned())
        })
        .await;
    }
    // The first one of each session is on its way when they stop: its line takes two seconds.
    for id in ids.concat() {
        for n in 0..3 {
            courier.push(Push::new(&session(id), body(n))).await.expect("queued");
        }
    }
    for process in &stopped {
        process.sigstop().await;
    }
    wait_until("their leases to end", Duration::from_secs(40), || async {
        let alive = courier.nodes().await.expect("nodes").iter().filter(|n| n.alive).count();
        if alive == 0 { Ok(()) } else { Err(format!("{alive} alive")) }
    })
    .await;
    let sink = Recorder::new();
    for id in ids.concat() {
        courier.subscribers().ensure_running(&session(id), sink.clone()).await.expect("claimed");
    }
    sink.wait_for(12).await;
    for process in &stopped {
        process.sigcont().await;
    }
    // What they begin with now: acks, heartbeats, further deliveries. Meanwhile the new owner is served.
    for n in 3..6 {
        for id in ids.concat() {
            courier.push(Push::new(&session(id), body(n))).await.expect("queued");
        }
    }
    sink.wait_for(24).await;
    for process in &mut stopped {
        let lines = process.rest(Duration::from_secs(30)).await;
        for line in lines {
            let line: Value = serde_json::from_str(&line).expect("a line");
            assert_eq!(line["notification"]["params"]["n"], 0, "only what was on its way: {line}");
        }
        let status = process.wait(Duration::from_secs(10)).await;
        assert_eq!(status.code(), Some(1), "{}", process.stderr());
        assert!(process.stderr().contains("claimed by another"), "{}", process.stderr());
    }
    for id in ids.concat() {
        let s = session(id);
        wait_pending(&courier, &s, 0).await;
        let seen = sink.seen();
        let of_one = seen.iter().filter(|d| d.session == s);
        let numbers: Vec<u64> = of_one
            .map(|d| {
                serde_json::from_slice::<Value>(d.body()).expect("JSON")["params"]["n"].as_u64().expect("n")
            })
            .collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5], "{id}: each once, in order");
        let owner = courier.stats(&s).await.expect("stats");
        assert!(owner.owner.is_some() && owner.owner_alive, "{id}: {owner:?}");
        assert_eq!(courier.stats(&s).await.expect("stats").dead, 0, "{id}");
    }
    assert_eq!((courier.metrics().superseded, courier.subscribers().count()), (0, 4));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}
