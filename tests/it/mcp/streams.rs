//! Streams and their event logs.

use std::time::Duration;

use mcp_courier::rmcp::Sessions;
use serde_json::json;

use super::support::{Plain, Replica, numbered};
use crate::support::fixture::{Fixture, wait_pending};

/// What was sent while the client was away comes when it resumes, once and in order, and then what follows.
#[tokio::test]
async fn a_client_that_resumes_misses_nothing_and_gets_nothing_twice() {
    let t = Fixture::new("mcp_resume").await;
    let (worker, server) = (t.courier().await, Replica::start(&t.courier().await).await);
    let client = Plain::initialize(&server.url).await;
    let mut events = client.get(&server.url, None).await;
    let mut last = String::new();
    for n in 0..3 {
        worker.push_notification(&client.id(), &numbered(n)).await.expect("queued");
        let (got, id) = events.number().await;
        assert_eq!(got, n);
        last = id;
    }
    drop(events);
    for n in 3..200 {
        worker.push_notification(&client.id(), &numbered(n)).await.expect("queued");
    }
    wait_pending(&worker, &client.id(), 0).await;
    let mut events = client.get(&server.url, Some(&last)).await;
    for n in 3..200 {
        assert_eq!(events.number().await.0, n);
    }
    worker.push_notification(&client.id(), &numbered(200)).await.expect("queued");
    assert_eq!(events.number().await.0, 200);
    client.delete(&server.url).await;
    assert!(events.next().await.is_none(), "the end of the session ends its stream");
    server.wait_count(0).await;
    server.shutdown().await;
    t.finish().await;
}

/// A log keeps so many events and so many bytes; the oldest go first.
#[tokio::test]
async fn an_event_log_is_trimmed_by_count_and_by_bytes() {
    let t = Fixture::new("mcp_trim").await;
    let worker = t.courier().await;
    for (max_events, max_bytes, size) in [(10, 1 << 20, 10), (1000, 5000, 900)] {
        let courier = t.courier().await;
        let sessions = Sessions::builder(&courier).max_events(max_events).max_event_bytes(max_bytes).build();
        let server = Replica::serve(sessions).await;
        let client = Plain::initialize(&server.url).await;
        for n in 0..30 {
            let notification = numbered(n).param("padding", "x".repeat(size));
            worker.push_notification(&client.id(), &notification).await.expect("queued");
        }
        wait_pending(&worker, &client.id(), 0).await;
        let log = t.key("me", &format!("{}%3Acommon", client.session));
        let kept: u64 = t.ask(&format!("ZCARD {log}")).await;
        assert!(if size == 10 { kept == 10 } else { (4..=5).contains(&kept) }, "{kept} of size {size}");
        let life: i64 = t.ask(&format!("PTTL {log}")).await;
        assert!(life > 0, "{life}");
        let mut events = client.get(&server.url, None).await;
        for n in 30 - kept as i64..30 {
            assert_eq!(events.number().await.0, n);
        }
        client.delete(&server.url).await;
        server.wait_count(0).await;
        server.shutdown().await;
    }
    t.finish().await;
}

/// Of two streams of one session the newer gets the messages; the older stays open, and is used again when the newer is
/// gone.
#[tokio::test]
async fn of_two_streams_of_a_session_the_newest_gets_the_messages() {
    let t = Fixture::new("mcp_two").await;
    let worker = t.courier().await;
    let (a, b) = (Replica::start(&t.courier().await).await, Replica::start(&t.courier().await).await);
    let client = Plain::initialize(&a.url).await;
    let mut old = client.get(&a.url, None).await;
    worker.push_notification(&client.id(), &numbered(0)).await.expect("queued");
    assert_eq!(old.number().await.0, 0);
    let mut new = client.get(&b.url, None).await;
    for n in 1..4 {
        worker.push_notification(&client.id(), &numbered(n)).await.expect("queued");
        new.until(n).await;
    }
    drop(new);
    worker.push_notification(&client.id(), &numbered(4)).await.expect("queued");
    old.until(4).await;
    client.delete(&a.url).await;
    a.wait_count(0).await;
    b.wait_count(0).await;
    a.shutdown().await;
    b.shutdown().await;
    t.finish().await;
}

/// An event id of another session's stream, a made-up one and one of a log that is gone give an empty stream.
#[tokio::test]
async fn a_foreign_event_id_gives_no_events() {
    let t = Fixture::new("mcp_foreign").await;
    let (worker, server) = (t.courier().await, Replica::start(&t.courier().await).await);
    let (victim, thief) = (Plain::initialize(&server.url).await, Plain::initialize(&server.url).await);
    let mut events = victim.get(&server.url, None).await;
    worker.push_notification(&victim.id(), &numbered(1)).await.expect("queued");
    let (_, id) = events.number().await;
    let before = id.rsplit_once('/').map(|(stream, _)| format!("{stream}/1")).expect("an event id");
    for foreign in
        [&*before, "x/1", "nonsense", "%00/99999999999999999", "00000000-0000-0000-0000-000000000000/5"]
    {
        assert!(thief.get(&server.url, Some(foreign)).await.next().await.is_none(), "{foreign}");
    }
    victim.delete(&server.url).await;
    thief.delete(&server.url).await;
    server.wait_count(0).await;
    server.shutdown().await;
    t.finish().await;
}

/// The stream of a single request can be resumed at another replica while the first works on, and ends with the answer.
#[tokio::test]
async fn a_requests_stream_resumes_at_another_replica_and_ends_with_its_answer() {
    let t = Fixture::new("mcp_request").await;
    let (a, b) = (Replica::start(&t.courier().await).await, Replica::start(&t.courier().await).await);
    let client = Plain::initialize(&a.url).await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "session", "arguments": {}}});
    let (_, mut events) = client.post(&a.url, &call).await;
    let answer = events.next().await.expect("an answer");
    assert!(events.next().await.is_none());
    let (stream, _) = answer.id.rsplit_once('/').expect("an event id");
    let mut again = client.get(&b.url, Some(&format!("{stream}/1"))).await;
    let same = again.next().await.expect("the answer");
    assert_eq!((&same.id, &same.message), (&answer.id, &answer.message));
    assert!(again.next().await.is_none(), "the answer ends the stream");
    client.delete(&a.url).await;
    a.wait_count(0).await;
    b.wait_count(0).await;
    a.shutdown().await;
    b.shutdown().await;
    // The request's own log is nobody's to delete: it expires.
    let left = t.keys().await.into_iter().filter(|(_, life)| *life < 0).collect::<Vec<_>>();
    assert_eq!(left, []);
    tokio::time::timeout(Duration::from_secs(10), t.finish()).await.expect("clean");
}
