//! What a push promises: idempotence window, coalescing, limits, and the order of one producer.

use std::time::Duration;

use mcp_courier::{Error, MessageId, OnFull, PushStatus, SinkError};

use crate::support::fixture::{Fixture, Held, Recorder, push, session, wait_pending};
use crate::support::wait::wait_until;

fn id(text: &str) -> MessageId {
    MessageId::new(text).expect("valid")
}

#[tokio::test]
async fn a_known_id_is_refused_before_and_after_the_ack_until_its_window_is_over() {
    let t = Fixture::new("push_window").await;
    let courier = t.courier().await;
    let s = session("s");
    let again = || courier.push(push(&s, "x").id(id("m")).dedupe(Duration::from_millis(400)));
    assert_eq!(again().await.expect("queued").status, PushStatus::Queued);
    let pending = again().await.expect("known");
    assert_eq!((pending.status, pending.pending), (PushStatus::Duplicate, 1));

    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    wait_pending(&courier, &s, 0).await;
    let acked = again().await.expect("known");
    assert_eq!((acked.status, acked.pending), (PushStatus::Duplicate, 0), "acked, and still known");

    wait_until("the window is over", Duration::from_secs(5), || async {
        let known: u64 = t.ask(&format!("EXISTS {}", t.key("d", "s:m"))).await;
        if known == 0 { Ok(()) } else { Err("known".to_owned()) }
    })
    .await;
    assert_eq!(again().await.expect("queued").status, PushStatus::Queued, "it is another message now");
    assert_eq!(sink.wait_for(2).await, ["x", "x"]);
    assert_eq!(courier.metrics().duplicates, 2);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

#[tokio::test]
async fn without_a_window_an_id_is_never_refused_and_leaves_no_key() {
    let t = Fixture::new("push_no_window").await;
    let courier = t.courier().await;
    let s = session("s");
    for n in 0..3 {
        let pushed = courier.push(push(&s, &n.to_string()).id(id("m")).dedupe(Duration::ZERO)).await;
        assert_eq!(pushed.expect("queued").status, PushStatus::Queued);
    }
    let keys: Vec<_> = t.keys().await.into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["q:s", "w"]);
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    wait_pending(&courier, &s, 0).await;
    assert_eq!(sink.bodies(), ["0", "1", "2"], "three messages, although they share a name");
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// An id is known within its session, not beyond.
#[tokio::test]
async fn the_same_id_in_two_sessions_is_two_messages() {
    let t = Fixture::new("push_two_sessions").await;
    let courier = t.courier().await;
    for name in ["a", "b"] {
        let pushed = courier.push(push(&session(name), name).id(id("m"))).await.expect("queued");
        assert_eq!((pushed.status, pushed.pending), (PushStatus::Queued, 1));
    }
    for name in ["a", "b"] {
        let sink = Recorder::new();
        courier.subscribers().ensure_running(&session(name), sink.clone()).await.expect("claimed");
        assert_eq!(sink.wait_for(1).await, [name]);
    }
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A refused push is not known: the same id may come again once there is room.
#[tokio::test]
async fn a_push_refused_as_full_does_not_burn_its_id() {
    let t = Fixture::new("push_full_id").await;
    let courier = t.courier().await;
    let s = session("s");
    courier.push(push(&s, "a")).await.expect("queued");
    let refused = courier.push(push(&s, "b").id(id("m")).max_pending(1)).await.expect_err("full");
    assert!(matches!(refused, Error::QueueFull { pending: 1, limit: 1, .. }), "{refused}");
    assert!(refused.is_retryable() && !refused.is_ambiguous());
    let again = courier.push(push(&s, "b").id(id("m")).max_pending(2)).await.expect("room");
    assert_eq!(again.status, PushStatus::Queued);
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(2).await, ["a", "b"]);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The message in the sink's hands is not replaced: the newer one comes after it.
#[tokio::test]
async fn coalescing_never_replaces_the_message_being_delivered() {
    let t = Fixture::new("push_coalesce_head").await;
    let courier = t.courier().await;
    let s = session("s");
    let sink = Held::new(Recorder::new());
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    let put = async |body: &str| courier.push(push(&s, body).coalesce("k")).await.expect("taken").status;
    assert_eq!(put("v1").await, PushStatus::Queued);
    sink.recorder.wait_for(1).await;
    assert_eq!(put("v2").await, PushStatus::Queued, "v1 is on its way");
    assert_eq!(put("v3").await, PushStatus::Coalesced);
    assert_eq!(courier.stats(&s).await.expect("stats").pending, 2);
    sink.gate.cancel();
    assert_eq!(sink.recorder.wait_for(2).await, ["v1", "v3"]);
    wait_pending(&courier, &s, 0).await;
    let m = courier.metrics();
    assert_eq!((m.pushed, m.coalesced, m.acked), (2, 1, 2));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A message of the batch that is under way is replaced: what the sink had of it stays, the newer one still arrives,
/// and nothing else is lost or repeated.
#[tokio::test]
async fn coalescing_into_a_batch_under_way_loses_neither_value() {
    let t = Fixture::new("push_coalesce_batch").await;
    let courier = t.courier().await;
    let s = session("s");
    for (body, key) in [("a", ""), ("k1", "k"), ("b", ""), ("c", "")] {
        let message = push(&s, body);
        let message = if key.is_empty() { message } else { message.coalesce(key) };
        courier.push(message).await.expect("queued");
    }
    let sink = Held::new(Recorder::new());
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    sink.recorder.wait_for(1).await;
    // The batch a, k1, b, c is fetched; a is in the sink.
    let put = courier.push(push(&s, "k2").coalesce("k")).await.expect("taken");
    assert_eq!((put.status, put.pending), (PushStatus::Coalesced, 4));
    sink.gate.cancel();
    wait_pending(&courier, &s, 0).await;
    let mut seen = sink.recorder.bodies();
    assert!(seen.contains(&"k2".to_owned()), "{seen:?}");
    seen.retain(|body| !body.starts_with('k'));
    assert_eq!(seen, ["a", "b", "c"], "in order, each once");
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A replaced message keeps the place of the old one, its own id and its own life; other keys and none are left alone.
#[tokio::test]
async fn a_coalesced_message_takes_the_place_of_the_older_one() {
    let t = Fixture::new("push_coalesce_order").await;
    let courier = t.courier().await;
    let s = session("s");
    let put = async |body: &str, key: &str| {
        let message = push(&s, body).id(id(body));
        let message = if key.is_empty() { message } else { message.coalesce(key) };
        courier.push(message).await.expect("taken")
    };
    put("head", "").await;
    put("x1", "x").await;
    put("plain", "").await;
    put("y1", "y").await;
    let replaced = put("x2", "x").await;
    assert_eq!((replaced.status, replaced.id.as_str(), replaced.pending), (PushStatus::Coalesced, "x2", 4));
    assert_eq!(put("xx", "xx").await.status, PushStatus::Queued, "a longer key is another key");
    assert_eq!(put("x2", "x").await.status, PushStatus::Duplicate, "its id is known as any other");
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(5).await, ["head", "x2", "plain", "y1", "xx"]);
    assert_eq!(sink.seen()[1].coalesce_key(), b"x");
    wait_pending(&courier, &s, 0).await;
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A coalescing push needs no room: a full queue takes it.
#[tokio::test]
async fn a_full_queue_still_coalesces() {
    let t = Fixture::new("push_coalesce_full").await;
    let courier = t.connect(t.builder().max_pending(2)).await;
    let s = session("s");
    courier.push(push(&s, "a")).await.expect("queued");
    courier.push(push(&s, "k1").coalesce("k")).await.expect("queued");
    assert!(courier.push(push(&s, "b")).await.is_err());
    let put = courier.push(push(&s, "k2").coalesce("k")).await.expect("taken");
    assert_eq!((put.status, put.pending), (PushStatus::Coalesced, 2));
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(2).await, ["a", "k2"]);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The oldest go, also the one in the sink's hands; the rest is delivered once each, and the counts add up.
#[tokio::test]
async fn dropping_the_oldest_keeps_the_newest_and_counts_what_went() {
    let t = Fixture::new("push_drop").await;
    let courier = t.courier().await;
    let s = session("s");
    let sink = Held::new(Recorder::new());
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    courier.push(push(&s, "0")).await.expect("queued");
    sink.recorder.wait_for(1).await;
    for n in 1..10 {
        let put = push(&s, &n.to_string()).max_pending(3).on_full(OnFull::DropOldest);
        let put = courier.push(put).await.expect("queued");
        assert_eq!((put.dropped, put.pending), (u64::from(n > 2), 3.min(n + 1)));
    }
    sink.gate.cancel();
    assert_eq!(sink.recorder.wait_for(4).await, ["0", "7", "8", "9"]);
    wait_pending(&courier, &s, 0).await;
    let m = courier.metrics();
    assert_eq!((m.pushed, m.dropped), (10, 7));
    assert_eq!(m.pushed, m.acked + m.expired + m.dead + m.dropped, "{m:?}");
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// At rest every message is accounted for.
#[tokio::test]
async fn the_counts_add_up() {
    let t = Fixture::new("push_counts").await;
    let courier = t.connect(t.builder().max_attempts(2)).await;
    let s = session("s");
    for n in 0..30 {
        let message = push(&s, &n.to_string());
        let message = if n % 10 == 7 { message.ttl(Duration::from_millis(1)) } else { message };
        courier.push(message).await.expect("queued");
    }
    t.wait_server_ms(t.server_ms().await + 2).await;
    let sink = Recorder::answering(|d| match d.body() {
        [b'1', _] => Err(SinkError::retry("no")),
        [b'2'] => Err(SinkError::rejected("never")),
        _ => Ok(()),
    });
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    wait_pending(&courier, &s, 0).await;
    let dead = courier.dead_letters(&s);
    dead.requeue(Some(&dead.list(0, 1).await.expect("listed").1[0].id.parse().expect("an id")))
        .await
        .expect("moved");
    wait_pending(&courier, &s, 0).await;
    wait_until("settled", Duration::from_secs(5), || async {
        let m = courier.metrics();
        let settled = m.acked + m.expired + m.dead + m.dropped;
        if m.pushed + m.revived == settled && m.revived == 1 { Ok(()) } else { Err(format!("{m:?}")) }
    })
    .await;
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Many producers at once: each one's messages arrive in the order in which it pushed them.
#[tokio::test]
async fn concurrent_producers_keep_their_own_order() {
    let t = Fixture::new("push_order").await;
    let courier = t.courier().await;
    let s = session("s");
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    let mut producers = tokio::task::JoinSet::new();
    for p in 0..8 {
        let worker = t.courier().await;
        let s = s.clone();
        producers.spawn(async move {
            for n in 0..100 {
                worker.push(push(&s, &format!("{p} {n}"))).await.expect("queued");
            }
        });
    }
    producers.join_all().await;
    let seen = sink.wait_for(800).await;
    for p in 0..8 {
        let own: Vec<_> = seen.iter().filter_map(|body| body.strip_prefix(&format!("{p} "))).collect();
        assert_eq!(own, (0..100).map(|n| n.to_string()).collect::<Vec<_>>());
    }
    wait_pending(&courier, &s, 0).await;
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}
