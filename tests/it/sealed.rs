//! Bodies that are encrypted in Redis: nobody reads them there, keys rotate, and what cannot be opened reaches no client.

use std::time::Duration;

use mcp_courier::{Courier, Error, KeyRing, MessageId};

use crate::support::capture::Capture;
use crate::support::fixture::{Fixture, Recorder, push, session, wait_pending};

const PLAIN: &str = r#"{"method":"notifications/message","params":{"data":"top-secret"}}"#;

fn ring(id: &str, byte: u8) -> KeyRing {
    KeyRing::new(id, [byte; 32]).expect("a key")
}

async fn with(t: &Fixture, ring: &KeyRing) -> Courier {
    t.connect(t.builder().encryption(ring.clone())).await
}

#[tokio::test]
async fn a_sealed_body_is_read_by_its_client_and_by_nobody_in_redis_while_keys_rotate() {
    let t = Fixture::new("sealed").await;
    let (old, new) = (ring("old", 1), ring("new", 2).and("old", [1; 32]).expect("another id"));
    let s = session("s");
    let before = with(&t, &old).await;
    before.push(push(&s, PLAIN)).await.expect("queued");
    let after = with(&t, &new).await;
    after.push(push(&s, PLAIN)).await.expect("queued");

    let stored: Vec<Vec<u8>> = t.ask(&format!("LRANGE {} 0 -1", t.key("q", "s"))).await;
    assert_eq!(stored.len(), 2);
    for record in &stored {
        assert!(!String::from_utf8_lossy(record).contains("secret"), "readable");
    }
    assert_ne!(stored[0], stored[1]);
    let sink = Recorder::new();
    after.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(2).await, [PLAIN, PLAIN]);
    wait_pending(&after, &s, 0).await;
    // Through the doorbell as well.
    before.push(push(&s, PLAIN)).await.expect("queued");
    sink.wait_for(3).await;
    let shown = format!("{before:?} {:?} {old:?}", t.builder().encryption(old.clone()));
    assert!(!shown.contains("[1, 1") && shown.contains("old"), "{shown}");
    after.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// No ring, another key under the same id, an unknown id, a body that is not sealed, a body moved to another message:
/// each is a dead letter with the reason, its bytes intact, and nothing reaches the client. With the right ring it is
/// put back and delivered.
#[tokio::test]
async fn what_cannot_be_opened_fails_closed_and_is_kept() {
    let t = Fixture::new("sealed_closed").await;
    let right = ring("k", 1);
    let owner = with(&t, &right).await;
    let none = t.courier().await;
    let (other, unknown) = (with(&t, &ring("k", 9)).await, with(&t, &ring("x", 1)).await);
    let capture = Capture::start();
    for (name, producer, consumer, why) in [
        ("none", &owner, &none, "no key ring"),
        ("other", &owner, &other, "does not open"),
        ("unknown", &owner, &unknown, "the key k, which is not in the key ring"),
        ("plain", &none, &owner, "not sealed"),
    ] {
        let (s, sink) = (session(name), Recorder::new());
        producer.push(push(&s, PLAIN)).await.expect("queued");
        consumer.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
        wait_pending(&none, &s, 0).await;
        consumer.subscribers().stop(&s).await;
        assert!(sink.seen().is_empty(), "{name}: {:?}", sink.bodies());
        let (total, letters) = consumer.dead_letters(&s).list(0, 10).await.expect("listed");
        assert_eq!(total, 1, "{name}");
        assert!(letters[0].last_error.contains(why), "{name}: {}", letters[0].last_error);
        assert!(!capture.text().contains("top-secret"), "{name}");
        if name != "plain" {
            assert!(!String::from_utf8_lossy(&letters[0].body).contains("secret"));
            assert_eq!(owner.dead_letters(&s).list(0, 1).await.expect("listed").1[0].body, PLAIN.as_bytes());
            assert_eq!(owner.dead_letters(&s).requeue(None).await, Ok(1));
            owner.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
            assert_eq!(sink.wait_for(1).await, [PLAIN], "{name}: with the right ring");
            wait_pending(&none, &s, 0).await;
        }
    }
    // A sealed body that is pasted behind another id does not open.
    let (a, b) = (session("a"), session("b"));
    owner.push(push(&a, PLAIN).id(MessageId::new("m").expect("valid"))).await.expect("queued");
    let stolen: Vec<Vec<u8>> = t.ask(&format!("LRANGE {} 0 -1", t.key("q", "a"))).await;
    let mut paste = redis::cmd("RPUSH");
    let _: u64 = t.send(paste.arg(t.key("q", "b")).arg(&stolen)).await;
    let _: u64 = t.ask(&format!("PEXPIRE {} 60000", t.key("q", "b"))).await;
    let sink = Recorder::new();
    owner.subscribers().ensure_running(&b, sink.clone()).await.expect("claimed");
    wait_pending(&none, &b, 0).await;
    assert!(sink.seen().is_empty(), "{:?}", sink.bodies());
    owner.subscribers().ensure_running(&a, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(1).await, [PLAIN]);
    let forged = none.push(mcp_courier::Push::new(&a, &b"\xC0mcs1..."[..])).await.expect_err("looks sealed");
    assert!(matches!(forged, Error::Invalid { .. }), "{forged:?}");
    owner.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The announcement of a question and the content of its answer; the wrong keys are an error for the worker.
#[tokio::test]
async fn an_answer_is_read_by_who_asked_and_by_nobody_in_redis() {
    use crate::questions::{accepted, ann, ask, asking, outcome, rid, soon};

    let t = Fixture::new("sealed_answer").await;
    let courier = with(&t, &ring("k", 1)).await;
    let s = session("s");
    for (wrong, id) in [(None, "q1"), (Some(ring("k", 9)), "q2")] {
        let stranger = match wrong {
            None => t.courier().await,
            Some(ring) => with(&t, &ring).await,
        };
        let waiting = asking(&courier, ask(&s, id)).await;
        let theirs = asking(&stranger, ask(&s, id)).await;
        courier.relay().answer(&s, &rid(id), None, ann()).await.expect("stored");
        assert_eq!(accepted(&outcome(waiting).await), serde_json::json!({"name": "Ann"}));
        let refused = soon(theirs).await.expect("no panic").expect_err("no content without the key");
        assert!(matches!(refused, Error::Invalid { .. }), "{refused:?}");
        let stored: Vec<Vec<u8>> =
            t.ask(&format!("HMGET {} content outcome", t.key("e", &format!("s:{id}")))).await;
        let stored: Vec<_> = stored.iter().map(|value| String::from_utf8_lossy(value)).collect();
        assert!(stored.iter().any(|value| value.contains("mcs1")), "{stored:?}");
        assert!(!stored.concat().contains("Ann"), "{stored:?}");
    }
    let announced: Vec<Vec<u8>> = t.ask(&format!("LRANGE {} 0 -1", t.key("q", "s"))).await;
    assert_eq!(announced.len(), 2);
    assert!(announced.iter().all(|record| !String::from_utf8_lossy(record).contains("requestedSchema")));
    let _: u64 = t.ask(&format!("DEL {}", t.key("q", "s"))).await;
    let _: u64 = t.ask(&format!("ZREM {} s", t.key("w", ""))).await;
    t.finish().await;
}

/// Tasks are encrypted as the courier is, unless they have keys of their own.
#[tokio::test]
async fn the_tasks_of_an_encrypted_courier_are_encrypted() {
    use mcp_courier::tasks::{NewTask, Scope};

    let t = Fixture::new("sealed_tasks").await;
    let tasks = with(&t, &ring("of-the-courier", 1)).await.tasks();
    assert!(format!("{tasks:?}").contains("encrypted: true"), "{tasks:?}");
    let task = tasks.create(NewTask::new(&Scope::anonymous(), "top-secret")).await.expect("made");
    let key = t.key(&crate::tasks::key("", &task.task_id), "");
    let call: Vec<u8> = t.ask(&format!("HGET {key} call")).await;
    let call = String::from_utf8_lossy(&call).into_owned();
    assert!(call.starts_with('s') && call.contains("of-the-courier") && !call.contains("secret"), "{call}");
    t.finish().await;
}
