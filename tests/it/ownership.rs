//! One session, one owner: the newest claim wins, and whoever lost it changes nothing any more.

use std::time::Duration;

use mcp_courier::{CancellationToken, Ended, Error, MessageId, SinkError};

use crate::lua::{self, told};
use crate::support::fixture::{Fixture, Held, Process, Recorder, push, serve, session, wait_pending};
use crate::support::wait::wait_until;

/// Everything stored about session `s`, but for the times of sweeps and leases.
async fn stored(t: &Fixture) -> String {
    let (owners, queue, dead) = (t.key("s", ""), t.key("q", "s"), t.key("dead", "s"));
    let owners: std::collections::BTreeMap<String, String> = t.ask(&format!("HGETALL {owners}")).await;
    let queue: Vec<String> = t.ask(&format!("LRANGE {queue} 0 -1")).await;
    let dead: Vec<String> = t.ask(&format!("LRANGE {dead} 0 -1")).await;
    let waiting: Vec<String> = t.ask(&format!("ZRANGE {} 0 -1", t.key("w", ""))).await;
    format!("{owners:?} {queue:?} {dead:?} {waiting:?}")
}

/// Every verb that an owner may call, with this token, on the message `m1` at the head of session `s`.
async fn act(t: &Fixture, token: &str) -> Vec<String> {
    let (node, epoch) = token.split_once(':').expect("a token");
    let prefix = format!("{}:{{0}}:c:", t.prefix);
    let next = ["3", "10", "60000", "fifo", "100000", "s", epoch, "10"];
    let head = lua::receipts(t, "s").await.swap_remove(0);
    let ack = [&[node][..], &next, &["1", &head]].concat();
    let pop = [&[node, "2000", "60000"][..], &next].concat();
    let fail = |most| [node, epoch, "s", &head, "1", most, "1", "failed", "fifo", "10", "60000"];
    vec![
        told(t, "ack", &["s", "w", "q:s", "dead:s"], &ack).await,
        told(t, "pop", &["s", "w", "n", "q:s", "dead:s"], &pop).await,
        told(t, "requeue", &["s", "w", "q:s", "dead:s"], &fail("3")).await,
        told(t, "requeue", &["s", "w", "q:s", "dead:s"], &fail("0")).await,
        told(t, "claim", &["s", "n", "q:s"], &["nobody", "keep", &prefix, "PUBLISH", "s"]).await,
        told(t, "release", &["s"], &[node, "s", epoch]).await,
    ]
}

const DENIED: [&str; 6] = ["[[fenced]]", "[[fenced]]", "[fenced]", "[fenced]", "[[fenced]]", "[fenced]"];

/// The old owner's token is worthless at every verb, whatever the message's state.
#[tokio::test]
async fn f11_a_stale_token_of_another_process_changes_nothing() {
    let t = Fixture::new("f11_other").await;
    let builder = || t.builder().look_again(Duration::from_secs(60));
    let (one, two) = (t.connect(builder()).await, t.connect(builder()).await);
    let s = session("s");
    for id in ["m1", "m2"] {
        one.push(push(&s, id).id(MessageId::new(id).expect("valid"))).await.expect("queued");
    }
    let (first, second) = (Held::new(Recorder::new()), Held::new(Recorder::new()));
    let serving = serve(&one, &s, first.clone());
    first.recorder.wait_for(1).await;
    let stale = t.token("s").await.expect("an owner");
    two.subscribers().ensure_running(&s, second.clone()).await.expect("claimed");
    second.recorder.wait_for(1).await;
    assert_eq!(second.recorder.seen()[0].attempt, 1, "the first owner is alive");

    let before = stored(&t).await;
    assert_eq!(act(&t, &stale).await, DENIED);
    assert_eq!(stored(&t).await, before);

    // The old owner finishes its delivery: its ack is refused, its loop ends, the new owner's message stays.
    first.gate.cancel();
    assert_eq!(serving.ended().await, Ended::Superseded);
    assert_eq!(stored(&t).await, before);
    assert_eq!(one.metrics().superseded, 1);
    second.gate.cancel();
    assert_eq!(second.recorder.wait_for(2).await, ["m1", "m2"]);
    wait_pending(&two, &s, 0).await;
    assert_eq!(first.recorder.bodies(), ["m1"], "what was in flight came once more, nothing else did");
    two.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Ownership is minted for each acquisition, not for each process: a token of the same process from before is stale,
/// also when the session was given back in between.
#[tokio::test]
async fn f11_a_stale_token_of_the_same_process_changes_nothing() {
    let t = Fixture::new("f11_same").await;
    let courier = t.connect(t.builder().look_again(Duration::from_secs(60))).await;
    let s = session("s");
    let mut stale = Vec::new();
    for _ in 0..3 {
        courier.subscribers().ensure_running(&s, Recorder::new()).await.expect("claimed");
        stale.push(t.token("s").await.expect("an owner"));
        courier.subscribers().stop(&s).await;
        assert_eq!(t.token("s").await, None);
        // Nobody's word of the old claim can be on its way within the same millisecond.
        t.wait_server_ms(t.server_ms().await + 1).await;
    }
    for id in ["m1", "m2"] {
        courier.push(push(&s, id).id(MessageId::new(id).expect("valid"))).await.expect("queued");
    }
    let sink = Held::new(Recorder::new());
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    sink.recorder.wait_for(1).await;
    let before = stored(&t).await;
    for token in stale {
        assert_eq!(act(&t, &token).await, DENIED, "{token}");
        assert_eq!(stored(&t).await, before);
    }
    sink.gate.cancel();
    assert_eq!(sink.recorder.wait_for(2).await, ["m1", "m2"]);
    wait_pending(&courier, &s, 0).await;
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// With the right token, an unknown or repeated id removes nothing, and the reply says so.
#[tokio::test]
async fn f11_an_ack_of_an_unknown_or_repeated_id_removes_nothing() {
    let t = Fixture::new("f11_unknown").await;
    let worker = t.courier().await;
    let s = session("s");
    for id in ["m1", "m2", "m3"] {
        worker.push(push(&s, id).id(MessageId::new(id).expect("valid"))).await.expect("queued");
    }
    let claimed = told(&t, "claim", &["s", "n", "q:s"], &["tester", "take", "none:", "PUBLISH", "s"]).await;
    let epoch = claimed.trim_matches(['[', ']']).split(' ').nth(1).expect("an epoch").to_owned();
    assert_eq!(claimed, format!("[[claimed {epoch} 3]]"));
    let ack = async |ids: &[&str]| {
        let count = ids.len().to_string();
        let args = ["tester", "3", "10", "60000", "fifo", "100000", "s", &epoch, "0", &count];
        told(&t, "ack", &["s", "w", "q:s", "dead:s"], &[&args[..], ids].concat()).await
    };
    let receipts = lua::receipts(&t, "s").await;
    let (m1, m2) = (receipts[0].as_str(), receipts[1].as_str());
    assert_eq!(ack(&["unknown"]).await, "[[ok 0 0 0 0]]");
    assert_eq!(ack(&[&format!("1{m1}")]).await, "[[ok 0 0 0 0]]", "the same id, queued at another time");
    assert_eq!(ack(&["m1"]).await, "[[ok 0 0 0 0]]");
    assert_eq!(ack(&[m2]).await, "[[ok 0 0 0 0]]", "not the head");
    assert_eq!(ack(&[m1]).await, "[[ok 0 1 0 0]]");
    assert_eq!(ack(&[m1]).await, "[[ok 0 0 0 0]]", "a repeated ack");
    assert_eq!(ack(&[m1, m2]).await, "[[ok 0 1 0 0]]", "an ack whose first answer was lost");
    assert_eq!(worker.stats(&s).await.expect("stats").pending, 1);
    let requeue = ["tester", &epoch, "s", m1, "1", "3", "1", "failed", "fifo", "10", "60000"];
    assert_eq!(told(&t, "requeue", &["s", "w", "q:s", "dead:s"], &requeue).await, "[unknown]");
    let sink = Recorder::new();
    worker.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(1).await, ["m3"]);
    wait_pending(&worker, &s, 0).await;
    worker.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A session waiting for its head's next attempt notices a takeover at once, not at the end of the pause.
#[tokio::test]
async fn a_takeover_ends_a_loop_that_waits_for_a_backoff() {
    let t = Fixture::new("own_backoff").await;
    let long = Duration::from_secs(60);
    let builder = || t.builder().backoff(long).backoff_cap(long);
    let (one, two) = (t.connect(builder()).await, t.connect(builder()).await);
    let s = session("s");
    one.push(push(&s, "x").ttl(Duration::from_secs(3))).await.expect("queued");
    let serving = serve(&one, &s, Recorder::answering(|_| Err(SinkError::retry("not now"))));
    wait_until("the failure is stored", Duration::from_secs(5), || async {
        let stats = one.stats(&s).await.expect("stats");
        if stats.head_attempts == 1 { Ok(()) } else { Err(format!("{stats:?}")) }
    })
    .await;
    let start = std::time::Instant::now();
    two.subscribers().ensure_running(&s, Recorder::new()).await.expect("claimed");
    assert_eq!(serving.ended().await, Ended::Superseded);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    two.shutdown(Duration::from_secs(5)).await;
    wait_pending(&two, &s, 0).await;
    let _: u64 = t.ask(&format!("DEL {}", t.key("w", ""))).await;
    t.finish().await;
}

/// A busy session changes hands: nothing is lost, order holds, and only what was in flight comes twice.
#[tokio::test]
async fn a_takeover_under_load_repeats_only_what_was_in_flight() {
    let t = Fixture::new("own_load").await;
    let s = session("s");
    let worker = t.courier().await;
    let total = 1500;
    let pushing = tokio::spawn({
        let (worker, s) = (worker.clone(), s.clone());
        async move {
            for n in 0..total {
                worker.push(push(&s, &n.to_string())).await.expect("queued");
            }
        }
    });
    let mut owners = Vec::new();
    for n in 1..=6 {
        let courier = t.courier().await;
        let sink = Recorder::new();
        courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
        sink.wait_for(n * 10).await;
        owners.push((courier, sink));
    }
    pushing.await.expect("no panic");
    wait_pending(&worker, &s, 0).await;
    for (n, (courier, _)) in owners.iter().enumerate() {
        wait_until("one owner", Duration::from_secs(5), || async {
            let count = courier.subscribers().count();
            if count == usize::from(n == 5) { Ok(()) } else { Err(format!("{n}: {count}")) }
        })
        .await;
    }
    let mut times = std::collections::HashMap::<String, usize>::new();
    for body in owners.iter().flat_map(|(_, sink)| sink.bodies()) {
        *times.entry(body).or_default() += 1;
    }
    assert_eq!(times.len(), total);
    for (_, sink) in &owners {
        let numbers: Vec<usize> = sink.bodies().iter().map(|body| body.parse().expect("a number")).collect();
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "each owner sees an unbroken run");
    }
    let handovers = owners.len() - 1;
    let repeated: usize = times.values().map(|n| n - 1).sum();
    assert!(repeated <= handovers * 128, "{repeated} repeated over {handovers} takeovers");
    for (courier, _) in owners {
        courier.shutdown(Duration::from_secs(5)).await;
    }
    t.finish().await;
}

/// Many processes claim a session at the same moment: one of them has it in the end, the others know that they do not.
#[tokio::test]
async fn of_many_racing_claims_exactly_one_wins_and_the_others_know() {
    let t = Fixture::new("own_race").await;
    let mut couriers = Vec::new();
    for _ in 0..8 {
        couriers.push(t.courier().await);
    }
    for round in 0..10 {
        let s = session(&format!("s{round}"));
        let mut claims = tokio::task::JoinSet::new();
        let sinks: Vec<_> = couriers.iter().map(|_| Recorder::new()).collect();
        for (courier, sink) in couriers.iter().zip(&sinks) {
            let (registry, s, sink) = (courier.subscribers(), s.clone(), sink.clone());
            claims.spawn(async move { registry.ensure_running(&s, sink).await });
        }
        for outcome in claims.join_all().await {
            assert!(matches!(outcome, Ok(true) | Err(Error::Superseded { .. })), "{outcome:?}");
        }
        wait_until("one owner", Duration::from_secs(5), || async {
            let count = couriers.iter().filter(|c| c.subscribers().is_running(&s)).count();
            if count == 1 { Ok(()) } else { Err(count.to_string()) }
        })
        .await;
        let winner = couriers.iter().position(|c| c.subscribers().is_running(&s)).expect("one");
        for n in 0..20 {
            couriers[0].push(push(&s, &n.to_string())).await.expect("queued");
        }
        sinks[winner].wait_for(20).await;
        wait_pending(&couriers[0], &s, 0).await;
        for (n, sink) in sinks.iter().enumerate() {
            assert_eq!(sink.seen().len(), if n == winner { 20 } else { 0 });
        }
    }
    for courier in couriers {
        courier.shutdown(Duration::from_secs(5)).await;
    }
    t.finish().await;
}

/// The client comes back on the same process: the newer loop serves it, the older one ends.
#[tokio::test]
async fn a_newer_loop_of_the_same_process_replaces_the_older_one() {
    let t = Fixture::new("own_same").await;
    let courier = t.courier().await;
    let s = session("s");
    let mut older: Option<(crate::support::fixture::Serving, Recorder)> = None;
    for n in 0..20 {
        let sink = Recorder::new();
        let serving = serve(&courier, &s, sink.clone());
        if let Some((serving, _)) = older.take() {
            assert_eq!(serving.ended().await, Ended::Superseded);
        }
        courier.push(push(&s, &n.to_string())).await.expect("queued");
        assert_eq!(sink.wait_for(1).await, [n.to_string()]);
        wait_pending(&courier, &s, 0).await;
        assert_eq!(courier.subscribers().count(), 1);
        older = Some((serving, sink));
    }
    older.expect("the last one").0.stop().await;
    assert_eq!(courier.subscribers().count(), 0);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Serves a session until nothing of it is pending.
async fn drain(courier: &mcp_courier::Courier, s: &mcp_courier::SessionId) {
    let serving = serve(courier, s, Recorder::new());
    wait_pending(courier, s, 0).await;
    serving.stop().await;
}

/// Subscriptions come and go in every way there is: nothing of them is left, here or in Redis.
#[tokio::test]
async fn f24_counts_return_to_zero_and_no_session_is_left() {
    let t = Fixture::new("f24").await;
    let courier = t.connect(t.builder().dedupe(Duration::ZERO)).await;
    let registry = courier.subscribers();
    let mut cycles = tokio::task::JoinSet::new();
    for lane in 0..20 {
        let (courier, registry) = (courier.clone(), registry.clone());
        cycles.spawn(async move {
            for n in 0..250 {
                let s = session(&format!("s{lane}-{n}"));
                match n % 5 {
                    0 => {
                        assert!(registry.ensure_running(&s, Recorder::new()).await.expect("claimed"));
                        assert!(registry.stop(&s).await);
                    }
                    // With a delivery in progress.
                    1 => {
                        let sink = Held::new(Recorder::new());
                        registry.ensure_running(&s, sink.clone()).await.expect("claimed");
                        courier.push(push(&s, "x")).await.expect("queued");
                        sink.recorder.wait_for(1).await;
                        registry.stop(&s).await;
                        drain(&courier, &s).await;
                    }
                    // The task that holds the loop is dropped, at the start or later.
                    2 => drop(courier.subscriber_loop(&s, Recorder::new(), CancellationToken::new())),
                    3 => {
                        let looping = courier.subscriber_loop(&s, Recorder::new(), CancellationToken::new());
                        let _ = tokio::time::timeout(Duration::from_micros(n * 8), looping).await;
                    }
                    // The client is gone.
                    _ => {
                        let gone = Recorder::answering(|_| Err(SinkError::Closed));
                        let serving = serve(&courier, &s, gone);
                        courier.push(push(&s, "x")).await.expect("queued");
                        assert_eq!(serving.ended().await, Ended::SinkClosed);
                        drain(&courier, &s).await;
                    }
                }
            }
        });
    }
    cycles.join_all().await;
    wait_until("no subscription is left", Duration::from_secs(10), || async {
        let left = registry.sessions();
        if registry.count() == 0 && left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    // A sweep needs somebody who serves.
    registry.ensure_running(&session("last"), Recorder::new()).await.expect("claimed");
    wait_until("no session is left in Redis", Duration::from_secs(10), || async {
        let o = courier.overview(0).await.expect("overview");
        if (o.owned, o.waiting) == (1, 0) { Ok(()) } else { Err(format!("{o:?}")) }
    })
    .await;
    let keys: Vec<_> = t.keys().await.into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["n", "s"]);
    courier.shutdown(Duration::from_secs(5)).await;
    assert_eq!(t.keys().await, []);
    t.finish().await;
}

/// Processes that die leave owners behind: a living one forgets them after the grace period, and only them.
#[tokio::test]
async fn f24_owners_of_dead_processes_are_forgotten_and_no_others() {
    let t = Fixture::new("f24_dead").await;
    let ms = Duration::from_millis;
    let quick = || t.builder().lease(ms(300)).heartbeat(ms(100)).look_again(ms(50)).node_grace(ms(100));
    let living = t.connect(quick()).await;
    for n in 0..50 {
        living
            .subscribers()
            .ensure_running(&session(&format!("living{n}")), Recorder::new())
            .await
            .expect("claimed");
    }
    let mut nodes = Vec::new();
    for p in 0..5 {
        let process = Process::start(quick(), t.server.url()).await;
        for n in 0..40 {
            process.serve(&session(&format!("dead{p}-{n}")), Recorder::new()).await;
        }
        nodes.push(t.token(&format!("dead{p}-0")).await.expect("an owner"));
        if p % 2 == 0 {
            process.crash().await;
        } else {
            // The last handle goes without a shutdown.
            let Process { runtime, courier } = process;
            drop(courier);
            runtime.shutdown_background();
        }
    }
    wait_until("the dead ones' owners are forgotten", Duration::from_secs(10), || async {
        let owned = living.overview(0).await.expect("overview").owned;
        if owned == 50 { Ok(()) } else { Err(format!("{owned} owned")) }
    })
    .await;
    for n in 0..50 {
        assert!(t.token(&format!("living{n}")).await.is_some());
    }
    assert_eq!((living.subscribers().count(), living.metrics().state_lost), (50, 0));
    living.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A failover loses the newest claim, and what is stored is an older one of the same process: it claims again and goes on,
/// busy or idle. Nobody else would come.
#[tokio::test]
async fn a_claim_that_a_failover_lost_is_made_anew() {
    let t = Fixture::new("rolled_back").await;
    let courier = t.courier().await;
    let s = session("s");
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    for round in 1..=4 {
        let token = t.token("s").await.expect("an owner");
        let (node, epoch) = token.split_once(':').expect("a token");
        let epoch: u64 = epoch.parse().expect("a number");
        let _: u64 = t.ask(&format!("HSET {} s {node}:{}", t.key("s", ""), epoch - 1)).await;
        // Half of the time the heartbeat finds out, and half of the time the doorbell.
        if round % 2 == 0 {
            wait_until("another claim", Duration::from_secs(10), || async {
                let now = t.token("s").await;
                let older = format!("{node}:{}", epoch - 1);
                if now.as_deref().is_some_and(|now| now != older) { Ok(()) } else { Err(format!("{now:?}")) }
            })
            .await;
        }
        courier.push(push(&s, &round.to_string())).await.expect("queued");
        sink.wait_for(round).await;
        wait_pending(&courier, &s, 0).await;
    }
    assert_eq!((courier.subscribers().count(), courier.metrics().superseded), (1, 0));
    let bodies = sink.bodies();
    let mut once = bodies.clone();
    once.dedup();
    assert_eq!(once, ["1", "2", "3", "4"], "in order: {bodies:?}");
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}
