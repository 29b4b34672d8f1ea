//! A fault is seen: health, metrics, logs; and what must not be seen is not.

use std::time::Duration;

use mcp_courier::{Courier, Error, Push, SinkError};

use crate::support::capture::Capture;
use crate::support::fixture::{Fixture, Recorder, push, session, wait_pending};
use crate::support::private::{Options, private_or_skip};
use crate::support::proxy::{Mode, Proxy};
use crate::support::wait::wait_until;

/// F54: writes refused, replies swallowed, the doorbell cut: unhealthy within five seconds, with the part that fails.
#[tokio::test]
async fn f54_a_broken_path_turns_health_bad_and_names_the_part() {
    let t = Fixture::plain("f54").await;
    let proxy = Proxy::start(t.server.url()).await;
    let courier = t.connect_to(proxy.url()).await;
    let s = session("s");
    courier.subscribers().ensure_running(&s, Recorder::new()).await.expect("claimed");
    assert!(courier.health().is_healthy());

    proxy.set(Mode::Refuse);
    wait_until("both parts", Duration::from_secs(5), || async {
        let health = courier.health();
        if health.commands.is_some() && health.doorbell.is_some() {
            Ok(())
        } else {
            Err(format!("{health:?}"))
        }
    })
    .await;
    proxy.set(Mode::Pass);
    wait_until("healthy", Duration::from_secs(10), || async {
        if courier.health().is_healthy() { Ok(()) } else { Err(format!("{:?}", courier.health())) }
    })
    .await;
    proxy.drop_requests_with(Some(b"SUBSCRIBE"));
    proxy.cut();
    wait_until("the doorbell", Duration::from_secs(5), || async {
        let health = courier.health();
        if health.doorbell.is_some() && health.commands.is_none() {
            Ok(())
        } else {
            Err(format!("{health:?}"))
        }
    })
    .await;
    proxy.drop_requests_with(None);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// F54, and a refusal that ends no loop: the server cannot save, refuses every write, and recovers.
#[tokio::test]
async fn f54_a_server_that_refuses_writes_is_named_and_served_again() {
    let Some(server) =
        private_or_skip("misconf", Options { extra: &["--save", "3600 1"], ..Options::default() }).await
    else {
        return;
    };
    let mut raw = server.raw().await;
    let courier = Courier::builder()
        .heartbeat(Duration::from_millis(200))
        .lease(Duration::from_secs(2))
        .connect(server.url())
        .await
        .expect("connected");
    let s = session("s");
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    courier.push(push(&s, "before")).await.expect("queued");
    sink.wait_for(1).await;

    let capture = Capture::start();
    // Replicas are required and there are none: the refusal of every write that needs no broken disk.
    redis::cmd("CONFIG")
        .arg("SET")
        .arg("min-replicas-to-write")
        .arg(1)
        .exec_async(&mut raw)
        .await
        .expect("set");
    wait_until("named", Duration::from_secs(5), || async {
        match courier.health().commands {
            Some(Error::Refused { code, .. }) if code == "NOREPLICAS" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let refused = courier.push(push(&s, "refused")).await.expect_err("refused");
    assert!(matches!(&refused, Error::Refused { code, .. } if code == "NOREPLICAS"), "{refused:?}");
    assert!(refused.is_retryable() && !refused.is_ambiguous());
    let told = |what: &str| capture.lines_with(&[what]).len();
    wait_until("some more heartbeats", Duration::from_secs(5), || async {
        if told("no sweep") >= 1 { Ok(()) } else { Err("none".to_owned()) }
    })
    .await;
    assert_eq!(told("no heartbeat"), 1, "warned once, not at each try: {}", capture.text());

    redis::cmd("CONFIG")
        .arg("SET")
        .arg("min-replicas-to-write")
        .arg(0)
        .exec_async(&mut raw)
        .await
        .expect("set");
    courier.push(push(&s, "after")).await.expect("queued");
    assert_eq!(sink.wait_for(2).await, ["before", "after"]);
    wait_until("healthy", Duration::from_secs(5), || async {
        if courier.health().is_healthy() { Ok(()) } else { Err(format!("{:?}", courier.health())) }
    })
    .await;
    courier.shutdown(Duration::from_secs(5)).await;
}

/// A full server refuses pushes, and is drained: claims, acks and retries need no memory that it does not have.
#[tokio::test]
async fn a_full_server_refuses_pushes_and_is_drained() {
    let Some(server) = private_or_skip("oom", Options::default()).await else { return };
    let mut raw = server.raw().await;
    let courier = Courier::builder()
        .heartbeat(Duration::from_millis(200))
        .lease(Duration::from_secs(2))
        .backoff(Duration::from_millis(20))
        .connect(server.url())
        .await
        .expect("connected");
    let s = session("s");
    for n in 0..50 {
        courier.push(push(&s, &n.to_string())).await.expect("queued");
    }
    redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1).exec_async(&mut raw).await.expect("set");
    let full = courier.push(push(&s, "x")).await.expect_err("full");
    assert!(matches!(&full, Error::Refused { code, .. } if code == "OOM"), "{full:?}");
    let sink = Recorder::answering(|d| match (d.body(), d.attempt) {
        (b"7", 1) => Err(SinkError::retry("once")),
        (b"9", _) => Err(SinkError::rejected("never")),
        _ => Ok(()),
    });
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed on a full server");
    wait_pending(&courier, &s, 0).await;
    assert_eq!(sink.seen().len(), 51, "one came twice");
    assert_eq!(courier.stats(&s).await.expect("stats").dead, 1);
    assert!(
        courier.nodes().await.expect("nodes").iter().any(|n| n.alive),
        "the lease is renewed on a full server"
    );
    courier.shutdown(Duration::from_secs(5)).await;
}

/// F54: the age of the oldest message rises without any traffic, and an idle queue has none.
#[tokio::test]
async fn f54_the_oldest_message_ages_and_an_idle_queue_does_not() {
    let t = Fixture::new("f54_age").await;
    let courier = t.courier().await;
    let s = session("s");
    let idle = courier.stats(&s).await.expect("stats");
    assert_eq!((idle.pending, idle.oldest_age_ms, idle.owner), (0, 0, None));
    courier.push(push(&s, "x")).await.expect("queued");
    wait_until("it ages", Duration::from_secs(5), || async {
        let overview = courier.overview(10).await.expect("overview");
        let age = overview.oldest_age_ms;
        if age >= 200 && overview.pending == 1 { Ok(()) } else { Err(format!("{overview:?}")) }
    })
    .await;
    courier.subscribers().ensure_running(&s, Recorder::new()).await.expect("claimed");
    wait_pending(&courier, &s, 0).await;
    assert_eq!(courier.overview(10).await.expect("overview").oldest_age_ms, 0);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// F54: every message is accounted for.
#[tokio::test]
async fn f54_at_rest_the_counters_add_up() {
    let t = Fixture::new("f54_sum").await;
    let (worker, owner) = (t.courier().await, t.connect(t.builder().max_attempts(2)).await);
    let s = session("s");
    for n in 0..60 {
        let p = push(&s, &n.to_string());
        worker.push(if n % 10 == 3 { p.ttl(Duration::from_millis(1)) } else { p }).await.expect("queued");
    }
    let sink = Recorder::answering(|d| match d.body() {
        [.., b'5'] => Err(SinkError::retry("always")),
        [.., b'7'] if d.attempt == 1 => Err(SinkError::retry("once")),
        _ => Ok(()),
    });
    owner.subscribers().ensure_running(&s, sink).await.expect("claimed");
    wait_pending(&worker, &s, 0).await;
    wait_until("acks counted", Duration::from_secs(5), || async {
        let (w, o) = (worker.metrics(), owner.metrics());
        let gone = o.acked + o.expired + w.expired + o.dead;
        if w.pushed == gone { Ok(()) } else { Err(format!("{w:?} {o:?}")) }
    })
    .await;
    let o = owner.metrics();
    assert_eq!((worker.metrics().pushed, o.dead, o.delivered), (60, 6, o.acked));
    assert_eq!(o.requeued, 6 + 6, "six once, six before their last attempt");
    owner.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Logs carry session, message, attempt and script, and never a body.
#[tokio::test]
async fn logs_name_the_message_and_never_show_its_body() {
    let t = Fixture::new("logs").await;
    let capture = Capture::start();
    let courier = t.courier().await;
    let s = session("session-in-the-log");
    let canary = "canary-in-the-body";
    let id = courier.push(Push::new(&s, format!("{{\"secret\":\"{canary}\"}}"))).await.expect("queued").id;
    let sink = Recorder::answering(|d| {
        if d.attempt == 1 { Err(SinkError::retry("tried")) } else { Err(SinkError::rejected("gave up")) }
    });
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    sink.wait_for(2).await;
    wait_pending(&courier, &s, 0).await;
    let shown =
        format!("{:?} {:?}", sink.seen(), courier.dead_letters(&s).list(0, 10).await.expect("listed"));
    assert!(!shown.contains(canary), "{shown}");
    courier.shutdown(Duration::from_secs(5)).await;
    let log = capture.text();
    assert!(!log.contains(canary), "a body is in the log");
    assert!(capture.lines_with(&["session-in-the-log", id.as_str(), "attempt"]).len() >= 2, "{log}");
    t.finish().await;
}
