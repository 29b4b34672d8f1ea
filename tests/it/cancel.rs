//! Dropping the future of any public call, at every await point, loses and leaks nothing.
//!
//! The driver polls a future a given number of times and drops it; the number goes up until the call completes. Each
//! await point that ever returned `Pending` is thereby the last one of some try.

use std::collections::HashSet;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use mcp_courier::{CancellationToken, Courier, MessageId, PushStatus, SinkError};
use tokio::sync::mpsc;

use crate::support::fixture::{Fixture, Recorder, push, session, wait_pending};
use crate::support::wait::wait_until;

/// Polls at most `polls` times; `None` when it was dropped before it was done. One that waits at an await point where
/// nothing wakes it any more, like a loop that serves, is dropped there.
async fn drop_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    let limited = std::future::poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    });
    tokio::time::timeout(Duration::from_millis(100), limited).await.unwrap_or(None)
}

/// Until nothing of a courier's subscriptions is left in this process.
async fn wait_no_sessions(courier: &Courier) {
    wait_until("no session left", Duration::from_secs(10), || async {
        let left = courier.subscribers().sessions();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

#[tokio::test]
async fn a_dropped_connect_leaves_no_connection() {
    let t = Fixture::new("drop_connect").await;
    for polls in 1..200 {
        if drop_after(polls, t.builder().connect(t.server.url())).await.is_some() {
            assert!(polls > 2, "connecting awaits more than once");
            return t.finish().await;
        }
    }
    panic!("never connected");
}

#[tokio::test]
async fn a_dropped_push_queues_at_most_once_and_can_be_repeated_by_id() {
    let t = Fixture::new("drop_push").await;
    let courier = t.courier().await;
    let s = session("s");
    let mut completed = 0;
    let mut tries = 0;
    while completed < 3 {
        tries += 1;
        let id = MessageId::new(format!("m{tries}")).expect("valid");
        let done =
            drop_after(tries % 12 + 1, courier.push(push(&s, &tries.to_string()).id(id.clone()))).await;
        completed += usize::from(done.is_some());
        let again = courier.push(push(&s, &tries.to_string()).id(id)).await.expect("repeated");
        match done {
            Some(first) => {
                assert_eq!(first.expect("queued").status, PushStatus::Queued);
                assert_eq!(again.status, PushStatus::Duplicate);
            }
            None => assert!(matches!(again.status, PushStatus::Queued | PushStatus::Duplicate)),
        }
        assert_eq!(again.pending, tries as u64, "each message once");
    }
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(tries).await, (1..=tries).map(|n| n.to_string()).collect::<Vec<_>>());
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

#[tokio::test]
async fn a_dropped_subscriber_loop_gives_the_session_back_and_keeps_its_messages() {
    let t = Fixture::new("drop_loop").await;
    let s = session("s");
    let mut seen = HashSet::new();
    let mut order = Vec::new();
    for polls in 1..=12 {
        let courier = t.courier().await;
        for n in 0..3 {
            courier.push(push(&s, &format!("{polls}-{n}"))).await.expect("queued");
        }
        let sink = Recorder::new();
        let looping = courier.subscriber_loop(&s, sink.clone(), CancellationToken::new());
        assert!(drop_after(polls, looping).await.is_none(), "a loop does not end by itself");
        wait_no_sessions(&courier).await;
        let stats = courier.stats(&s).await.expect("stats");
        assert_eq!((stats.owner, stats.head_attempts), (None, 0), "given back, no attempt counted");
        order.extend(sink.bodies());
        seen.extend(sink.bodies());
    }
    let courier = t.courier().await;
    let left = courier.stats(&s).await.expect("stats").pending as usize;
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    order.extend(sink.wait_for(left).await);
    seen.extend(sink.bodies());
    assert!(sink.seen().iter().all(|d| d.attempt == 1));
    assert_eq!(seen.len(), 36, "every message was delivered at least once");
    order.dedup();
    let mut firsts = HashSet::new();
    order.retain(|body| firsts.insert(body.clone()));
    let expected: Vec<_> = (1..=12).flat_map(|p| (0..3).map(move |n| format!("{p}-{n}"))).collect();
    assert_eq!(order, expected, "first appearances are in order");
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The sink's own await points: its future is dropped in the middle of a delivery.
#[tokio::test]
async fn a_delivery_dropped_in_the_middle_comes_again_without_a_counted_attempt() {
    let t = Fixture::new("drop_delivery").await;
    let courier = t.courier().await;
    let s = session("s");
    for n in 0..4 {
        courier.push(push(&s, &n.to_string())).await.expect("queued");
    }
    for stuck_at in 0..4_u8 {
        let (reached, mut stuck) = mpsc::unbounded_channel();
        let sink = move |d: mcp_courier::Delivery| {
            let reached = reached.clone();
            async move {
                assert_eq!(d.attempt, 1, "an interrupted delivery is no attempt");
                if d.body() == [b'0' + stuck_at] {
                    let _ = reached.send(());
                    std::future::pending::<()>().await;
                }
                Ok::<(), SinkError>(())
            }
        };
        let looping = courier.subscriber_loop(&s, sink, CancellationToken::new());
        tokio::select! {
            ended = looping => panic!("ended: {ended:?}"),
            _ = stuck.recv() => {}
        }
        wait_no_sessions(&courier).await;
        wait_pending(&courier, &s, 4 - u64::from(stuck_at)).await;
    }
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(1).await, ["3"]);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

#[tokio::test]
async fn dropped_registry_calls_leave_sessions_served_or_not_and_never_in_between() {
    let t = Fixture::new("drop_registry").await;
    let courier = t.courier().await;
    let registry = courier.subscribers();
    for polls in 1..=10 {
        let s = session(&format!("s{polls}"));
        courier.push(push(&s, "x")).await.expect("queued");
        let sink = Recorder::new();
        let _ = drop_after(polls, registry.ensure_running(&s, sink.clone())).await;
        // Whatever was dropped, asking again makes it so. A subscription that survived keeps its own sink.
        let fresh = Recorder::new();
        registry.ensure_running(&s, fresh.clone()).await.expect("claimed");
        wait_pending(&courier, &s, 0).await;
        assert_eq!(sink.seen().len() + fresh.seen().len(), 1, "delivered once");
        let _ = drop_after(polls % 4 + 1, registry.stop(&s)).await;
        wait_until("stopped", Duration::from_secs(5), || async {
            if registry.sessions().contains(&s) { Err("in the table".to_owned()) } else { Ok(()) }
        })
        .await;
        assert_eq!(courier.stats(&s).await.expect("stats").owner, None);
    }
    assert_eq!(registry.count(), 0);
    for n in 0..50 {
        registry.ensure_running(&session(&format!("m{n}")), Recorder::new()).await.expect("claimed");
    }
    let _ = drop_after(2, registry.shutdown(Duration::from_secs(5))).await;
    wait_no_sessions(&courier).await;
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

#[tokio::test]
async fn dropped_calls_on_dead_letters_leave_each_message_in_exactly_one_place() {
    let t = Fixture::new("drop_dead").await;
    let courier = t.connect(t.builder().max_attempts(1)).await;
    let s = session("s");
    let total = 20_u64;
    for n in 0..total {
        courier.push(push(&s, &n.to_string())).await.expect("queued");
    }
    let refuse = Recorder::answering(|_| Err(SinkError::rejected("no")));
    courier.subscribers().ensure_running(&s, refuse).await.expect("claimed");
    wait_pending(&courier, &s, 0).await;
    courier.subscribers().stop(&s).await;
    let dead = courier.dead_letters(&s);
    for polls in 1..=8 {
        let (_, page) = dead.list(0, 1).await.expect("listed");
        let id = MessageId::new(&page[0].id).expect("valid");
        let _ = drop_after(polls, dead.list(0, 10)).await;
        let _ = drop_after(polls, dead.requeue(Some(&id))).await;
        let stats = courier.stats(&s).await.expect("stats");
        assert_eq!(stats.pending + stats.dead, total);
        let _ = drop_after(polls, courier.overview(10)).await;
        let _ = drop_after(polls, courier.ping()).await;
    }
    for polls in 1..=4 {
        let _ = drop_after(polls, dead.purge(None)).await;
    }
    dead.purge(None).await.expect("purged");
    let sink = Recorder::new();
    let pending = courier.stats(&s).await.expect("stats").pending as usize;
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    sink.wait_for(pending).await;
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}
