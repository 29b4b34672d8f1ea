//! Time to live: each message has its own, and only the server's clock counts.

use std::time::Duration;

use mcp_courier::{Error, PushStatus, SinkError};

use crate::support::fixture::{Fixture, Held, Recorder, push, session, wait_pending};
use crate::support::wait::wait_until;

const MINUTE: Duration = Duration::from_secs(60);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Neither does a short-lived message take others with it, nor does a later push renew it.
#[tokio::test]
async fn f06_a_message_ttl_is_its_own() {
    let t = Fixture::new("f06_own").await;
    let courier = t.connect(t.builder().dedupe(Duration::ZERO)).await;
    let s = session("s");
    courier.push(push(&s, "1").ttl(MINUTE)).await.expect("queued");
    courier.push(push(&s, "2").ttl(ms(60))).await.expect("queued");
    courier.push(push(&s, "3").ttl(MINUTE)).await.expect("queued");
    t.wait_server_ms(t.server_ms().await + 61).await;
    courier.push(push(&s, "4").ttl(MINUTE)).await.expect("queued");

    for (key, life) in t.keys().await {
        assert!(key == "w" || life > 59_000, "{key} lives {life} ms, its longest message a minute");
    }
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(3).await, ["1", "3", "4"]);
    wait_pending(&courier, &s, 0).await;
    assert_eq!(courier.metrics().expired, 1);
    let names: Vec<String> = t.keys().await.into_iter().map(|(key, _)| key).collect();
    assert_eq!(names, ["n", "s"], "after the last ack nothing of the queue is left");
    courier.shutdown(Duration::from_secs(5)).await;
    assert_eq!(t.keys().await, []);
    t.finish().await;
}

/// The message's time ends while the sink has it: its failure is not retried.
#[tokio::test]
async fn f06_a_message_that_expires_while_it_is_delivered_is_not_retried() {
    let t = Fixture::new("f06_leased").await;
    let courier = t.courier().await;
    let s = session("s");
    let sink = Held::new(Recorder::answering(|d| match d.body() {
        b"short" => Err(SinkError::retry("not now")),
        _ => Ok(()),
    }));
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    courier.push(push(&s, "short").ttl(ms(80))).await.expect("queued");
    courier.push(push(&s, "long")).await.expect("queued");
    sink.recorder.wait_for(1).await;
    t.wait_server_ms(sink.recorder.seen()[0].expires_at_ms).await;
    sink.gate.cancel();
    assert_eq!(sink.recorder.wait_for(2).await, ["short", "long"]);
    wait_pending(&courier, &s, 0).await;
    let m = courier.metrics();
    assert_eq!((m.expired, m.requeued, m.dead, m.acked), (1, 0, 0, 1));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The message's time ends while it waits for its next attempt: it goes, and what stands behind it does not wait for
/// the rest of its backoff.
#[tokio::test]
async fn f06_a_message_that_expires_in_its_backoff_frees_the_queue_at_once() {
    let t = Fixture::new("f06_failed").await;
    let long = Duration::from_secs(30);
    let courier = t.connect(t.builder().backoff(long).backoff_cap(long)).await;
    let s = session("s");
    let sink = Recorder::answering(|d| match d.body() {
        b"short" => Err(SinkError::retry("not now")),
        _ => Ok(()),
    });
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    courier.push(push(&s, "short").ttl(ms(150))).await.expect("queued");
    sink.wait_for(1).await;
    courier.push(push(&s, "long")).await.expect("queued");
    assert_eq!(sink.wait_for(2).await, ["short", "long"]);
    wait_pending(&courier, &s, 0).await;
    let m = courier.metrics();
    assert_eq!((m.expired, m.requeued, m.acked), (1, 1, 1));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// What was given to the sink in time counts as delivered, however long the sink took.
#[tokio::test]
async fn a_delivery_that_outlives_its_ttl_is_acked() {
    let t = Fixture::new("ttl_late_ack").await;
    let courier = t.courier().await;
    let s = session("s");
    let sink = Held::new(Recorder::new());
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    courier.push(push(&s, "x").ttl(ms(50))).await.expect("queued");
    courier.push(push(&s, "y")).await.expect("queued");
    sink.recorder.wait_for(1).await;
    t.wait_server_ms(sink.recorder.seen()[0].expires_at_ms).await;
    sink.gate.cancel();
    wait_pending(&courier, &s, 0).await;
    wait_until("the acks", Duration::from_secs(5), || async {
        let m = courier.metrics();
        if (m.acked, m.expired) == (2, 0) { Ok(()) } else { Err(format!("{m:?}")) }
    })
    .await;
    assert_eq!(sink.recorder.bodies(), ["x", "y"]);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The list's own expiry is extended by a push that lives longer, and never shortened by one that does not.
#[tokio::test]
async fn f06_a_queue_lives_as_long_as_its_longest_message() {
    let t = Fixture::new("f06_queue").await;
    let courier = t.courier().await;
    let s = session("s");
    // Set a little late, a quarter at most, so that a busy queue is not touched by every push.
    let life = || async { t.ask::<i64>(&format!("PTTL {}", t.key("q", "s"))).await };
    courier.push(push(&s, "a").ttl(MINUTE).coalesce("k")).await.expect("queued");
    courier.push(push(&s, "b").ttl(Duration::from_secs(1))).await.expect("queued");
    assert!((59_000..=75_000).contains(&life().await));
    courier.push(push(&s, "c").ttl(2 * MINUTE).coalesce("c")).await.expect("queued");
    assert!((119_000..=150_000).contains(&life().await));
    let same = courier.push(push(&s, "d").ttl(3 * MINUTE).coalesce("c")).await.expect("taken");
    assert_eq!(same.status, PushStatus::Coalesced);
    assert!((179_000..=225_000).contains(&life().await), "a replaced message extends it as well");
    courier.push(push(&s, "e").ttl(ms(1))).await.expect("queued");
    assert!((179_000..=225_000).contains(&life().await));

    // Failures, acks and releases leave it alone.
    let sink = Recorder::answering(|d| if d.body() == b"d" { Err(SinkError::retry("x")) } else { Ok(()) });
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    sink.wait_for(4).await;
    courier.subscribers().stop(&s).await;
    let left = life().await;
    assert!(left == -2 || left > 170_000, "{left}");
    courier.subscribers().ensure_running(&s, Recorder::new()).await.expect("claimed");
    wait_pending(&courier, &s, 0).await;
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Nobody alive but the server: a queue that nobody comes for is gone with its last message.
#[tokio::test]
async fn f06_an_abandoned_queue_vanishes_by_itself() {
    let t = Fixture::new("f06_abandoned").await;
    let worker = t.courier().await;
    for n in 0..3 {
        worker
            .push(push(&session(&format!("s{n}")), "x").ttl(ms(30 + n)).dedupe(ms(30)))
            .await
            .expect("queued");
    }
    drop(worker);
    wait_until("only the index is left", Duration::from_secs(5), || async {
        let keys = t.keys().await;
        if matches!(&keys[..], [(w, -1)] if w == "w") { Ok(()) } else { Err(format!("{keys:?}")) }
    })
    .await;
    // The next process that serves anything sweeps the index.
    let server = t.courier().await;
    server.subscribers().ensure_running(&session("other"), Recorder::new()).await.expect("claimed");
    wait_until("the index is swept", Duration::from_secs(5), || async {
        let waiting = server.overview(0).await.expect("overview").waiting;
        if waiting == 0 { Ok(()) } else { Err(format!("{waiting} waiting")) }
    })
    .await;
    server.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Expired heads of a session that nobody serves are dropped and counted by whoever sweeps; living ones stay.
#[tokio::test]
async fn a_sweep_drops_the_expired_heads_of_sessions_that_nobody_serves() {
    let t = Fixture::new("ttl_tidy").await;
    let server = t.connect(t.builder().look_again(ms(50))).await;
    let (orphan, gone) = (session("orphan"), session("gone"));
    // The first one only gives the list a long life, however slow the pushes are.
    server.push(push(&orphan, "first")).await.expect("queued");
    for n in 0..300 {
        server.push(push(&orphan, &n.to_string()).ttl(ms(20)).dedupe(Duration::ZERO)).await.expect("queued");
    }
    server.push(push(&orphan, "alive")).await.expect("queued");
    let _: redis::Value = t.ask(&format!("LPOP {}", t.key("q", "orphan"))).await;
    server.push(push(&gone, "x").ttl(ms(20))).await.expect("queued");
    server.subscribers().ensure_running(&session("other"), Recorder::new()).await.expect("claimed");
    wait_pending(&server, &orphan, 1).await;
    wait_until("the index is swept", Duration::from_secs(5), || async {
        let waiting = server.overview(10).await.expect("overview");
        if waiting.waiting == 1 { Ok(()) } else { Err(format!("{waiting:?}")) }
    })
    .await;
    assert!(server.metrics().expired >= 300, "{:?}", server.metrics());
    let sink = Recorder::new();
    server.subscribers().ensure_running(&orphan, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(1).await, ["alive"]);
    wait_pending(&server, &orphan, 0).await;
    server.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// More expired messages than one script call may drop: the living one behind them arrives all the same.
#[tokio::test]
async fn a_living_message_behind_a_thousand_expired_ones_is_delivered() {
    let t = Fixture::new("ttl_thousand").await;
    // No sweep comes in time to help.
    let courier = t.connect(t.builder().look_again(MINUTE).dedupe(Duration::ZERO)).await;
    let s = session("s");
    // The first one only gives the list a long life, however slow the pushes are.
    courier.push(push(&s, "first")).await.expect("queued");
    for n in 0..1100 {
        courier.push(push(&s, &n.to_string()).ttl(ms(1))).await.expect("queued");
    }
    courier.push(push(&s, "alive")).await.expect("queued");
    let _: redis::Value = t.ask(&format!("LPOP {}", t.key("q", "s"))).await;
    t.wait_server_ms(t.server_ms().await + 2).await;
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(1).await, ["alive"]);
    wait_pending(&courier, &s, 0).await;
    assert_eq!(courier.metrics().expired, 1100);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Every stored instant is the server's, in UTC milliseconds; a retry is not earlier than its backoff by that clock.
#[tokio::test]
async fn f08_all_instants_are_the_servers() {
    let t = Fixture::new("f08").await;
    let backoff = ms(300);
    let courier = t.connect(t.builder().backoff(backoff).backoff_cap(backoff).max_attempts(2)).await;
    let s = session("s");
    let before = t.server_ms().await;
    courier.push(push(&s, "x").ttl(Duration::from_secs(5))).await.expect("queued");
    let after = t.server_ms().await;
    let sink = Recorder::answering(|_| Err(SinkError::retry("no")));
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    let not_before = wait_until("the failure is stored", Duration::from_secs(5), || async {
        let head: Vec<u8> = t.ask(&format!("LINDEX {} 0", t.key("q", "s"))).await;
        let head = String::from_utf8_lossy(&head).into_owned();
        let not_before = head.split(' ').nth(4).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        if not_before > 0 { Ok(not_before) } else { Err(head) }
    })
    .await;
    let stored = t.server_ms().await;
    sink.wait_for(2).await;
    let second = t.server_ms().await;
    wait_pending(&courier, &s, 0).await;
    let dead_by = t.server_ms().await;

    let d = &sink.seen()[1];
    assert!((before..=after).contains(&d.enqueued_at_ms));
    assert_eq!(d.expires_at_ms, d.enqueued_at_ms + 5000, "the life is a difference of one clock's readings");
    // 300 ms with a jitter of a quarter, counted from a failure between `after` and `stored`.
    assert!((after + 225..=stored + 375).contains(&not_before), "{after} {stored} {not_before}");
    assert!(second >= not_before, "not a millisecond early");
    let (_, letters) = courier.dead_letters(&s).list(0, 1).await.expect("listed");
    assert_eq!(letters[0].enqueued_at_ms, d.enqueued_at_ms);
    assert!((not_before..=dead_by).contains(&letters[0].died_at_ms));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Exact at the bounds, refused beyond them, and nothing is written by a refused push.
#[tokio::test]
async fn a_ttl_is_one_millisecond_to_a_year() {
    let t = Fixture::new("ttl_bounds").await;
    let courier = t.courier().await;
    let s = session("s");
    let year = Duration::from_secs(365 * 24 * 3600);
    for ttl in [Duration::ZERO, year + Duration::from_nanos(1), Duration::MAX] {
        let refused = courier.push(push(&s, "x").ttl(ttl)).await.expect_err("out of bounds");
        assert!(matches!(refused, Error::Invalid { what: "ttl", .. }), "{refused}");
        let refused = t.builder().ttl(ttl).connect(t.server.url()).await.expect_err("out of bounds");
        assert!(matches!(refused, Error::Invalid { what: "ttl", .. }), "{refused}");
    }
    assert_eq!(t.keys().await, [], "nothing was written");
    courier.push(push(&s, "a year").ttl(year)).await.expect("queued");
    courier.push(push(&s, "a moment").ttl(Duration::from_nanos(1))).await.expect("queued");
    let life: i64 = t.ask(&format!("PTTL {}", t.key("q", "s"))).await;
    assert!((31_535_990_000..=31_536_060_000).contains(&life), "{life}");
    t.wait_server_ms(t.server_ms().await + 2).await;
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(1).await, ["a year"]);
    wait_pending(&courier, &s, 0).await;
    assert_eq!(courier.metrics().expired, 1);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}
