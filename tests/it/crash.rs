//! A process that dies costs attempts, so that poison ends; one that leaves in good order costs none.

use std::time::Duration;

use mcp_courier::{Builder, SinkError};

use crate::support::fixture::{Fixture, Held, Process, Recorder, push, session, wait_pending};
use crate::support::wait::wait_until;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Lease and heartbeat as short as they may be, so that a dead process is soon known as dead.
fn quick(t: &Fixture) -> Builder {
    t.builder().lease(ms(300)).heartbeat(ms(100)).look_again(ms(100))
}

/// The process vanishes; answers when the server knows.
async fn crash(t: &Fixture, process: Process, sid: &str) {
    let token = t.token(sid).await.expect("an owner");
    process.crash().await;
    t.wait_deaf(token.split(':').next().expect("a node")).await;
}

/// Poison that kills its process is delivered as often as a message may be attempted, and no more.
#[tokio::test]
async fn f15_a_message_that_kills_its_process_ends_as_a_dead_letter() {
    let t = Fixture::new("f15").await;
    let s = session("s");
    let worker = t.courier().await;
    worker.push(push(&s, "poison")).await.expect("queued");
    for n in 0..10 {
        worker.push(push(&s, &n.to_string())).await.expect("queued");
    }
    for attempt in 1..=3 {
        let process = Process::start(t.builder(), t.server.url()).await;
        let sink = Held::new(Recorder::new());
        process.serve(&s, sink.clone()).await;
        assert_eq!(sink.recorder.wait_for(1).await, ["poison"]);
        assert_eq!(sink.recorder.seen()[0].attempt, attempt);
        crash(&t, process, "s").await;
    }
    let courier = t.courier().await;
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(10).await, (0..10).map(|n| n.to_string()).collect::<Vec<_>>());
    assert!(sink.seen().iter().all(|d| d.attempt == 1), "only the head pays");
    let (total, letters) = courier.dead_letters(&s).list(0, 10).await.expect("listed");
    assert_eq!(total, 1);
    assert_eq!((&letters[0].body[..], letters[0].attempts), (&b"poison"[..], 3));
    assert_eq!((&*letters[0].reason, &*letters[0].last_error), ("attempts", "owner lost"));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The same when the dead process's owners are found by a sweep before anybody claims the session.
#[tokio::test]
async fn f15_a_sweep_counts_the_attempt_of_a_dead_owner_once() {
    let t = Fixture::new("f15_sweep").await;
    let s = session("s");
    let other = t.connect(quick(&t).node_grace(ms(100))).await;
    other.subscribers().ensure_running(&session("other"), Recorder::new()).await.expect("claimed");
    for body in ["poison", "good"] {
        other.push(push(&s, body)).await.expect("queued");
    }
    for attempt in 1..=2 {
        let process = Process::start(quick(&t), t.server.url()).await;
        let sink = Held::new(Recorder::new());
        process.serve(&s, sink.clone()).await;
        sink.recorder.wait_for(1).await;
        assert_eq!(sink.recorder.seen()[0].attempt, attempt);
        crash(&t, process, "s").await;
        wait_until("the owner is forgotten", Duration::from_secs(10), || async {
            let stats = other.stats(&s).await.expect("stats");
            if stats.owner.is_none() { Ok(()) } else { Err(format!("{stats:?}")) }
        })
        .await;
        let stats = other.stats(&s).await.expect("stats");
        assert_eq!((stats.pending, stats.head_attempts), (2, u64::from(attempt)));
    }
    let sink = Recorder::new();
    other.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    sink.wait_for(2).await;
    assert_eq!(sink.seen().iter().map(|d| d.attempt).collect::<Vec<_>>(), [3, 1]);
    other.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A deploy is no failure: five orderly stops in the middle of a delivery, with a single attempt allowed.
#[tokio::test]
async fn f16_an_orderly_stop_costs_no_attempt_and_a_crash_does() {
    let t = Fixture::new("f16").await;
    let builder = || t.builder().max_attempts(1);
    let s = session("s");
    let worker = t.connect(builder()).await;
    worker.push(push(&s, "x")).await.expect("queued");
    for way in 0..5 {
        let courier = t.connect(builder()).await;
        let sink = Held::new(Recorder::new());
        courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
        sink.recorder.wait_for(1).await;
        assert_eq!(sink.recorder.seen()[0].attempt, 1);
        if way % 2 == 0 {
            let drained = courier.shutdown(ms(20)).await;
            assert_eq!((drained.sessions, drained.interrupted, drained.abandoned), (1, 1, 0));
        } else {
            assert!(courier.subscribers().stop(&s).await);
        }
        let stats = worker.stats(&s).await.expect("stats");
        assert_eq!((stats.pending, stats.head_attempts, stats.owner), (1, 0, None));
    }
    // Now it is handled, as the first attempt.
    let courier = t.connect(builder()).await;
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    sink.wait_for(1).await;
    assert_eq!(sink.seen()[0].attempt, 1);
    wait_pending(&courier, &s, 0).await;
    courier.shutdown(Duration::from_secs(5)).await;

    // The same with a crash: that was the only attempt.
    worker.push(push(&s, "y")).await.expect("queued");
    let process = Process::start(builder(), t.server.url()).await;
    let held = Held::new(Recorder::new());
    process.serve(&s, held.clone()).await;
    held.recorder.wait_for(1).await;
    crash(&t, process, "s").await;
    let courier = t.connect(builder()).await;
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    wait_pending(&courier, &s, 0).await;
    assert_eq!(sink.bodies(), Vec::<String>::new());
    let (_, letters) = courier.dead_letters(&s).list(0, 1).await.expect("listed");
    assert_eq!((&letters[0].body[..], &*letters[0].last_error), (&b"y"[..], "owner lost"));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A living owner that loses the session to a newer claim in the middle of a delivery costs no attempt either.
#[tokio::test]
async fn f16_a_takeover_from_a_living_owner_costs_no_attempt() {
    let t = Fixture::new("f16_takeover").await;
    let s = session("s");
    let worker = t.connect(t.builder().max_attempts(1)).await;
    worker.push(push(&s, "x")).await.expect("queued");
    let mut sinks = Vec::new();
    for _ in 0..5 {
        let courier = t.connect(t.builder().max_attempts(1)).await;
        let sink = Held::new(Recorder::new());
        courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
        sink.recorder.wait_for(1).await;
        assert_eq!(sink.recorder.seen()[0].attempt, 1);
        sinks.push((courier, sink));
    }
    for (courier, sink) in sinks {
        sink.gate.cancel();
        courier.shutdown(Duration::from_secs(5)).await;
    }
    wait_pending(&worker, &s, 0).await;
    assert_eq!(worker.stats(&s).await.expect("stats").dead, 0);
    t.finish().await;
}

/// The dead owner can not have been given what came after its lease had ended.
#[tokio::test]
async fn f15_a_message_queued_after_the_end_of_the_lease_pays_nothing() {
    let t = Fixture::new("f15_later").await;
    let s = session("s");
    let worker = t.courier().await;
    let process = Process::start(quick(&t), t.server.url()).await;
    process.serve(&s, Recorder::new()).await;
    crash(&t, process, "s").await;
    wait_until("the lease is over", Duration::from_secs(5), || async {
        let stats = worker.stats(&s).await.expect("stats");
        if stats.owner_alive { Err(format!("{stats:?}")) } else { Ok(()) }
    })
    .await;
    worker.push(push(&s, "later")).await.expect("queued");
    let courier = t.courier().await;
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    sink.wait_for(1).await;
    assert_eq!(sink.seen()[0].attempt, 1);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A crash in the middle of a busy session: everything arrives, in order, and only what was in flight twice.
#[tokio::test]
async fn a_crash_under_load_loses_nothing_and_repeats_only_what_was_in_flight() {
    let t = Fixture::new("crash_load").await;
    let s = session("s");
    let worker = t.connect(t.builder().max_attempts(20)).await;
    let (rounds, each) = (8, 250);
    let mut seen = Vec::new();
    for round in 0..rounds {
        let process = Process::start(t.builder().max_attempts(20), t.server.url()).await;
        let sink = Recorder::answering(|_| Ok(()));
        process.serve(&s, sink.clone()).await;
        // Each one has its own to deliver: what came before may be gone when it starts.
        let pushing = tokio::spawn({
            let (worker, s) = (worker.clone(), s.clone());
            async move {
                for n in round * each..(round + 1) * each {
                    worker.push(push(&s, &n.to_string())).await.expect("queued");
                }
            }
        });
        sink.wait_for((round + 1) * 10).await;
        crash(&t, process, "s").await;
        pushing.await.expect("no panic");
        seen.push(sink);
    }
    let total = rounds * each;
    let courier = t.connect(t.builder().max_attempts(20)).await;
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    wait_pending(&courier, &s, 0).await;
    seen.push(sink);
    let all: Vec<String> = seen.iter().flat_map(Recorder::bodies).collect();
    let mut firsts = std::collections::HashSet::new();
    let order: Vec<_> = all.iter().filter(|body| firsts.insert((*body).clone())).cloned().collect();
    assert_eq!(order, (0..total).map(|n| n.to_string()).collect::<Vec<_>>());
    assert!(all.len() - total <= rounds * 2 * 64, "{} repeated", all.len() - total);
    assert_eq!(courier.stats(&s).await.expect("stats").dead, 0);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A crash in the middle of a backoff, in both orders: the pause and the count of attempts survive.
#[tokio::test]
async fn attempts_and_pauses_survive_the_process_that_counted_them() {
    let t = Fixture::new("crash_backoff").await;
    let s = session("s");
    let builder = || t.builder().backoff(ms(400)).backoff_cap(ms(400)).max_attempts(5);
    let worker = t.connect(builder()).await;
    worker.push(push(&s, "x")).await.expect("queued");
    let process = Process::start(builder(), t.server.url()).await;
    process.serve(&s, Recorder::answering(|_| Err(SinkError::retry("not now")))).await;
    wait_until("the failure is stored", Duration::from_secs(5), || async {
        let stats = worker.stats(&s).await.expect("stats");
        if stats.head_attempts == 1 { Ok(()) } else { Err(format!("{stats:?}")) }
    })
    .await;
    crash(&t, process, "s").await;
    let courier = t.connect(builder()).await;
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    sink.wait_for(1).await;
    // One for the failure; one more for the owner that vanished, which may have been trying again.
    assert_eq!(sink.seen()[0].attempt, 3);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}
