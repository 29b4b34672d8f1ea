//! Sessions spread over partitions: what holds for one holds for many.

use std::collections::BTreeSet;
use std::time::Duration;

use mcp_courier::{Builder, Error, SinkError};

use crate::support::fixture::{Fixture, Recorder, push, session, wait_pending};
use crate::support::wait::wait_until;

fn spread(t: &Fixture) -> Builder {
    t.builder().partitions(8)
}

/// The first to come decides the number; who is set to another is refused by name, and has changed nothing.
#[tokio::test]
async fn a_courier_set_to_another_number_of_partitions_is_refused() {
    let t = Fixture::spread("layout").await;
    let first = t.connect(spread(&t)).await;
    for other in [1, 7, 64] {
        let e = t.builder().partitions(other).connect(t.server.url()).await.expect_err("another number");
        assert_eq!(e, Error::Layout { stored: 8, configured: u64::from(other) });
        assert!(e.to_string().contains('8') && !e.is_retryable());
    }
    for number in [0, 1025] {
        let e = t.builder().partitions(number).connect(t.server.url()).await.expect_err("out of bounds");
        assert!(matches!(e, Error::Invalid { what: "partitions", .. }), "{e:?}");
    }
    t.connect(spread(&t)).await.push(push(&session("s"), "x")).await.expect("queued");
    drop(first);
    t.finish().await;
}

/// Many sessions, one process that pushes, one that serves: everything arrives, everything is seen in the numbers, and
/// nothing stays in any partition.
#[tokio::test]
async fn sessions_of_all_partitions_are_served_counted_and_given_back() {
    let t = Fixture::spread("spread").await;
    let (worker, owner) = (t.connect(spread(&t)).await, t.connect(spread(&t)).await);
    let sessions: Vec<_> = (0..40).map(|n| session(&format!("s{n}"))).collect();
    let pushes = sessions.iter().flat_map(|s| [push(s, "1"), push(s, "2")]);
    for pushed in worker.push_many(pushes).await {
        pushed.expect("queued");
    }
    let tags: BTreeSet<String> = (t.keys().await.into_iter())
        .filter_map(|(key, _)| Some(key.strip_prefix(":{").unwrap_or("0}").split_once('}')?.0.to_owned()))
        .collect();
    assert_eq!(tags.len(), 8, "every partition has some: {tags:?}");
    let seen = worker.overview(100).await.expect("numbers");
    assert_eq!((seen.waiting, seen.pending, seen.sessions.len()), (40, 80, 40));
    assert_eq!(worker.overview(10).await.expect("numbers").sessions.len(), 10);

    let sink = Recorder::new();
    for s in &sessions {
        owner.subscribers().ensure_running(s, sink.clone()).await.expect("claimed");
    }
    sink.wait_for(80).await;
    for s in &sessions {
        wait_pending(&worker, s, 0).await;
        worker.push(push(s, "3")).await.expect("queued");
    }
    sink.wait_for(120).await;
    let numbers = worker.overview(0).await.expect("numbers");
    assert_eq!(numbers.owned, 40);
    assert_eq!(numbers.nodes.len(), 1, "one process is one node: {:?}", numbers.nodes);
    for s in &sessions {
        let of_one: Vec<_> =
            sink.seen().iter().filter(|d| d.session == *s).map(|d| d.body().to_vec()).collect();
        assert_eq!(of_one, [b"1", b"2", b"3"], "{s}");
    }
    let drained = owner.shutdown(Duration::from_secs(5)).await;
    assert_eq!((drained.sessions, drained.abandoned), (40, 0));
    let numbers = worker.overview(0).await.expect("numbers");
    assert_eq!((numbers.owned, numbers.nodes.len()), (0, 0));
    t.finish().await;
}

/// Heartbeats of all partitions come back, also of those without sessions; nothing is taken for lost state.
#[tokio::test]
async fn the_lease_is_kept_in_every_partition() {
    let t = Fixture::spread("leases").await;
    let owner = t.connect(spread(&t)).await;
    owner.subscribers().ensure_running(&session("s"), Recorder::new()).await.expect("claimed");
    let from = owner.metrics().heartbeats;
    wait_until("heartbeats of all partitions", Duration::from_secs(20), || async {
        // In two leases each partition has its turn several times.
        let heard = owner.metrics().heartbeats - from;
        if heard >= 60 { Ok(()) } else { Err(heard.to_string()) }
    })
    .await;
    assert_eq!(owner.metrics().state_lost, 0);
    assert!(owner.health().is_healthy(), "{:?}", owner.health());
    let nodes: usize = {
        let keys = t.keys().await;
        keys.iter().filter(|(key, life)| key.ends_with("n") && !key.contains(":q:") && *life > 0).count()
    };
    assert_eq!(nodes, 8);
    owner.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Dead letters and lost owners are found in the session's own partition.
#[tokio::test]
async fn dead_letters_and_lost_owners_heal_in_their_partition() {
    let t = Fixture::spread("heal").await;
    let owner = t.connect(spread(&t).max_attempts(1)).await;
    let sink = Recorder::answering(|d| {
        if d.body() == b"bad".as_slice() { Err(SinkError::rejected("no")) } else { Ok(()) }
    });
    let sessions: Vec<_> = (0..16).map(|n| session(&format!("s{n}"))).collect();
    for s in &sessions {
        owner.subscribers().ensure_running(s, sink.clone()).await.expect("claimed");
        owner.push(push(s, "bad")).await.expect("queued");
    }
    for s in &sessions {
        wait_until("a dead letter", Duration::from_secs(10), || async {
            let dead = owner.stats(s).await.map_err(|e| e.to_string())?.dead;
            if dead == 1 { Ok(()) } else { Err(dead.to_string()) }
        })
        .await;
        assert_eq!(owner.dead_letters(s).purge(None).await, Ok(1));
    }
    // The owners of all partitions are lost.
    let indexes: Vec<String> = (t.keys().await.into_iter())
        .map(|(key, _)| key)
        .filter(|key| key.ends_with("}:s") || key == "s")
        .collect();
    assert!(indexes.len() > 4, "{indexes:?}");
    for index in indexes {
        let key = if index == "s" { t.key("s", "") } else { format!("{}{index}", t.prefix) };
        t.delete(&key).await;
    }
    wait_until("all claimed again", Duration::from_secs(10), || async {
        let owned = owner.overview(0).await.map_err(|e| e.to_string())?.owned;
        if owned == 16 { Ok(()) } else { Err(owned.to_string()) }
    })
    .await;
    for s in &sessions {
        owner.push(push(s, "good")).await.expect("queued");
    }
    sink.wait_for(32).await;
    owner.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}
