//! Read this first: what the crate promises, each in a few lines.

use std::time::Duration;

use mcp_courier::{CancellationToken, Ended, Notification, OnFull, PushStatus, SinkError};

use crate::support::fixture::{Fixture, Recorder, push, session, wait_pending};

/// What is pushed before anybody listens waits, and arrives in order.
#[tokio::test]
async fn messages_wait_for_their_session_and_arrive_in_order() {
    let t = Fixture::new("in_order").await;
    let (worker, server) = (t.courier().await, t.courier().await);
    let s = session("s");
    for n in 0..5 {
        worker.push(push(&s, &n.to_string())).await.expect("queued");
    }
    let sink = Recorder::new();
    let cancel = CancellationToken::new();
    let running = tokio::spawn({
        let (server, s, sink, cancel) = (server.clone(), s.clone(), sink.clone(), cancel.clone());
        async move { server.subscriber_loop(&s, sink, cancel).await }
    });
    for n in 5..10 {
        worker.push(push(&s, &n.to_string())).await.expect("queued");
    }
    assert_eq!(sink.wait_for(10).await, (0..10).map(|n| n.to_string()).collect::<Vec<_>>());
    cancel.cancel();
    assert_eq!(running.await.expect("no panic"), Ok(Ended::Stopped));
    wait_pending(&worker, &s, 0).await;
    t.finish().await;
}

/// A notification is JSON as MCP has it, and comes out as it went in.
#[tokio::test]
async fn a_notification_arrives_as_it_was_pushed() {
    let t = Fixture::new("notification").await;
    let courier = t.courier().await;
    let s = session("s");
    let sent = Notification::new("notifications/progress").param("progress", 3).meta("task", "t-1");
    courier.push_notification(&s, &sent).await.expect("queued");
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    sink.wait_for(1).await;
    assert_eq!(sink.seen()[0].notification(), Ok(sent));
    assert_eq!(
        sink.bodies(),
        [r#"{"method":"notifications/progress","params":{"_meta":{"task":"t-1"},"progress":3}}"#]
    );
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A failed delivery is tried again, before its successors.
#[tokio::test]
async fn a_failed_delivery_comes_again_before_its_successors() {
    let t = Fixture::new("retry").await;
    let courier = t.courier().await;
    let s = session("s");
    for body in ["a", "b", "c"] {
        courier.push(push(&s, body)).await.expect("queued");
    }
    let sink = Recorder::answering(|d| match (d.body(), d.attempt) {
        (b"b", 1 | 2) => Err(SinkError::retry("not now")),
        _ => Ok(()),
    });
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(5).await, ["a", "b", "b", "b", "c"]);
    assert_eq!(sink.seen()[3].attempt, 3);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// One that always fails becomes a dead letter with everything that is known of it; its successors then flow.
#[tokio::test]
async fn a_message_out_of_attempts_becomes_a_dead_letter_and_frees_the_queue() {
    let t = Fixture::new("dead").await;
    let courier = t.courier().await;
    let s = session("s");
    let poison = courier.push(push(&s, "poison")).await.expect("queued").id;
    courier.push(push(&s, "good")).await.expect("queued");
    let sink = Recorder::answering(|d| match d.body() {
        b"poison" => Err(SinkError::retry(format!("failure {}", d.attempt))),
        _ => Ok(()),
    });
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(4).await, ["poison", "poison", "poison", "good"]);

    let dead = courier.dead_letters(&s);
    let (total, letters) = dead.list(0, 10).await.expect("listed");
    assert_eq!(total, 1);
    let letter = &letters[0];
    assert_eq!(
        (letter.id.as_str(), letter.reason.as_str(), letter.attempts),
        (poison.as_str(), "attempts", 3)
    );
    assert_eq!((letter.first_error.as_str(), letter.last_error.as_str()), ("failure 1", "failure 3"));
    assert_eq!(letter.body, b"poison");

    assert_eq!(dead.requeue(Some(&poison)).await, Ok(1));
    sink.wait_for(7).await;
    assert_eq!(sink.seen()[4].attempt, 1, "fresh attempts");
    assert_eq!(dead.purge(None).await, Ok(1));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The same id twice within the window is one message; a newer message with the same key takes a pending one's place.
#[tokio::test]
async fn ids_are_idempotent_and_keys_coalesce() {
    let t = Fixture::new("ids").await;
    let courier = t.courier().await;
    let s = session("s");
    let id = mcp_courier::MessageId::new("m-1").expect("valid");
    let first = courier.push(push(&s, "one").id(id.clone())).await.expect("queued");
    let again = courier.push(push(&s, "one").id(id.clone())).await.expect("known");
    assert_eq!((first.status, again.status), (PushStatus::Queued, PushStatus::Duplicate));
    assert_eq!((again.id, again.pending), (id, 1));

    for (body, status) in
        [("v1", PushStatus::Queued), ("v2", PushStatus::Coalesced), ("v3", PushStatus::Coalesced)]
    {
        assert_eq!(
            courier.push(push(&s, body).coalesce("resource")).await.expect("taken").status,
            status,
            "{body}"
        );
    }
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(2).await, ["one", "v3"]);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A full queue refuses, or drops its oldest when the producer says so; both are counted.
#[tokio::test]
async fn a_full_queue_refuses_or_drops_the_oldest_as_the_producer_chose() {
    let t = Fixture::new("full").await;
    let courier = t.connect(t.builder().max_pending(2)).await;
    let s = session("s");
    for body in ["a", "b"] {
        courier.push(push(&s, body)).await.expect("queued");
    }
    let full = courier.push(push(&s, "c")).await.expect_err("full");
    assert!(matches!(full, mcp_courier::Error::QueueFull { pending: 2, limit: 2, .. }), "{full}");
    let dropped = courier.push(push(&s, "d").on_full(OnFull::DropOldest)).await.expect("queued");
    assert_eq!((dropped.dropped, dropped.pending), (1, 2));
    let metrics = courier.metrics();
    assert_eq!((metrics.pushed, metrics.refused_full, metrics.dropped), (3, 1, 1));
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(2).await, ["b", "d"]);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The newest claim wins; the one before ends as superseded and deletes nothing of the other's.
#[tokio::test]
async fn a_second_claim_supersedes_the_first() {
    let t = Fixture::new("supersede").await;
    let (one, two) = (t.courier().await, t.courier().await);
    let s = session("s");
    let (first, second) = (Recorder::new(), Recorder::new());
    let running = tokio::spawn({
        let (one, s, first) = (one.clone(), s.clone(), first.clone());
        async move { one.subscriber_loop(&s, first, CancellationToken::new()).await }
    });
    one.push(push(&s, "a")).await.expect("queued");
    first.wait_for(1).await;
    two.subscribers().ensure_running(&s, second.clone()).await.expect("claimed");
    assert_eq!(running.await.expect("no panic"), Ok(Ended::Superseded));
    one.push(push(&s, "b")).await.expect("queued");
    assert_eq!(second.wait_for(1).await, ["b"]);
    assert_eq!(first.bodies(), ["a"]);
    assert!(two.stats(&s).await.expect("stats").owner_alive);
    assert_eq!((one.subscribers().count(), two.subscribers().count()), (0, 1));
    two.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Many messages in one round trip: in order, each with its own answer.
#[tokio::test]
async fn many_messages_in_one_round_trip_have_an_answer_each_and_keep_their_order() {
    let t = Fixture::new("many").await;
    let courier = t.connect(t.builder().max_body_bytes(4).max_pending(3)).await;
    let (a, b) = (session("a"), session("b"));
    let id = mcp_courier::MessageId::new("m").expect("valid");
    let pushes = [
        push(&a, "1"),
        push(&b, "too long"),
        push(&b, "1").id(id.clone()),
        push(&a, "2"),
        push(&b, "1").id(id),
        push(&a, "3"),
        push(&a, "full"),
    ];
    let answers = courier.push_many(pushes).await;
    let words: Vec<_> = answers
        .iter()
        .map(|answer| match answer {
            Ok(pushed) => pushed.status.as_str(),
            Err(mcp_courier::Error::TooLarge { .. }) => "too large",
            Err(mcp_courier::Error::QueueFull { .. }) => "full",
            Err(e) => panic!("{e}"),
        })
        .collect();
    assert_eq!(words, ["queued", "too large", "queued", "queued", "duplicate", "queued", "full"]);
    assert!(courier.push_many([]).await.is_empty());
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&a, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(3).await, ["1", "2", "3"]);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}
