//! Who serves a session, and when that ends.

use std::time::{Duration, Instant};

use mcp_courier::rmcp::{PeerSink, SessionLink, Sessions};
use mcp_courier::{NotificationSink, Push};
use rmcp::ServiceExt;
use rmcp::service::RoleServer;
use serde_json::json;

use super::support::{Plain, Replica, TestClient, TestServer, numbered, session_of};
use crate::support::fixture::{Fixture, session, wait_pending};

/// One line in `on_initialized`, and what a worker in another process pushes reaches the client, in order and unchanged.
#[tokio::test]
async fn what_a_worker_pushes_reaches_the_client_over_http() {
    let t = Fixture::new("mcp_reaches").await;
    let (worker, server) = (t.courier().await, Replica::start(&t.courier().await).await);
    let client = TestClient::default();
    let running = client.connect(&server.url).await;
    let session = session_of(&running).await;
    for n in 0..10 {
        worker.push_notification(&session, &numbered(n)).await.expect("queued");
    }
    let status = json!({"method": "notifications/tasks/status", "params": {
        "taskId": "t-1", "status": "input_required", "odd": [1, {"x": null}],
        "_meta": {"io.modelcontextprotocol/related-task": {"taskId": "t-1"},
                  "elicitation": {"requestId": "r-1", "message": "Sure?", "requestedSchema": {"type": "object"}}},
    }});
    worker.push(Push::new(&session, status.to_string())).await.expect("queued");
    worker.push_notification(&session, &numbered(10)).await.expect("queued");
    assert_eq!(client.wait_numbers(11).await, (0..11).collect::<Vec<_>>());
    let heard = client.heard.lock().expect("not poisoned")[10].clone();
    assert_eq!(heard["params"]["taskId"], "t-1");
    assert_eq!(heard["params"]["odd"], json!([1, {"x": null}]));
    wait_pending(&worker, &session, 0).await;
    running.cancel().await.expect("it ends");
    server.wait_count(0).await;
    server.shutdown().await;
    t.finish().await;
}

/// The subscriber count rises while the session works and returns to its value within a second after the client left.
#[tokio::test]
async fn the_subscriber_count_returns_within_a_second_after_the_client_left() {
    let t = Fixture::new("mcp_count").await;
    let server = Replica::start(&t.courier().await).await;
    let staying = Plain::initialize(&server.url).await;
    server.wait_count(1).await;
    let leaving = Plain::initialize(&server.url).await;
    server.wait_count(2).await;
    leaving.delete(&server.url).await;
    let left = Instant::now();
    server.wait_count(1).await;
    assert!(left.elapsed() < Duration::from_secs(1), "{:?}", left.elapsed());
    assert!(server.sessions.courier().subscribers().is_running(&staying.id()));
    staying.delete(&server.url).await;
    server.wait_count(0).await;
    server.shutdown().await;
    t.finish().await;
}

/// A client that leaves while another replica serves its session: that one hears of it.
#[tokio::test]
async fn a_session_deleted_at_one_replica_ends_at_the_others() {
    let t = Fixture::new("mcp_deleted").await;
    let (a, b) = (Replica::start(&t.courier().await).await, Replica::start(&t.courier().await).await);
    let client = Plain::initialize(&a.url).await;
    a.wait_count(1).await;
    client.delete(&b.url).await;
    let left = Instant::now();
    a.wait_count(0).await;
    assert!(left.elapsed() < Duration::from_secs(1), "{:?}", left.elapsed());
    let (status, _) = client.post(&b.url, &json!({"jsonrpc": "2.0", "id": 1, "method": "ping"})).await;
    assert_eq!(status, 404, "no replica takes it over");
    a.shutdown().await;
    b.shutdown().await;
    t.finish().await;
}

/// Over stdio there is no session id: the server chooses one. The end of the pipe ends the subscription, also while the
/// handler is still held by somebody.
#[tokio::test]
async fn over_a_pipe_the_end_of_the_client_ends_the_subscription() {
    struct Piped(SessionLink);
    impl rmcp::ServerHandler for Piped {
        async fn on_initialized(&self, context: rmcp::service::NotificationContext<RoleServer>) {
            self.0.attach_as(&session("pipe"), context.peer).await.expect("served");
        }
    }
    let t = Fixture::new("mcp_pipe").await;
    let courier = t.courier().await;
    let sessions = Sessions::new(&courier);
    let link = sessions.link();
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let held = link.clone();
    let serving =
        tokio::spawn(async move { Piped(link).serve(theirs).await.expect("initialized").waiting().await });
    let client = TestClient::default();
    let running = client.clone().serve(ours).await.expect("initialized");
    courier.push_notification(&session("pipe"), &numbered(7)).await.expect("queued");
    assert_eq!(client.wait_numbers(1).await, [7]);
    assert_eq!(courier.subscribers().count(), 1);
    running.cancel().await.expect("it ends");
    serving.await.expect("no panic").expect("it ends");
    crate::support::wait::wait_until("no subscriber", Duration::from_secs(3), || async {
        if courier.subscribers().count() == 0 { Ok(()) } else { Err("one".to_owned()) }
    })
    .await;
    assert_eq!(held.session(), Some(session("pipe")));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// What is no notification is a dead letter, and what follows is delivered.
#[tokio::test]
async fn a_message_that_is_no_notification_is_a_dead_letter_and_blocks_nothing() {
    let t = Fixture::new("mcp_dead").await;
    let (worker, server) = (t.courier().await, Replica::start(&t.courier().await).await);
    let client = Plain::initialize(&server.url).await;
    let mut events = client.get(&server.url, None).await;
    for body in [r#"{"id":1,"method":"ping"}"#, "text", r#"{"method":"m","params":[1]}"#] {
        worker.push(Push::new(&client.id(), body)).await.expect("queued");
    }
    worker.push_notification(&client.id(), &numbered(1)).await.expect("queued");
    assert_eq!(events.number().await.0, 1);
    let dead = worker.dead_letters(&client.id());
    assert_eq!(dead.list(0, 10).await.expect("a page").0, 3);
    dead.purge(None).await.expect("purged");
    client.delete(&server.url).await;
    server.wait_count(0).await;
    server.shutdown().await;
    t.finish().await;
}

/// A sink whose peer is gone says so, before and during a delivery.
#[tokio::test]
async fn a_sink_without_its_peer_is_closed() {
    let t = Fixture::new("mcp_closed").await;
    let courier = t.courier().await;
    let sessions = Sessions::new(&courier);
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let serving = tokio::spawn(TestServer { link: sessions.link() }.serve(theirs));
    let running = TestClient::default().serve(ours).await.expect("initialized");
    let serving = serving.await.expect("no panic").expect("initialized");
    let sink = PeerSink::new(serving.peer().clone());
    assert!(!sink.is_closed());
    running.cancel().await.expect("it ends");
    serving.waiting().await.expect("it ends");
    assert!(sink.is_closed());
    let id = mcp_courier::MessageId::new("m").expect("valid");
    let delivery = mcp_courier::Delivery::synthetic(&session("s"), &id, 1, r#"{"method":"m"}"#);
    assert_eq!(sink.deliver(delivery).await, Err(mcp_courier::SinkError::Closed));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}
