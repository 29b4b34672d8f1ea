//! Failed deliveries: order under retry, attempts, dead letters, and records that nobody understands.

use std::time::{Duration, Instant};

use mcp_courier::{Ended, Error, MessageId, RetryOrder, SinkError};

use crate::support::fixture::{Fixture, Recorder, push, serve, session, wait_pending};
use crate::support::wait::wait_until;

/// 1 to 5 in a queue, 2 fails twice with a backoff of 200 ms.
async fn drain(t: &Fixture, order: RetryOrder) -> (Recorder, Vec<Instant>) {
    let backoff = Duration::from_millis(200);
    let courier = t.connect(t.builder().retry_order(order).backoff(backoff).backoff_cap(backoff)).await;
    let s = session("s");
    for n in 1..=5 {
        courier.push(push(&s, &n.to_string())).await.expect("queued");
    }
    let at = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = Recorder::answering({
        let at = at.clone();
        move |d| {
            at.lock().expect("not poisoned").push(Instant::now());
            if d.body() == b"2" && d.attempt < 3 { Err(SinkError::retry("not now")) } else { Ok(()) }
        }
    });
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    sink.wait_for(7).await;
    wait_pending(&courier, &s, 0).await;
    let m = courier.metrics();
    assert_eq!((m.acked, m.requeued, m.dead), (5, 2, 0));
    courier.shutdown(Duration::from_secs(5)).await;
    let at = at.lock().expect("not poisoned").clone();
    (sink, at)
}

/// The default: what fails keeps its place, and what stands behind it waits for its backoff.
#[tokio::test]
async fn f05_in_order_a_failed_message_comes_again_before_its_successors() {
    let t = Fixture::new("f05_fifo").await;
    let (sink, at) = drain(&t, RetryOrder::Fifo).await;
    assert_eq!(sink.bodies(), ["1", "2", "2", "2", "3", "4", "5"]);
    assert_eq!(sink.seen().iter().map(|d| d.attempt).collect::<Vec<_>>(), [1, 1, 2, 3, 1, 1, 1]);
    // A jitter of a quarter below 200 ms.
    assert!(at[2] - at[1] >= Duration::from_millis(150), "the second attempt came too early");
    assert!(at[3] - at[2] >= Duration::from_millis(150), "the third attempt came too early");
    t.finish().await;
}

/// As FastMCP did: what fails goes to the back, and nobody waits for its backoff.
#[tokio::test]
async fn f05_in_tail_order_successors_do_not_wait_for_a_failed_message() {
    let t = Fixture::new("f05_tail").await;
    let (sink, at) = drain(&t, RetryOrder::Tail).await;
    assert_eq!(sink.bodies(), ["1", "2", "3", "4", "5", "2", "2"]);
    assert!(at[2] - at[1] < Duration::from_millis(150), "3 waited for the backoff of 2");
    assert!(at[5] - at[1] >= Duration::from_millis(150), "the second attempt came too early");
    t.finish().await;
}

/// However many wait for their next attempt, one that is ready behind them does not, also when it comes later.
#[tokio::test]
async fn f05_in_tail_order_a_ready_message_passes_any_number_of_waiting_ones() {
    let t = Fixture::new("f05_tail_many").await;
    let long = Duration::from_secs(30);
    let courier = t.connect(t.builder().retry_order(RetryOrder::Tail).backoff(long).backoff_cap(long)).await;
    for waiting in [1, 40, 300] {
        let s = session(&waiting.to_string());
        for _ in 0..waiting {
            courier.push(push(&s, "waits")).await.expect("queued");
        }
        let sink = Recorder::answering(|d| match d.body() {
            b"waits" => Err(SinkError::retry("not now")),
            _ => Ok(()),
        });
        courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
        sink.wait_for(waiting).await;
        courier.push(push(&s, "ready")).await.expect("queued");
        assert_eq!(sink.wait_for(waiting + 1).await[waiting], "ready");
        wait_pending(&courier, &s, waiting as u64).await;
    }
    courier.shutdown(Duration::from_secs(5)).await;
    // What is left would wait for half a minute.
    for key in ["q:1", "q:40", "q:300", "w"] {
        let _: u64 = t.ask(&format!("DEL {}", t.key(key, ""))).await;
    }
    t.finish().await;
}

/// Two processes compete for the session while a message of it fails: order and attempts hold across the takeover.
#[tokio::test]
async fn f05_order_holds_when_the_session_changes_hands_between_attempts() {
    let t = Fixture::new("f05_hands").await;
    let backoff = Duration::from_millis(200);
    let builder = || t.builder().backoff(backoff).backoff_cap(backoff);
    let (one, two) = (t.connect(builder()).await, t.connect(builder()).await);
    let s = session("s");
    for n in 1..=5 {
        one.push(push(&s, &n.to_string())).await.expect("queued");
    }
    let fails = |d: &mcp_courier::Delivery| {
        if d.body() == b"2" && d.attempt < 3 { Err(SinkError::retry("not now")) } else { Ok(()) }
    };
    let (first, second) = (Recorder::answering(fails), Recorder::answering(fails));
    let serving = serve(&one, &s, first.clone());
    first.wait_for(2).await;
    wait_until("the failure is stored", Duration::from_secs(5), || async {
        let stats = one.stats(&s).await.expect("stats");
        if stats.head_attempts == 1 { Ok(()) } else { Err(format!("{stats:?}")) }
    })
    .await;
    two.subscribers().ensure_running(&s, second.clone()).await.expect("claimed");
    assert_eq!(serving.ended().await, Ended::Superseded);
    assert_eq!(second.wait_for(5).await, ["2", "2", "3", "4", "5"]);
    assert_eq!(first.bodies(), ["1", "2"]);
    assert_eq!(second.seen()[0].attempt, 2, "a living owner's loss of the session counts no attempt");
    two.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A message that is rejected makes no further attempt and stops nobody.
#[tokio::test]
async fn a_rejected_message_is_a_dead_letter_at_once() {
    let t = Fixture::new("retry_rejected").await;
    let courier = t.courier().await;
    let s = session("s");
    for body in ["a", "bad", "b"] {
        courier.push(push(&s, body)).await.expect("queued");
    }
    let sink = Recorder::answering(|d| match d.body() {
        b"bad" => Err(SinkError::rejected("no such method")),
        _ => Ok(()),
    });
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(3).await, ["a", "bad", "b"]);
    let (_, letters) = courier.dead_letters(&s).list(0, 10).await.expect("listed");
    assert_eq!((&*letters[0].reason, letters[0].attempts), ("rejected", 1));
    assert_eq!((&*letters[0].first_error, &*letters[0].last_error), ("no such method", "no such method"));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A sink that panics has failed, no more: the loop goes on, whether it panicked in its first lines or at an await.
#[tokio::test]
async fn a_panic_of_the_sink_is_a_failed_attempt() {
    let t = Fixture::new("retry_panic").await;
    let courier = t.courier().await;
    let s = session("s");
    for body in ["early", "late", "fine"] {
        courier.push(push(&s, body)).await.expect("queued");
    }
    let taken = Recorder::new();
    let sink = {
        let taken = taken.clone();
        move |d: mcp_courier::Delivery| {
            assert!(d.body() != b"early" || d.attempt > 1, "planted: before the future");
            let taken = taken.clone();
            async move {
                tokio::task::yield_now().await;
                assert!(d.body() != b"late" || d.attempt > 2, "planted: inside the future");
                mcp_courier::NotificationSink::deliver(&taken, d).await
            }
        }
    };
    courier.subscribers().ensure_running(&s, sink).await.expect("claimed");
    assert_eq!(taken.wait_for(3).await, ["early", "late", "fine"]);
    assert_eq!(taken.seen().iter().map(|d| d.attempt).collect::<Vec<_>>(), [2, 3, 1]);
    wait_pending(&courier, &s, 0).await;
    assert_eq!(courier.metrics().requeued, 3);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The client is gone, which is not the message's fault: the next subscription delivers it as the first attempt.
#[tokio::test]
async fn a_closed_sink_ends_the_loop_and_costs_no_attempt() {
    let t = Fixture::new("retry_closed").await;
    let courier = t.connect(t.builder().max_attempts(1)).await;
    let s = session("s");
    courier.push(push(&s, "a")).await.expect("queued");
    courier.push(push(&s, "b")).await.expect("queued");
    for _ in 0..5 {
        let sink = Recorder::answering(|_| Err(SinkError::Closed));
        assert_eq!(serve(&courier, &s, sink.clone()).ended().await, Ended::SinkClosed);
        assert_eq!(sink.bodies(), ["a"]);
        assert_eq!(courier.subscribers().count(), 0);
        assert_eq!(t.token("s").await, None, "the session is given back");
    }
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(2).await, ["a", "b"]);
    assert!(sink.seen().iter().all(|d| d.attempt == 1));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// What was delivered before the failing message is acked first, and not delivered again.
#[tokio::test]
async fn a_failure_in_the_middle_of_a_batch_repeats_nothing_else() {
    let t = Fixture::new("retry_middle").await;
    let courier = t.courier().await;
    let s = session("s");
    for n in 0..200 {
        courier.push(push(&s, &n.to_string())).await.expect("queued");
    }
    let sink = Recorder::answering(|d| match d.body() {
        [.., b'7'] if d.attempt == 1 => Err(SinkError::retry("not now")),
        _ => Ok(()),
    });
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    let expected: Vec<String> =
        (0..200).flat_map(|n| vec![n.to_string(); if n % 10 == 7 { 2 } else { 1 }]).collect();
    assert_eq!(sink.wait_for(expected.len()).await, expected);
    wait_pending(&courier, &s, 0).await;
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The list of dead letters is capped, its oldest go first, and it expires as a whole.
#[tokio::test]
async fn dead_letters_are_capped_and_expire() {
    let t = Fixture::new("retry_cap").await;
    let courier = t.connect(t.builder().dead_cap(3).dead_ttl(Duration::from_millis(300))).await;
    let s = session("s");
    let sink = Recorder::answering(|_| Err(SinkError::rejected("no")));
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    for n in 0..5 {
        courier.push(push(&s, &n.to_string())).await.expect("queued");
    }
    wait_pending(&courier, &s, 0).await;
    let (total, letters) = courier.dead_letters(&s).list(0, 10).await.expect("listed");
    assert_eq!(total, 3);
    assert_eq!(letters.iter().map(|l| l.body.clone()).collect::<Vec<_>>(), [b"2", b"3", b"4"]);
    assert_eq!(courier.metrics().dead, 5, "every one is counted");
    let life: i64 = t.ask(&format!("PTTL {}", t.key("dead", "s"))).await;
    assert!((1..=300).contains(&life), "{life}");
    wait_until("the dead letters expire", Duration::from_secs(5), || async {
        let stats = courier.stats(&s).await.expect("stats");
        if stats.dead == 0 { Ok(()) } else { Err(format!("{stats:?}")) }
    })
    .await;
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Pages, one by id, all at once; an unknown id touches nothing.
#[tokio::test]
async fn dead_letters_are_listed_in_pages_and_put_back_or_purged_one_by_one_or_all() {
    let t = Fixture::new("retry_pages").await;
    let courier = t.courier().await;
    let s = session("s");
    let id = |n: u32| MessageId::new(format!("m{n}")).expect("valid");
    for n in 0..250 {
        courier.push(push(&s, &n.to_string()).id(id(n))).await.expect("queued");
    }
    let refuse = Recorder::answering(|_| Err(SinkError::rejected("no")));
    courier.subscribers().ensure_running(&s, refuse).await.expect("claimed");
    wait_pending(&courier, &s, 0).await;
    courier.subscribers().stop(&s).await;

    let dead = courier.dead_letters(&s);
    let mut seen = Vec::new();
    for offset in (0..250).step_by(60) {
        let (total, page) = dead.list(offset, 60).await.expect("listed");
        assert_eq!(total, 250);
        seen.extend(page.into_iter().map(|letter| letter.id));
    }
    assert_eq!(seen, (0..250).map(|n| id(n).as_str().to_owned()).collect::<Vec<_>>(), "oldest first");
    assert_eq!(dead.list(250, 10).await.expect("listed").1, []);
    assert_eq!(dead.list(u64::MAX, u64::MAX).await.expect("listed"), (250, vec![]));
    assert_eq!(dead.list(0, 0).await.expect("listed"), (250, vec![]));

    assert_eq!(dead.requeue(Some(&id(999))).await, Ok(0));
    assert_eq!(dead.purge(Some(&id(999))).await, Ok(0));
    assert_eq!(dead.requeue(Some(&id(249))).await, Ok(1));
    assert_eq!(dead.purge(Some(&id(100))).await, Ok(1));
    let stats = courier.stats(&s).await.expect("stats");
    assert_eq!((stats.pending, stats.dead), (1, 248));
    // More than one script call moves.
    assert_eq!(dead.requeue(None).await, Ok(248));
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    let mut expected = vec!["249".to_owned()];
    expected.extend((0..249).filter(|n| *n != 100).map(|n| n.to_string()));
    assert_eq!(sink.wait_for(249).await, expected);
    assert!(sink.seen().iter().all(|d| d.attempt == 1), "fresh attempts");
    wait_pending(&courier, &s, 0).await;
    assert_eq!(dead.purge(None).await, Ok(0));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// An id that was used again died twice: put back together, both are delivered, and each is acked by its own receipt.
#[tokio::test]
async fn dead_letters_that_share_an_id_are_both_delivered_when_they_are_put_back() {
    let t = Fixture::new("retry_same_id").await;
    let courier = t.connect(t.builder().dedupe(Duration::ZERO)).await;
    let s = session("s");
    for _ in 0..3 {
        courier.push(push(&s, "same").id(MessageId::new("again").expect("valid"))).await.expect("queued");
    }
    let refuse = Recorder::answering(|_| Err(SinkError::rejected("no")));
    courier.subscribers().ensure_running(&s, refuse).await.expect("claimed");
    wait_pending(&courier, &s, 0).await;
    courier.subscribers().stop(&s).await;
    assert_eq!(courier.dead_letters(&s).requeue(None).await, Ok(3));
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    sink.wait_for(3).await;
    wait_pending(&courier, &s, 0).await;
    let times: std::collections::BTreeSet<_> = sink.seen().iter().map(|d| d.enqueued_at_ms).collect();
    assert_eq!((sink.seen().len(), times.len()), (3, 3));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The queue's limit holds for messages that come back: those that do not fit stay dead letters.
#[tokio::test]
async fn putting_back_dead_letters_stops_at_the_limit_of_the_queue() {
    let t = Fixture::new("retry_limit").await;
    let courier = t.connect(t.builder().max_pending(3)).await;
    let s = session("s");
    let refuse = Recorder::answering(|_| Err(SinkError::rejected("no")));
    courier.subscribers().ensure_running(&s, refuse).await.expect("claimed");
    for n in 0..5 {
        courier.push(push(&s, &n.to_string())).await.expect("queued");
        wait_pending(&courier, &s, 0).await;
    }
    courier.subscribers().stop(&s).await;
    let dead = courier.dead_letters(&s);
    let full = dead.requeue(None).await.expect_err("no room for five");
    assert!(matches!(full, Error::QueueFull { limit: 3, .. }), "{full}");
    let stats = courier.stats(&s).await.expect("stats");
    assert_eq!((stats.pending, stats.dead), (3, 2));
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    sink.wait_for(3).await;
    wait_pending(&courier, &s, 0).await;
    assert_eq!(dead.requeue(None).await, Ok(2));
    assert_eq!(sink.wait_for(5).await, ["0", "1", "2", "3", "4"]);
    wait_pending(&courier, &s, 0).await;
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A dead letter that comes back has a fresh life: an owner that died before it came back cost it no attempt.
#[tokio::test]
async fn a_revived_message_does_not_pay_for_an_owner_that_died_before() {
    let t = Fixture::new("retry_revived").await;
    let builder = || {
        t.builder().max_attempts(1).lease(Duration::from_millis(300)).heartbeat(Duration::from_millis(100))
    };
    let courier = t.connect(builder()).await;
    let s = session("s");
    let process = crate::support::fixture::Process::start(builder(), t.server.url()).await;
    process.serve(&s, Recorder::answering(|_| Err(SinkError::rejected("no")))).await;
    courier.push(push(&s, "x")).await.expect("queued");
    wait_pending(&courier, &s, 0).await;
    let node = courier.stats(&s).await.expect("stats").owner.expect("an owner");
    process.crash().await;
    t.wait_deaf(&node).await;
    wait_until("the lease is over", Duration::from_secs(5), || async {
        let stats = courier.stats(&s).await.expect("stats");
        if stats.owner_alive { Err(format!("{stats:?}")) } else { Ok(()) }
    })
    .await;
    assert_eq!(courier.dead_letters(&s).requeue(None).await, Ok(1));
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(1).await, ["x"]);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// What another producer wrote in a format of the future, or by mistake, becomes a dead letter with its bytes intact;
/// it neither blocks the queue nor gets lost.
#[tokio::test]
async fn a_record_in_an_unknown_format_is_a_dead_letter_with_its_bytes_intact() {
    let t = Fixture::new("retry_format").await;
    let courier = t.courier().await;
    let s = session("s");
    let foreign: Vec<Vec<u8>> = vec![
        b"2 1 1 0 0 1 0 0 0 0\nabody".to_vec(),
        b"2 {\"v\":2,\"body\":\"\xff\xfe\"}".to_vec(),
        b"".to_vec(),
        b"\n".to_vec(),
        b"\0\0\0".to_vec(),
        b"garbage".to_vec(),
        br#"{"method":"notifications/message"}"#.to_vec(),
        b"1 1 1 0 0 9 0 0 0 0\nshort".to_vec(),
        b"1 1 99999999999999 0 0 0 0 0 0\nnine numbers too few".to_vec(),
        b"1 1 99999999999999 0 0 1 0 0 0 0 0\nxone number too many".to_vec(),
        b"1 -1 99999999999999 0 0 1 0 0 0 0\nx".to_vec(),
        b"1 1 99999999999999 0 0 18446744073709551615 1 0 0 0\nx".to_vec(),
        [&b"1 "[..], &[b'0'; 200], b" 99999999999999 0 0 1 0 0 0 0\nx"].concat(),
        vec![b'1'; 1 << 20],
    ];
    courier.push(push(&s, "before")).await.expect("queued");
    for record in &foreign {
        let mut cmd = redis::cmd("RPUSH");
        let _: u64 = t.send(cmd.arg(t.key("q", "s")).arg(record)).await;
    }
    courier.push(push(&s, "after")).await.expect("queued");
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(2).await, ["before", "after"]);
    wait_pending(&courier, &s, 0).await;

    let dead = courier.dead_letters(&s);
    let (total, letters) = dead.list(0, 100).await.expect("listed");
    assert_eq!(total, foreign.len() as u64);
    for (letter, record) in letters.iter().zip(&foreign) {
        assert_eq!((&*letter.reason, &*letter.id), ("format", ""));
        assert!(letter.body == *record, "{:?}", String::from_utf8_lossy(record));
        assert!(letter.died_at_ms > 0);
    }
    assert_eq!(dead.requeue(None).await, Ok(0), "nobody understands them: they stay");
    assert_eq!(dead.purge(None).await, Ok(total));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A record of another producer that is valid, with numbers nobody would write: understood, and harmless.
#[tokio::test]
async fn a_foreign_record_with_odd_but_valid_numbers_is_served() {
    let t = Fixture::new("retry_odd").await;
    let courier = t.courier().await;
    let s = session("s");
    courier.push(push(&s, "before")).await.expect("queued");
    for record in [
        &b"1 0 99999999999999 0 0 0 0 0 0 0\nno id"[..],
        b"1 99999999999999 99999999999999 0 0 2 0 0 0 0\nidfrom the future",
        b"1 1 99999999999999 0 1 2 0 0 0 0\n\xff\xfean id that is no text",
        b"1 1 1 0 0 2 0 0 0 0\nidexpired long ago",
        b"1 1 99999999999999 99999999999999999999 0 2 0 0 0 0\nidout of attempts",
        b"1 1 99999999999999999999999999 0 0 2 0 0 0 0\nidlives for ever",
    ] {
        let mut cmd = redis::cmd("RPUSH");
        let _: u64 = t.send(cmd.arg(t.key("q", "s")).arg(record)).await;
    }
    let sink = Recorder::answering(|d| if d.attempt == 1 { Err(SinkError::retry("once")) } else { Ok(()) });
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    wait_pending(&courier, &s, 0).await;
    let mut bodies = sink.bodies();
    bodies.dedup();
    assert_eq!(bodies, ["before", "no id", "from the future", "an id that is no text", "lives for ever"]);
    assert_eq!(sink.seen().len(), 10);
    let (total, letters) = courier.dead_letters(&s).list(0, 10).await.expect("listed");
    assert_eq!((total, &letters[0].body[..], &*letters[0].reason), (1, &b"out of attempts"[..], "attempts"));
    assert_eq!(courier.metrics().expired, 1);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}
