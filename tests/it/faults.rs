//! The network misbehaves: half-open connections, lost doorbells, lost replies, stalls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mcp_courier::{Courier, MessageId, PushStatus, SinkError};

use crate::support::capture::Capture;
use crate::support::fixture::{Fixture, Recorder, push, session, wait_pending};
use crate::support::proxy::{Mode, Proxy};
use crate::support::wait::wait_until;

/// The shared server, and a proxy in front of it.
async fn behind_proxy(test: &str) -> (Fixture, Arc<Proxy>) {
    let t = Fixture::plain(test).await;
    let proxy = Proxy::start(t.server.url()).await;
    (t, Arc::new(proxy))
}

/// F03: the push was executed, its answer lost. The caller hears "unknown"; repeating it by id queues nothing twice,
/// not even after the ack.
#[tokio::test]
async fn f03_a_push_whose_answer_is_lost_is_unknown_and_repeats_as_a_duplicate() {
    let (t, proxy) = behind_proxy("f03").await;
    let direct = t.courier().await;
    let hasty =
        t.builder().connect_timeout(Duration::from_millis(300)).call_timeout(Duration::from_millis(300));
    let hasty = hasty.deadline(Duration::from_millis(700));
    let courier = hasty.connect(proxy.url()).await.expect("connected");
    let s = session("s");
    courier.push(push(&s, "warm").id(MessageId::new("warm").expect("valid"))).await.expect("queued");
    let id = MessageId::new("M").expect("valid");

    proxy.set(Mode::SWALLOW_REPLIES);
    let unknown = courier.push(push(&s, "x").id(id.clone())).await.expect_err("no answer");
    assert!(unknown.is_ambiguous() && unknown.is_retryable(), "{unknown}");
    proxy.set(Mode::Pass);
    wait_until("connected again", Duration::from_secs(5), || async {
        courier.ping().await.map_err(|e| e.to_string())
    })
    .await;

    let again = courier.push(push(&s, "x").id(id.clone())).await.expect("connected again");
    assert_eq!((again.status, again.id.as_str(), again.pending), (PushStatus::Duplicate, "M", 2));
    let sink = Recorder::new();
    direct.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    wait_pending(&direct, &s, 0).await;
    let late = courier.push(push(&s, "x").id(id)).await.expect("answered");
    assert_eq!((late.status, late.pending), (PushStatus::Duplicate, 0));
    assert_eq!(sink.bodies(), ["warm", "x"]);
    direct.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Our own repetition after a cut connection queues a message once.
#[tokio::test]
async fn a_push_cut_in_the_middle_is_repeated_by_itself_and_queued_once() {
    let (t, proxy) = behind_proxy("cut_push").await;
    let direct = t.courier().await;
    let courier = t.builder().connect(proxy.url()).await.expect("connected");
    let s = session("s");
    for n in 0..30 {
        // The answer to every third push is cut off somewhere in the middle.
        if n % 3 == 0 {
            proxy.cut_after_reply_bytes(n % 11);
        }
        let pushed = courier.push(push(&s, &n.to_string())).await.expect("pushed in the end");
        assert_eq!(pushed.pending, n as u64 + 1, "{:?}", pushed.status);
    }
    let sink = Recorder::new();
    direct.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(30).await, (0..30).map(|n| n.to_string()).collect::<Vec<_>>());
    direct.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// F20: a lost doorbell costs one look-again, not the message; later pushes are not needed to heal it.
#[tokio::test]
async fn f20_a_lost_doorbell_delays_the_message_by_one_look_again() {
    let (t, proxy) = behind_proxy("f20").await;
    let owner = t.builder().connect(proxy.url()).await.expect("connected");
    let worker = t.courier().await;
    let s = session("s");
    let sink = Recorder::new();
    owner.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");

    // Doorbells of this session carry its id behind a space or alone; the sweep's begin with `?`.
    proxy.drop_frames_with(Some(b"lost-doorbell"));
    worker.push(push(&s, "lost-doorbell")).await.expect("queued");
    // The push is answered on another connection: that does not mean that the doorbell has passed here.
    wait_until("the doorbell to be lost", Duration::from_secs(10), || async {
        if proxy.dropped() >= 1 { Ok(()) } else { Err("nothing dropped".into()) }
    })
    .await;
    proxy.drop_frames_with(None);
    assert_eq!(sink.wait_for(1).await, ["lost-doorbell"]);
    assert!(owner.metrics().doorbells_missed >= 1, "{:?}", owner.metrics());
    owner.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// F20, second run: a push between "the queue is empty" and "the doorbell is heard". The bell is heard before the
/// claim, and a claim says what is pending, so there is no such window; 200 races do not find one.
#[tokio::test(flavor = "multi_thread")]
async fn f20_a_push_that_races_the_claim_is_delivered() {
    let t = Fixture::new("f20_race").await;
    let owner = t.connect(t.builder().look_again(Duration::from_secs(60))).await;
    let worker = t.courier().await;
    for n in 0..200 {
        let s = session(&format!("s{n}"));
        let sink = Recorder::new();
        let pushing = tokio::spawn({
            let (worker, s) = (worker.clone(), s.clone());
            async move { worker.push(push(&s, "x")).await }
        });
        owner.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
        pushing.await.expect("no panic").expect("queued");
        sink.wait_for(1).await;
    }
    owner.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// F25: both directions, or only the replies, vanish without a reset. Found by the heartbeat, and delivered.
async fn half_open(test: &str, mode: Mode) {
    let (t, proxy) = behind_proxy(test).await;
    let owner = Courier::builder().prefix(&t.prefix).connect(proxy.url()).await.expect("connected");
    let worker = t.courier().await;
    let s = session("s");
    let sink = Recorder::new();
    owner.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    worker.push(push(&s, "before")).await.expect("queued");
    sink.wait_for(1).await;

    let cut = Instant::now();
    proxy.freeze_open(mode);
    worker.push(push(&s, "after")).await.expect("queued");
    assert_eq!(sink.wait_for(2).await, ["before", "after"]);
    assert!(
        cut.elapsed() < Duration::from_secs(7),
        "documented: 7 s at the latest, took {:?}",
        cut.elapsed()
    );
    assert!(owner.metrics().reconnects >= 1);
    wait_until("healthy again", Duration::from_secs(10), || async {
        if owner.health().is_healthy() { Ok(()) } else { Err(format!("{:?}", owner.health())) }
    })
    .await;
    owner.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

#[tokio::test]
async fn f25_half_open_connections_are_found_and_replaced() {
    half_open("f25_both", Mode::SILENT).await;
}

#[tokio::test]
async fn f25_connections_that_lose_only_replies_are_found_and_replaced() {
    half_open("f25_replies", Mode::SWALLOW_REPLIES).await;
}

/// F25: once one call shows that the connection is dead, those that were sent over it later do not wait out their own
/// time: they are repeated over the next one.
#[tokio::test]
async fn f25_calls_over_a_connection_that_was_given_up_do_not_wait_any_longer() {
    let (t, proxy) = behind_proxy("f25_given_up").await;
    let builder = t.builder().call_timeout(Duration::from_secs(5)).deadline(Duration::from_secs(30));
    let courier = builder.connect(proxy.url()).await.expect("connected");
    let (s, start) = (session("s"), Instant::now());
    proxy.freeze_open(Mode::SILENT);
    let later = async {
        tokio::time::sleep(Duration::from_secs(4)).await;
        courier.push(push(&s, "later")).await.expect("repeated");
        start.elapsed()
    };
    let (first, later) = tokio::join!(courier.push(push(&s, "first")), later);
    first.expect("repeated");
    // The first one's 5 s, and not 5 s of its own.
    assert!(later < Duration::from_millis(8_500), "{later:?}");
    let metrics = courier.metrics();
    assert_eq!((metrics.timeouts, metrics.reconnects, metrics.duplicates), (1, 1, 0));
    let (direct, sink) = (t.courier().await, Recorder::new());
    direct.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    sink.wait_for(2).await;
    wait_pending(&direct, &s, 0).await;
    direct.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// F25: a caller never waits longer than its own deadline.
#[tokio::test]
async fn f25_no_caller_waits_longer_than_its_deadline() {
    let (t, proxy) = behind_proxy("f25_deadline").await;
    let builder = t.builder().call_timeout(Duration::from_millis(400)).deadline(Duration::from_secs(1));
    let courier = builder.connect(proxy.url()).await.expect("connected");
    proxy.set(Mode::SILENT);
    let s = session("s");
    let start = Instant::now();
    courier.push(push(&s, "x")).await.expect_err("no answer");
    courier.stats(&s).await.expect_err("no answer");
    courier.subscribers().ensure_running(&s, Recorder::new()).await.expect_err("no answer");
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    assert_eq!(courier.subscribers().count(), 0, "not half served");
    t.finish().await;
}

/// F26: a slow server is no dead server: 800 ms of latency end no loop.
#[tokio::test]
async fn f26_latency_above_the_clients_default_timeout_ends_no_loop() {
    let (t, proxy) = behind_proxy("f26").await;
    let owner = Courier::builder().prefix(&t.prefix).connect(proxy.url()).await.expect("connected");
    let worker = t.courier().await;
    let sinks: Vec<_> = (0..50).map(|n| (session(&format!("s{n}")), Recorder::new())).collect();
    for (s, sink) in &sinks {
        owner.subscribers().ensure_running(s, sink.clone()).await.expect("claimed");
    }
    proxy.set(Mode::Delay(Duration::from_millis(400)));
    for n in 0..4 {
        for (s, _) in &sinks {
            worker.push(push(s, &n.to_string())).await.expect("queued");
        }
    }
    for (_, sink) in &sinks {
        sink.wait_for(2).await;
    }
    proxy.set(Mode::Pass);
    for (s, sink) in &sinks {
        assert_eq!(sink.wait_for(4).await, ["0", "1", "2", "3"], "{s}");
    }
    assert_eq!(owner.subscribers().count(), 50);
    assert_eq!(owner.metrics().reconnects, 0, "slow is not broken");
    owner.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// F18: the connection is cut before, during and after the requeue; the failing message is always in one place, and
/// is a dead letter in the end.
#[tokio::test]
async fn f18_a_requeue_that_is_cut_anywhere_loses_nothing() {
    let (t, proxy) = behind_proxy("f18").await;
    let owner = t.builder().connect(proxy.url()).await.expect("connected");
    let worker = t.courier().await;
    for cut in 0..12 {
        let s = session(&format!("s{cut}"));
        worker.push(push(&s, "bad")).await.expect("queued");
        worker.push(push(&s, "good")).await.expect("queued");
        let proxy_in_sink = proxy.clone();
        let sink = Recorder::answering(move |d| {
            if d.body() == b"bad" {
                proxy_in_sink.cut_after_reply_bytes(cut * 3); // the requeue's own answer, mostly
                return Err(SinkError::retry("no"));
            }
            Ok(())
        });
        owner.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
        wait_until("the good one", Duration::from_secs(20), || async {
            if sink.bodies().contains(&"good".to_owned()) {
                Ok(())
            } else {
                Err(format!("{:?}", sink.bodies()))
            }
        })
        .await;
        let bad = sink.bodies().iter().filter(|b| *b == "bad").count();
        assert!((3..=6).contains(&bad), "{bad} attempts: 3, and some whose requeue was cut");
        wait_pending(&worker, &s, 0).await;
        let (total, letters) = worker.dead_letters(&s).list(0, 10).await.expect("listed");
        assert_eq!((total, letters[0].attempts, &letters[0].body[..]), (1, 3, &b"bad"[..]));
    }
    owner.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// F22: ten sessions of a replica whose connections break hear again within two seconds, with a line in the log and a count
/// for each link. Then its listener fails for good while commands would still pass: its lease lapses, asking for the
/// subscription says so, and another replica takes over.
#[tokio::test]
async fn f22_a_listener_that_cannot_hear_does_not_look_alive() {
    let capture = Capture::start();
    let (t, proxy) = behind_proxy("f22").await;
    let a = t.builder().connect(proxy.url()).await.expect("connected");
    let b = t.courier().await;
    let sessions: Vec<_> = (0..10).map(|n| session(&format!("s{n}"))).collect();
    let (on_a, on_b) = (Recorder::new(), Recorder::new());
    for s in &sessions {
        a.subscribers().ensure_running(s, on_a.clone()).await.expect("claimed");
    }
    // Once: an error in the middle. All of them are heard again.
    let before = a.metrics().reconnects;
    proxy.cut();
    let begin = std::time::Instant::now();
    for s in &sessions {
        b.push(push(s, "transient")).await.expect("queued");
    }
    on_a.wait_for(10).await;
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    // Of both links, the one that only listens too.
    wait_until("both links are counted", Duration::from_secs(5), || async {
        let counted = a.metrics().reconnects - before;
        if counted == 2 { Ok(()) } else { Err(counted.to_string()) }
    })
    .await;
    assert_eq!(capture.lines_with(&["connection lost, reconnecting"]).len(), 2, "{}", capture.text());

    // For good: nothing that names the inbox gets through, so no subscription succeeds and no beat is heard.
    proxy.drop_requests_with(Some(b"SUBSCRIBE"));
    proxy.cut();
    wait_until("the lease lapses", Duration::from_secs(10), || async {
        let stats = b.stats(&sessions[0]).await.expect("stats");
        if stats.owner_alive { Err(format!("{stats:?}")) } else { Ok(()) }
    })
    .await;
    assert!(a.health().doorbell.is_some(), "{:?}", a.health());
    a.subscribers().ensure_running(&sessions[0], on_a.clone()).await.expect_err("cannot hear");
    for s in &sessions {
        b.subscribers().ensure_running(s, on_b.clone()).await.expect("claimed");
        b.push(push(s, "taken over")).await.expect("queued");
    }
    assert_eq!(on_b.wait_for(10).await, ["taken over"; 10]);
    proxy.drop_requests_with(None);
    b.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}
