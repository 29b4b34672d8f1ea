//! Several replicas, requests going to either, and the death of one.

use std::time::Duration;

use super::support::{Balancer, Plain, Replica, TestClient, numbered, session_of};
use crate::support::fixture::{Fixture, Process};
use crate::support::wait::wait_until;

/// Requests go round: whichever replica holds the stream, serves the session or is asked, everything arrives in order.
#[tokio::test]
async fn behind_a_round_robin_proxy_everything_arrives_whoever_holds_the_stream() {
    let t = Fixture::new("mcp_round").await;
    let worker = t.courier().await;
    let (a, b) = (Replica::start(&t.courier().await).await, Replica::start(&t.courier().await).await);
    let balancer = Balancer::start(&[&a, &b]).await;
    let client = TestClient::default();
    let running = client.connect(&balancer.url).await;
    let session = session_of(&running).await;
    for n in 0..60 {
        worker.push_notification(&session, &numbered(n)).await.expect("queued");
        if n % 10 == 9 {
            // Another request goes to the other replica; the session may move there.
            assert_eq!(session_of(&running).await, session);
        }
    }
    assert_eq!(client.wait_numbers(60).await, (0..60).collect::<Vec<_>>());
    running.cancel().await.expect("it ends");
    a.wait_count(0).await;
    b.wait_count(0).await;
    a.shutdown().await;
    b.shutdown().await;
    t.finish().await;
}

/// The replica that holds the stream dies: the client resumes at the other one with `Last-Event-ID` and misses nothing.
#[tokio::test]
async fn after_a_replicas_death_the_client_resumes_on_the_other_and_misses_nothing() {
    let t = Fixture::new("mcp_death").await;
    let worker = t.courier().await;
    let process = Process::start(t.builder(), t.server.url()).await;
    let courier = process.courier.clone();
    let started = process.runtime.spawn(async move { Replica::start(&courier).await });
    let doomed = started.await.expect("it starts");
    let survivor = Replica::start(&t.courier().await).await;
    let client = Plain::initialize(&doomed.url).await;
    let mut events = client.get(&doomed.url, None).await;
    for n in 0..5 {
        worker.push_notification(&client.id(), &numbered(n)).await.expect("queued");
    }
    let mut last = String::new();
    for n in 0..3 {
        let (got, id) = events.number().await;
        assert_eq!(got, n);
        last = id;
    }
    drop(doomed);
    process.crash().await;
    while events.next().await.is_some() {}
    for n in 5..10 {
        worker.push_notification(&client.id(), &numbered(n)).await.expect("queued");
    }
    let mut events = client.get(&survivor.url, Some(&last)).await;
    for n in 3..10 {
        // The dead replica may have stored one that it did not ack: at least once.
        events.until(n).await;
    }
    client.delete(&survivor.url).await;
    survivor.wait_count(0).await;
    survivor.shutdown().await;
    t.finish().await;
}

/// The replica that serves the session dies while the client reads at the other one, which notices and serves it.
#[tokio::test]
async fn when_the_serving_replica_dies_the_one_that_holds_the_stream_takes_the_session() {
    let t = Fixture::new("mcp_takes").await;
    let worker = t.courier().await;
    let process = Process::start(t.builder(), t.server.url()).await;
    let courier = process.courier.clone();
    let doomed =
        process.runtime.spawn(async move { Replica::start(&courier).await }).await.expect("it starts");
    let survivor = Replica::start(&t.courier().await).await;
    let client = Plain::initialize(&doomed.url).await;
    doomed.wait_count(1).await;
    let mut events = client.get(&survivor.url, None).await;
    assert_eq!((doomed.count(), survivor.count()), (1, 0), "a session stays where it is served");
    worker.push_notification(&client.id(), &numbered(0)).await.expect("queued");
    assert_eq!(events.number().await.0, 0);
    drop(doomed);
    process.crash().await;
    worker.push_notification(&client.id(), &numbered(1)).await.expect("queued");
    // The dead one may have stored the first and not acked it: at least once.
    events.until(1).await;
    client.delete(&survivor.url).await;
    survivor.wait_count(0).await;
    survivor.shutdown().await;
    t.finish().await;
}

/// The same with rmcp's own client behind the proxy, which resumes by itself.
#[tokio::test]
async fn rmcps_client_comes_through_the_death_of_a_replica_behind_the_proxy() {
    let t = Fixture::new("mcp_rmcp_death").await;
    let worker = t.courier().await;
    let process = Process::start(t.builder(), t.server.url()).await;
    let courier = process.courier.clone();
    let doomed =
        process.runtime.spawn(async move { Replica::start(&courier).await }).await.expect("it starts");
    let survivor = Replica::start(&t.courier().await).await;
    let balancer = Balancer::start(&[&doomed, &survivor]).await;
    let client = TestClient::default();
    let running = client.connect(&balancer.url).await;
    let session = session_of(&running).await;
    for n in 0..10 {
        worker.push_notification(&session, &numbered(n)).await.expect("queued");
    }
    client.wait_numbers(5).await;
    balancer.set_targets(&[&survivor]);
    drop(doomed);
    process.crash().await;
    for n in 10..20 {
        worker.push_notification(&session, &numbered(n)).await.expect("queued");
    }
    // In order and complete; the dead replica may have delivered some that it did not ack, and those come again.
    let complete = wait_until("all of them", Duration::from_secs(20), || async {
        let numbers = client.numbers();
        if numbers.last() == Some(&19) { Ok(numbers) } else { Err(format!("{numbers:?}")) }
    })
    .await;
    let mut seen = std::collections::HashSet::new();
    let once: Vec<i64> = complete.iter().copied().filter(|n| seen.insert(*n)).collect();
    assert_eq!(once, (0..20).collect::<Vec<_>>(), "{complete:?}");
    running.cancel().await.expect("it ends");
    survivor.wait_count(0).await;
    survivor.shutdown().await;
    t.finish().await;
}
