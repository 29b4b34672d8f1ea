//! Connections cut, scripts flushed, servers killed: under load, and everything goes on by itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mcp_courier::{Builder, Courier, Push, SessionId};

use crate::support::fixture::{Recorder, session};
use crate::support::private::{Options, private_or_skip};
use crate::support::wait::wait_until;

/// What a load did: every acknowledged push, in order, for each session.
pub struct Load {
    pub sinks: HashMap<SessionId, Recorder>,
    pub worker: Courier,
    pub owner: Courier,
    stop: Arc<AtomicBool>,
    pushers: tokio::task::JoinSet<(SessionId, Vec<(String, Instant)>)>,
}

impl Load {
    /// One pusher and one sink a session. A pusher goes on to its next message when the last one was acknowledged;
    /// a push that failed is repeated with its id.
    pub async fn start(builder: impl Fn() -> Builder, url: &str, sessions: usize) -> Self {
        let worker = builder().connect(url).await.expect("server answers");
        let owner = builder().connect(url).await.expect("server answers");
        let stop = Arc::new(AtomicBool::new(false));
        let mut load =
            Self { sinks: HashMap::new(), worker, owner, stop, pushers: tokio::task::JoinSet::new() };
        for n in 0..sessions {
            let s = session(&format!("s{n}"));
            let sink = Recorder::new();
            load.owner.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
            load.sinks.insert(s.clone(), sink);
            let (worker, stop) = (load.worker.clone(), load.stop.clone());
            load.pushers.spawn(async move {
                let mut acknowledged = Vec::new();
                let mut n = 0_u32;
                while !stop.load(Ordering::Relaxed) {
                    let body = n.to_string();
                    let id = format!("{s}-{n}").parse().expect("valid");
                    match worker.push(Push::new(&s, body.clone()).id(id)).await {
                        Ok(_) => {
                            acknowledged.push((body, Instant::now()));
                            n += 1;
                        }
                        Err(e) => assert!(e.is_retryable(), "{e}"),
                    }
                }
                (s, acknowledged)
            });
        }
        load
    }

    pub fn delivered(&self) -> usize {
        self.sinks.values().map(|sink| sink.seen().len()).sum()
    }

    pub async fn wait_delivered(&self, more: usize) {
        let from = self.delivered();
        wait_until(&format!("{more} more deliveries"), Duration::from_secs(30), || async {
            let now = self.delivered() - from;
            if now >= more { Ok(()) } else { Err(format!("{now}: {:?}", self.owner.health())) }
        })
        .await;
    }

    /// Ends the load and checks it: nothing lost, first appearances in order. Answers pushes and duplicates.
    pub async fn finish(self) -> (usize, usize) {
        let (pushed, repeated, _) = self.finish_with_losses(None).await;
        (pushed, repeated)
    }

    /// The same, where a failover between two moments may have lost what was acknowledged between them (replication is
    /// asynchronous). Answers how many were lost in third place.
    pub async fn finish_with_losses(mut self, between: Option<(Instant, Instant)>) -> (usize, usize, usize) {
        self.stop.store(true, Ordering::Relaxed);
        let (mut pushed, mut repeated, mut lost) = (0, 0, 0);
        while let Some(done) = self.pushers.join_next().await {
            let (s, acknowledged) = done.expect("no panic");
            let sink = &self.sinks[&s];
            wait_until(&format!("everything of {s}"), Duration::from_secs(20), || async {
                if acknowledged.last().is_none_or(|(last, _)| sink.bodies().contains(last)) {
                    Ok(())
                } else {
                    Err(format!(
                        "{} of {}; {:?}",
                        sink.seen().len(),
                        acknowledged.len(),
                        self.owner.metrics()
                    ))
                }
            })
            .await;
            let mut first_seen = std::collections::HashSet::new();
            let all = sink.bodies();
            let firsts: Vec<&String> = all.iter().filter(|b| first_seen.insert(b.as_str())).collect();
            let excused = |at: &Instant| between.is_some_and(|(from, to)| *at > from && *at < to);
            let expected: Vec<&String> = acknowledged
                .iter()
                .filter(|(body, at)| first_seen.contains(body.as_str()) || !excused(at))
                .map(|(body, _)| body)
                .collect();
            let wrong = firsts.iter().zip(&expected).position(|(a, b)| a != b);
            assert!(
                wrong.is_none() && firsts.len() == expected.len(),
                "{s}: {} seen, {} expected, the first difference at {wrong:?}",
                firsts.len(),
                expected.len()
            );
            lost += acknowledged.len() - expected.len();
            pushed += acknowledged.len();
            repeated += all.len() - firsts.len();
        }
        assert_eq!(self.owner.subscribers().count(), self.sinks.len(), "no loop ended");
        self.owner.shutdown(Duration::from_secs(5)).await;
        (pushed, repeated, lost)
    }
}

fn builder() -> Builder {
    Courier::builder().dedupe(Duration::from_secs(120))
}

#[tokio::test(flavor = "multi_thread")]
async fn f28_script_flush_under_load_is_seen_by_nobody() {
    let Some(server) = private_or_skip("restart", Options::default()).await else { return };
    let mut raw = server.raw().await;
    let load = Load::start(builder, &server.url(), 8).await;
    let start = Instant::now();
    let mut flushes = 0;
    while start.elapsed() < Duration::from_secs(3) {
        redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut raw).await.expect("flushed");
        flushes += 1;
        load.wait_delivered(50).await;
    }
    let worker = load.worker.metrics();
    let (pushed, repeated) = load.finish().await;
    assert!(flushes > 3 && pushed > 200, "{flushes} flushes, {pushed} pushes");
    assert_eq!((worker.push_retries, repeated), (0, 0), "no caller saw an error, nothing ran twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn client_kill_of_all_connections_under_load_loses_nothing() {
    let Some(server) = private_or_skip("restart", Options::default()).await else { return };
    let load = Load::start(builder, &server.url(), 8).await;
    for _ in 0..10 {
        let mut raw = server.raw().await;
        for kind in ["normal", "pubsub"] {
            redis::cmd("CLIENT")
                .arg("KILL")
                .arg("TYPE")
                .arg(kind)
                .arg("SKIPME")
                .arg("yes")
                .exec_async(&mut raw)
                .await
                .expect("killed");
        }
        load.wait_delivered(50).await;
    }
    assert!(load.owner.metrics().reconnects >= 10);
    load.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_and_started_again_with_its_data_loses_nothing() {
    let Some(server) = private_or_skip("restart", Options { appendonly: true, ..Options::default() }).await
    else {
        return;
    };
    let load = Load::start(builder, &server.url(), 8).await;
    load.wait_delivered(100).await;
    server.sigkill().await;
    wait_until("the outage is seen", Duration::from_secs(5), || async {
        if load.owner.health().is_healthy() { Err("healthy".to_owned()) } else { Ok(()) }
    })
    .await;
    tokio::time::sleep(Duration::from_secs(10)).await; // the outage itself
    server.start_again().await;
    load.wait_delivered(100).await;
    load.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f32_a_server_that_comes_back_empty_is_served_again_without_a_restart() {
    let Some(server) = private_or_skip("restart", Options::default()).await else { return };
    let mut raw = server.raw().await;
    let builder = || builder().heartbeat(Duration::from_millis(200));
    let load = Load::start(builder, &server.url(), 8).await;
    load.wait_delivered(50).await;
    let quiet = session("quiet");
    let sink = Recorder::new();
    load.owner.subscribers().ensure_running(&quiet, sink.clone()).await.expect("claimed");
    redis::cmd("FLUSHALL").exec_async(&mut raw).await.expect("flushed");
    wait_until("announced again", Duration::from_secs(3), || async {
        let stats = load.worker.stats(&quiet).await;
        if stats.as_ref().is_ok_and(|s| s.owner_alive) { Ok(()) } else { Err(format!("{stats:?}")) }
    })
    .await;
    load.worker.push(Push::new(&quiet, "after")).await.expect("queued");
    sink.wait_for(1).await;
    load.wait_delivered(50).await;
    assert!(load.owner.metrics().state_lost >= 1);
    load.stop.store(true, Ordering::Relaxed);
}

/// F18: the server refuses the write that counts a failed attempt. It is repeated until it counts, once; the message is in
/// its queue all along, and a dead letter in the end.
#[tokio::test(flavor = "multi_thread")]
async fn f18_a_requeue_that_is_refused_is_repeated_until_it_counts() {
    let refusals: [(&str, &[&str], &[&str]); 2] = [
        (
            "NOREPLICAS",
            &["CONFIG", "SET", "min-replicas-to-write", "1"],
            &["CONFIG", "SET", "min-replicas-to-write", "0"],
        ),
        ("READONLY", &["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"]),
    ];
    for (code, refuse, allow) in refusals {
        let Some(server) = private_or_skip("f18_refused", Options::default()).await else { return };
        let mut raw = server.raw().await;
        let run = |words: &[&str]| {
            let mut command = redis::cmd(words[0]);
            command.arg(&words[1..]);
            command
        };
        let builder = builder().backoff(Duration::from_millis(20)).deadline(Duration::from_millis(500));
        let courier = builder.connect(server.url()).await.expect("connected");
        let s = session("s");
        courier.push(Push::new(&s, "bad")).await.expect("queued");
        courier.push(Push::new(&s, "good")).await.expect("queued");
        let (failing, mut failed) = tokio::sync::mpsc::unbounded_channel();
        let go_on = Arc::new(tokio::sync::Semaphore::new(0));
        let gate = go_on.clone();
        let attempts = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = attempts.clone();
        let good = Arc::new(tokio::sync::Notify::new());
        let heard = good.clone();
        let sink = move |d: mcp_courier::Delivery| {
            let (failing, gate, counted, heard) =
                (failing.clone(), gate.clone(), counted.clone(), heard.clone());
            async move {
                if d.body() == b"good" {
                    heard.notify_one();
                    return Ok(());
                }
                counted.fetch_add(1, Ordering::Relaxed);
                let _ = failing.send(());
                let _ = gate.acquire().await.map(tokio::sync::SemaphorePermit::forget);
                Err(mcp_courier::SinkError::retry("always"))
            }
        };
        courier.subscribers().ensure_running(&s, sink).await.expect("claimed");
        for attempt in 1..=3 {
            failed.recv().await.expect("an attempt");
            run(refuse).exec_async(&mut raw).await.expect("refuses");
            go_on.add_permits(1);
            wait_until(&format!("{code} is noticed"), Duration::from_secs(5), || async {
                match courier.push(Push::new(&s, "x")).await {
                    Err(e) if e.is_retryable() => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
            let stats = courier.stats(&s).await.expect("reads are answered");
            assert_eq!(
                (stats.pending, stats.dead, stats.head_attempts),
                (2, 0, attempt - 1),
                "{code}: nowhere else"
            );
            run(allow).exec_async(&mut raw).await.expect("allows");
        }
        good.notified().await;
        let (total, letters) = courier.dead_letters(&s).list(0, 10).await.expect("listed");
        assert_eq!((total, letters[0].attempts, &letters[0].body[..]), (1, 3, &b"bad"[..]), "{code}");
        assert_eq!(attempts.load(Ordering::Relaxed), 3, "{code}: each attempt counted once");
        courier.shutdown(Duration::from_secs(5)).await;
    }
}
