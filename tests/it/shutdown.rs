//! Orderly ends, and ends that are not.

use std::time::{Duration, Instant};

use mcp_courier::{Courier, Delivery, SinkError};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::support::fixture::{Fixture, Recorder, push, session};
use crate::support::proxy::{Mode, Proxy};
use crate::support::wait::wait_until;

/// A sink that needs so long, and says when it has begun.
fn slow(takes: Duration, begun: mpsc::UnboundedSender<String>) -> impl mcp_courier::NotificationSink {
    move |d: Delivery| {
        let _ = begun.send(d.session.to_string());
        async move {
            tokio::time::sleep(takes).await;
            Ok::<(), SinkError>(())
        }
    }
}

/// F56: ten deliveries finish within the grace period and are acked once; ten do not, come again elsewhere at once, and
/// their attempts are not counted.
#[tokio::test]
async fn f56_shutdown_finishes_what_is_short_and_gives_back_what_is_long() {
    let t = Fixture::new("f56").await;
    let (leaving, peer, worker) = (t.courier().await, t.courier().await, t.courier().await);
    let (begun, mut begins) = mpsc::unbounded_channel();
    for n in 0..20 {
        let s = session(&format!("s{n}"));
        let takes = if n < 10 { Duration::from_millis(500) } else { Duration::from_secs(60) };
        leaving.subscribers().ensure_running(&s, slow(takes, begun.clone())).await.expect("claimed");
        worker.push(push(&s, "x")).await.expect("queued");
    }
    for _ in 0..20 {
        begins.recv().await.expect("begun");
    }
    let start = Instant::now();
    let meanwhile = async {
        // While it drains it is alive, and takes nothing new.
        let refused = leaving.subscribers().ensure_running(&session("new"), Recorder::new()).await;
        assert!(matches!(refused, Err(mcp_courier::Error::Closed { .. })), "{refused:?}");
        assert!(worker.nodes().await.expect("nodes").iter().any(|n| n.alive));
    };
    let (report, ()) = tokio::join!(leaving.shutdown(Duration::from_secs(2)), meanwhile);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!((report.sessions, report.interrupted, report.abandoned), (20, 10, 0));
    assert_eq!(leaving.metrics().acked, 10);
    assert_eq!(leaving.subscribers().count(), 0);

    let sink = Recorder::new();
    for n in 0..20 {
        peer.subscribers().ensure_running(&session(&format!("s{n}")), sink.clone()).await.expect("claimed");
    }
    sink.wait_for(10).await;
    assert!(sink.seen().iter().all(|d| d.attempt == 1), "no attempt was counted");
    let mut again: Vec<_> = sink.seen().iter().map(|d| d.session.to_string()).collect();
    again.sort();
    assert_eq!(again, (10..20).map(|n| format!("s{n}")).collect::<Vec<_>>());
    worker.push(push(&session("s0"), "pushing goes on")).await.expect("queued");
    leaving.push(push(&session("s0"), "from the one that left as well")).await.expect("queued");
    peer.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// F56: with the server out of reach a shutdown ends in time all the same.
#[tokio::test]
async fn f56_shutdown_ends_in_time_when_the_server_is_out_of_reach() {
    let t = Fixture::plain("f56_away").await;
    let proxy = Proxy::start(t.server.url()).await;
    let courier = t.connect_to(proxy.url()).await;
    let (begun, mut begins) = mpsc::unbounded_channel();
    let s = session("s");
    courier.subscribers().ensure_running(&s, slow(Duration::from_secs(60), begun)).await.expect("claimed");
    courier.push(push(&s, "x")).await.expect("queued");
    begins.recv().await.expect("begun");
    proxy.set(Mode::SILENT);
    let start = Instant::now();
    let report = courier.shutdown(Duration::from_millis(500)).await;
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!((report.interrupted, report.abandoned), (1, 1));
    drop(courier);
    proxy.set(Mode::Pass);
    let peer = t.courier().await;
    let sink = Recorder::new();
    peer.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    sink.wait_for(1).await;
    peer.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// F56: the last handle goes without a shutdown: every task of ours ends.
#[tokio::test]
async fn f56_no_task_is_left_after_shutdown_or_drop() {
    let t = Fixture::new("f56_tasks").await;
    let alive = || Handle::current().metrics().num_alive_tasks();
    let before = alive();
    for orderly in [true, false] {
        let courier = t.courier().await;
        for n in 0..20 {
            let s = session(&format!("s{n}"));
            courier.subscribers().ensure_running(&s, Recorder::new()).await.expect("claimed");
            courier.push(push(&s, "x")).await.expect("queued");
        }
        assert!(alive() > before);
        if orderly {
            courier.shutdown(Duration::from_secs(5)).await;
        }
        drop(courier);
        wait_until("no task left", Duration::from_secs(5), || async {
            let now = alive();
            if now <= before { Ok(()) } else { Err(format!("{now} instead of {before}")) }
        })
        .await;
    }
    t.finish().await;
}

/// F09: a delivery that takes many leases is delivered once.
#[tokio::test]
async fn f09_a_delivery_longer_than_the_lease_is_delivered_once() {
    let t = Fixture::new("f09").await;
    let builder = t.builder().lease(Duration::from_millis(600)).heartbeat(Duration::from_millis(100));
    let courier = t.connect(builder.node_grace(Duration::from_millis(200))).await;
    let bystanders = [t.courier().await, t.courier().await];
    let s = session("s");
    let (begun, mut begins) = mpsc::unbounded_channel();
    courier.subscribers().ensure_running(&s, slow(Duration::from_secs(4), begun)).await.expect("claimed");
    for bystander in &bystanders {
        bystander.subscribers().ensure_running(&session("other"), Recorder::new()).await.expect("claimed");
    }
    courier.push(push(&s, "x")).await.expect("queued");
    begins.recv().await.expect("begun");
    wait_until("acked", Duration::from_secs(15), || async {
        if courier.metrics().acked == 1 { Ok(()) } else { Err(format!("{:?}", courier.metrics())) }
    })
    .await;
    let metrics = courier.metrics();
    assert_eq!((metrics.delivered, metrics.suppressed, begins.try_recv().is_err()), (1, 0, true));
    assert!(metrics.heartbeats >= 6 && metrics.superseded == 0, "{metrics:?}");
    for c in [courier].iter().chain(&bystanders) {
        c.shutdown(Duration::from_secs(5)).await;
    }
    t.finish().await;
}

/// F12: whatever bookkeeping of a session in flight vanishes, another consumer gets the message.
#[tokio::test]
async fn f12_a_message_in_flight_is_found_again_whatever_index_is_lost() {
    for lost in ["n", "s", "w"] {
        let mut t = Fixture::new("f12").await;
        let s = session("s");
        let dying = t.courier().await;
        let (begun, mut begins) = mpsc::unbounded_channel();
        dying.subscribers().ensure_running(&s, slow(Duration::from_secs(60), begun)).await.expect("claimed");
        dying.push(push(&s, "x")).await.expect("queued");
        begins.recv().await.expect("begun");
        drop(dying);
        let key = t.key(lost, "");
        redis::cmd("DEL").arg(key).exec_async(&mut t.raw).await.expect("deleted");
        let next = t.courier().await;
        let sink = Recorder::new();
        next.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
        assert_eq!(sink.wait_for(1).await, ["x"], "without {lost}");
        next.shutdown(Duration::from_secs(5)).await;
        t.finish().await;
    }
}

/// A registry stops what it was told to, and nothing else.
#[tokio::test]
async fn stop_is_idempotent_and_ends_one_session() {
    let t = Fixture::new("stop").await;
    let courier: Courier = t.courier().await;
    let registry = courier.subscribers();
    let (a, b) = (session("a"), session("b"));
    for s in [&a, &b] {
        assert_eq!(registry.ensure_running(s, Recorder::new()).await, Ok(true));
        assert_eq!(registry.ensure_running(s, Recorder::new()).await, Ok(false));
    }
    assert!(registry.stop(&a).await);
    assert!(!registry.stop(&a).await);
    assert_eq!((registry.count(), registry.is_running(&a), registry.is_running(&b)), (1, false, true));
    assert_eq!(registry.sessions(), std::slice::from_ref(&b));
    assert_eq!(courier.stats(&a).await.expect("stats").owner, None);
    assert!(registry.stop(&b).await);
    assert_eq!(registry.count(), 0);
    t.finish().await;
}

/// Whatever is starting when a shutdown begins is refused, or given back with the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_leaves_no_session_that_was_just_starting() {
    let t = Fixture::new("shutdown_race").await;
    let s = session("s");
    for _ in 0..40 {
        let courier = t.courier().await;
        let starting = tokio::spawn({
            let (registry, s) = (courier.subscribers(), s.clone());
            async move { registry.ensure_running(&s, Recorder::new()).await }
        });
        courier.shutdown(Duration::from_secs(5)).await;
        let _ = starting.await.expect("no panic");
        assert_eq!(courier.subscribers().count(), 0);
        assert_eq!(courier.stats(&s).await.expect("stats").owner, None);
    }
    t.finish().await;
}

/// A sink that hangs does not keep the loop of a session that was taken.
#[tokio::test]
async fn a_sink_that_hangs_is_dropped_when_the_session_is_taken() {
    let t = Fixture::new("hung").await;
    let (hung, taker) = (t.courier().await, t.courier().await);
    let s = session("s");
    let (begun, mut begins) = mpsc::unbounded_channel();
    let looping = tokio::spawn({
        let (hung, s) = (hung.clone(), s.clone());
        let sink = slow(Duration::from_secs(3600), begun);
        async move { hung.subscriber_loop(&s, sink, mcp_courier::CancellationToken::new()).await }
    });
    hung.push(push(&s, "x")).await.expect("queued");
    begins.recv().await.expect("begun");
    let sink = Recorder::new();
    taker.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(looping.await.expect("no panic"), Ok(mcp_courier::Ended::Superseded));
    sink.wait_for(1).await;
    taker.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Some owners are lost, others are taken without a word: both are found in turn, without any traffic.
#[tokio::test]
async fn owners_that_are_lost_or_taken_without_a_word_are_found() {
    let mut t = Fixture::new("silent").await;
    let courier = t.courier().await;
    for n in 0..20 {
        courier
            .subscribers()
            .ensure_running(&session(&format!("s{n}")), Recorder::new())
            .await
            .expect("claimed");
    }
    let owners = t.key("s", "");
    // Before the others are lost: it is by their number that it is noticed, and then each is looked at.
    for n in 17..20 {
        let taken = redis::cmd("HSET")
            .arg(&owners)
            .arg(format!("s{n}"))
            .arg("somebody:9")
            .exec_async(&mut t.raw)
            .await;
        taken.expect("taken");
    }
    for n in 0..10 {
        redis::cmd("HDEL").arg(&owners).arg(format!("s{n}")).exec_async(&mut t.raw).await.expect("removed");
    }
    wait_until("claimed again, or given up", Duration::from_secs(10), || async {
        let owned = courier.overview(0).await.expect("overview").owned;
        let count = courier.subscribers().count();
        if (owned, count) == (20, 17) { Ok(()) } else { Err(format!("{owned} owned, {count} served")) }
    })
    .await;
    courier.shutdown(Duration::from_secs(5)).await;
    redis::cmd("DEL").arg(&owners).exec_async(&mut t.raw).await.expect("removed");
    t.finish().await;
}
