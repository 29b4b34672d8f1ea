//! The same promises with 100,000 sessions in one process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mcp_courier::{Courier, Delivery, Error, SinkError};
use redis::aio::MultiplexedConnection;

use crate::support::fixture::{Fixture, Recorder, push, session, wait_pending};
use crate::support::private::{Options, private_or_skip};
use crate::support::proxy::{Mode, Proxy};
use crate::support::wait::wait_until;

const SESSIONS: usize = 100_000;
const SOON: Duration = Duration::from_secs(30);

/// Claims all of them, a thousand at a time.
async fn claim(owner: &Courier, sink: &Recorder) {
    let registry = owner.subscribers();
    let mut claims = tokio::task::JoinSet::new();
    for first in 0..1000 {
        let (registry, sink) = (registry.clone(), sink.clone());
        claims.spawn(async move {
            for n in (first..SESSIONS).step_by(1000) {
                registry.ensure_running(&session(&format!("s{n}")), sink.clone()).await.expect("claimed");
            }
        });
    }
    while let Some(claimed) = claims.join_next().await {
        claimed.expect("no panic");
    }
    assert_eq!(registry.count(), SESSIONS);
}

/// Connections of the library, as the server sees them: all but the one that asks.
async fn connections(raw: &mut MultiplexedConnection) -> usize {
    let list: String = redis::cmd("CLIENT").arg("LIST").query_async(raw).await.expect("CLIENT LIST");
    list.lines().count() - 1
}

/// One after the other, since claiming is what takes long. F52: two connections all along. F20: a lost doorbell costs
/// one look-again. F51: a body of the limit delays nobody, one above it is refused. F25: a half-open connection is found
/// and replaced. F32: a server that comes back empty is claimed anew, and that is counted once.
#[tokio::test(flavor = "multi_thread")]
async fn f20_f25_f32_f51_f52_hold_with_a_hundred_thousand_sessions() {
    let Some(server) = private_or_skip("scale", Options::default()).await else { return };
    let proxy = Arc::new(Proxy::start(&server.url()).await);
    let owner = Courier::connect(proxy.url()).await.expect("connected");
    let worker = Courier::connect(server.url()).await.expect("connected");
    let mut raw = server.raw().await;
    let sink = Recorder::new();
    claim(&owner, &sink).await;
    assert_eq!(connections(&mut raw).await, 3, "two of the owner, one of the worker");

    // F20
    proxy.drop_frames_with(Some(b"lost-doorbell"));
    worker.push(push(&session("s77777"), "lost-doorbell")).await.expect("queued");
    wait_until("the doorbell to be lost", SOON, || async {
        if proxy.dropped() >= 1 { Ok(()) } else { Err("nothing dropped".into()) }
    })
    .await;
    proxy.drop_frames_with(None);
    sink.wait_for(1).await;
    assert!(owner.metrics().doorbells_missed >= 1);

    // F51
    let limit = 1 << 20;
    let large = "x".repeat(limit);
    let mut sent = 1;
    for n in 0..50 {
        worker.push(push(&session(&format!("s{n}")), "small")).await.expect("queued");
        sent += 1;
        if n == 25 {
            let whole = worker.push(push(&session("s99999"), &large)).await;
            assert!(whole.is_ok(), "a mebibyte is within the default limit: {whole:?}");
            sent += 1;
        }
    }
    assert_eq!(sink.wait_for(sent).await.iter().filter(|body| body.len() == limit).count(), 1);
    let above = worker.push(push(&session("s0"), &"x".repeat(64 << 20))).await;
    assert!(matches!(above, Err(Error::TooLarge { .. })), "{above:?}");

    // F25
    let cut = Instant::now();
    proxy.freeze_open(Mode::SILENT);
    worker.push(push(&session("s50000"), "after the cut")).await.expect("queued");
    sent += 1;
    sink.wait_for(sent).await;
    assert!(
        cut.elapsed() < Duration::from_secs(7),
        "documented: 7 s at the latest, took {:?}",
        cut.elapsed()
    );
    assert_eq!(owner.subscribers().count(), SESSIONS);

    // F32
    redis::cmd("FLUSHALL").exec_async(&mut raw).await.expect("flushed");
    wait_until("every session to have an owner again", SOON, || {
        let mut raw = raw.clone();
        async move {
            let owned: usize =
                redis::cmd("HLEN").arg("courier:{0}:s").query_async(&mut raw).await.expect("HLEN");
            if owned == SESSIONS { Ok(()) } else { Err(owned.to_string()) }
        }
    })
    .await;
    for n in [0, 31_415, 99_998] {
        worker.push(push(&session(&format!("s{n}")), "after the loss")).await.expect("queued");
        sent += 1;
    }
    sink.wait_for(sent).await;
    assert_eq!(owner.metrics().state_lost, 1, "counted once, not for each session");

    assert_eq!(sink.seen().len(), sent, "nothing twice");
    assert_eq!(owner.shutdown(SOON).await.sessions, SESSIONS);
    worker.shutdown(Duration::ZERO).await;
}

/// F35: the engine in memory serves as many, with the same result, and idles as quietly.
#[tokio::test(flavor = "multi_thread")]
async fn f35_memory_serves_a_hundred_thousand_sessions_as_a_server_does() {
    let owner = Courier::connect("memory://").await.expect("connected");
    let sink = Recorder::new();
    claim(&owner, &sink).await;
    for n in (0..SESSIONS).step_by(997) {
        owner.push(push(&session(&format!("s{n}")), "x")).await.expect("queued");
    }
    sink.wait_for(SESSIONS.div_ceil(997)).await;
    assert_eq!(owner.metrics().doorbells_missed, 0);
    assert_eq!(owner.shutdown(SOON).await.abandoned, 0);
}

/// Fairness: whoever has a million to read does not make one wait who has a single message. Here 30,000 wait in one
/// session, and each of the others is served long before those are through.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_a_long_backlog_starves_nobody() {
    let t = Fixture::new("fair").await;
    let courier = t.connect(t.builder().max_pending(1_000_000)).await;
    let long = session("long");
    let mut made = 0;
    while made < 30_000 {
        let batch = (made..made + 1000).map(|n| push(&long, &n.to_string()));
        for pushed in courier.push_many(batch).await {
            pushed.expect("queued");
        }
        made += 1000;
    }
    let backlog = Recorder::new();
    courier.subscribers().ensure_running(&long, backlog.clone()).await.expect("claimed");
    backlog.wait_for(1).await;
    for n in 0..20 {
        let s = session(&format!("short{n}"));
        let (said, heard) = tokio::sync::oneshot::channel();
        let said = std::sync::Mutex::new(Some(said));
        let sink = move |_: Delivery| {
            if let Some(said) = said.lock().expect("not poisoned").take() {
                let _ = said.send(());
            }
            async { Ok::<(), SinkError>(()) }
        };
        courier.subscribers().ensure_running(&s, sink).await.expect("claimed");
        courier.push(push(&s, "one")).await.expect("queued");
        heard.await.expect("delivered");
    }
    let through = backlog.seen().len();
    assert!(through < 30_000, "the others waited for the whole backlog");
    println!("20 single messages while {through} of 30,000 were delivered");
    wait_pending(&courier, &long, 0).await;
    assert_eq!(backlog.bodies(), (0..30_000).map(|n| n.to_string()).collect::<Vec<_>>());
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}
