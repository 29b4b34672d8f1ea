//! Ids that come again.

use std::time::Duration;

use mcp_courier::{MessageId, Push};

use crate::support::fixture::{Fixture, Held, Recorder, session, wait_pending};
use crate::support::proxy::Proxy;

/// Two messages with one id (no window); the answer to the first one's ack is lost.
#[tokio::test(flavor = "multi_thread")]
async fn an_ack_that_is_repeated_removes_no_other_message_with_the_same_id() {
    let t = Fixture::plain("acks").await;
    let proxy = Proxy::start(t.server.url()).await;
    // No heartbeat's answer between the two that matter.
    let builder = t.builder().heartbeat(Duration::from_secs(30)).lease(Duration::from_secs(120));
    let c = builder.look_again(Duration::from_secs(60)).connect(proxy.url()).await.expect("connected");
    let worker = t.courier().await;
    let s = session("s");
    let held = Held::new(Recorder::new());
    c.subscribers().ensure_running(&s, held.clone()).await.expect("served");
    let one =
        |body: &str| Push::new(&s, body).id(MessageId::new("again").expect("an id")).dedupe(Duration::ZERO);
    worker.push(one("1")).await.expect("queued");
    held.recorder.wait_for(1).await;
    worker.push(one("2")).await.expect("queued");
    // The ack runs, and its answer goes down with the connection.
    proxy.cut_after_reply_bytes(0);
    held.gate.cancel();
    wait_pending(&worker, &s, 0).await;
    assert_eq!(held.recorder.bodies(), ["1", "2"]);
    c.shutdown(Duration::from_secs(2)).await;
    t.finish().await;
}
