//! Pushes that wait for replicas: confirmed, or queued and said to be unconfirmed; nobody else waits.

use std::time::Duration;

use mcp_courier::{Courier, Error, MessageId, Push, PushStatus, SessionId};
use redis::aio::MultiplexedConnection;

use crate::support::backend::Kind;
use crate::support::fixture::{Fixture, push, session};
use crate::support::private::{Options, private_or_skip};
use crate::support::wait::wait_until;

/// Longer than anything that a test does meanwhile.
const LONG: Duration = Duration::from_secs(8);
const SHORT: Duration = Duration::from_millis(200);

fn with_id(s: &SessionId, id: &str) -> Push {
    push(s, id).id(MessageId::new(id).expect("valid"))
}

fn unconfirmed(e: &Error) -> bool {
    matches!(e, Error::NotReplicated { confirmed: 0, wanted: 1, .. }) && e.is_retryable() && !e.is_ambiguous()
}

/// How often a command was called, as the server counts.
async fn calls(raw: &mut MultiplexedConnection, command: &str) -> u64 {
    let info: String = redis::cmd("INFO").arg("commandstats").query_async(raw).await.expect("INFO");
    let line = info.lines().find_map(|l| l.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.and_then(|l| l.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// A server without replicas: the message is queued, the error says so, and what can not be is refused before.
#[tokio::test]
async fn without_replicas_the_message_is_queued_and_the_error_says_so() {
    let t = Fixture::plain("replicas_none").await;
    if !matches!(t.server.kind(), Kind::Binary | Kind::Docker | Kind::Memory) {
        eprintln!("skipped: the server may have replicas");
        return;
    }
    let courier = t.courier().await;
    let s = session("s");
    for n in 1..=2 {
        let e = courier.push(with_id(&s, "m").wait_replicas(1, SHORT)).await.expect_err("no replica");
        assert!(unconfirmed(&e), "{n}: {e:?}");
        assert!(e.to_string().contains("message m is queued, and 0 of 1 replicas"), "{e}");
    }
    assert_eq!(courier.stats(&s).await.expect("stats").pending, 1, "once");
    let many = courier
        .push_many([push(&s, "plain"), push(&s, "waits").wait_replicas(1, SHORT), push(&s, "plain")])
        .await;
    assert!(many[0].is_ok() && many[2].is_ok(), "{many:?}");
    assert!(many[1].as_ref().is_err_and(unconfirmed), "{many:?}");
    assert_eq!(many[0].as_ref().expect("queued").replicas, None, "nobody asked");
    assert_eq!(courier.stats(&s).await.expect("stats").pending, 4);

    for (replicas, within) in [(0, SHORT), (1, Duration::ZERO), (1001, SHORT), (1, Duration::from_secs(10))] {
        let e = courier.push(push(&s, "x").wait_replicas(replicas, within)).await.expect_err("refused");
        assert!(matches!(e, Error::Invalid { .. }), "{replicas} {within:?}: {e:?}");
        let builder = t.builder().wait_replicas(replicas, within).connect(t.server.url()).await;
        assert!(matches!(builder, Err(Error::Invalid { .. })), "{replicas} {within:?}");
    }
    let all = t.connect(t.builder().wait_replicas(1, SHORT)).await;
    assert!(all.push(push(&s, "x")).await.as_ref().is_err_and(unconfirmed), "of every push");
    let _: u64 = t.ask(&format!("DEL {}", t.key("q", "s"))).await;
    let _: u64 = t.ask(&format!("ZREM {} s", t.key("w", ""))).await;
    t.finish().await;
}

/// Who may not WAIT is told so; the message is queued.
#[tokio::test]
async fn a_missing_right_to_wait_is_named_and_the_message_is_queued() {
    let Some(server) = private_or_skip("replicas_rights", Options::default()).await else { return };
    let mut raw = server.raw().await;
    let mut user = redis::cmd("ACL");
    user.arg(&["SETUSER", "hasty", "on", ">p", "~*", "resetchannels", "&*", "+@all", "-wait"]);
    user.exec_async(&mut raw).await.expect("a user");
    let url = format!("redis://hasty:p@127.0.0.1:{}", server.port());
    let courier = Courier::connect(url).await.expect("connected");
    let s = session("s");
    let e = courier.push(push(&s, "x").wait_replicas(1, SHORT)).await.expect_err("no right");
    assert!(matches!(&e, Error::Refused { op: "wait", code, .. } if code == "NOPERM"), "{e:?}");
    assert_eq!(courier.stats(&s).await.expect("stats").pending, 1);
}

#[cfg(feature = "sentinel")]
mod with_a_replica {
    use super::*;
    use crate::support::sentinel::{Setup, trio_or_skip};
    use crate::support::server;

    /// What is confirmed is on the replica, over a third connection that the first such push opens.
    #[tokio::test]
    async fn what_is_confirmed_is_on_the_replica() {
        let Some(trio) = trio_or_skip("replicas", Setup::default()).await else { return };
        let courier = Courier::connect(trio.url()).await.expect("connected");
        let mut master = server::raw(&format!("redis://127.0.0.1:{}", trio.servers[0].port)).await;
        let mut replica = server::raw(&format!("redis://127.0.0.1:{}", trio.servers[1].port)).await;
        let s = session("s");
        for n in 1..=50_u64 {
            let pushed = courier.push(push(&s, "x").wait_replicas(1, LONG)).await.expect("confirmed");
            assert_eq!((pushed.pending, pushed.replicas), (n, Some(1)));
            let there: u64 =
                redis::cmd("LLEN").arg("courier:{0}:q:s").query_async(&mut replica).await.expect("LLEN");
            assert!(there >= n, "{there} of {n} on the replica");
        }
        let list: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut master).await.expect("LIST");
        // Neither ours by hand, nor the replica's, nor the sentinels'.
        let ours = list
            .lines()
            .filter(|l| ["evalsha", "eval", "wait"].iter().any(|c| l.contains(&format!("cmd={c} "))))
            .count();
        assert_eq!(ours, 2, "one for everything, one that waits: {list}");
    }

    /// The replica stands still. The message is queued once, however often and by whomever it is pushed again, and is
    /// confirmed once the replica goes on.
    #[tokio::test]
    async fn a_message_is_confirmed_when_the_replica_comes_back_and_never_before() {
        let Some(trio) = trio_or_skip("replicas_back", Setup::default()).await else { return };
        let courier = Courier::connect(trio.url()).await.expect("connected");
        let s = session("s");
        courier.push(push(&s, "before").wait_replicas(1, LONG)).await.expect("confirmed");
        trio.servers[1].order("pause").await.expect("paused");
        let e = courier.push(with_id(&s, "m").wait_replicas(1, SHORT)).await.expect_err("unconfirmed");
        assert!(unconfirmed(&e), "{e:?}");
        // Another connection, which wrote nothing yet: what it waits for must be behind the first push all the same.
        let other = Courier::connect(trio.url()).await.expect("connected");
        for courier in [&other, &courier] {
            let e = courier.push(with_id(&s, "m").wait_replicas(1, SHORT)).await.expect_err("unconfirmed");
            assert!(unconfirmed(&e), "a known id is no confirmed one: {e:?}");
        }
        assert_eq!(courier.stats(&s).await.expect("stats").pending, 2);
        trio.servers[1].order("resume").await.expect("resumed");
        let pushed = other.push(with_id(&s, "m").wait_replicas(1, LONG)).await.expect("confirmed");
        assert_eq!((pushed.status, pushed.replicas, pushed.pending), (PushStatus::Duplicate, Some(1), 2));
    }

    /// While pushes wait, everything else goes on; those that wait share their WAITs.
    #[tokio::test]
    async fn others_do_not_wait_and_those_who_do_share_it() {
        let Some(trio) = trio_or_skip("replicas_share", Setup::default()).await else { return };
        let courier = Courier::connect(trio.url()).await.expect("connected");
        let mut master = server::raw(&format!("redis://127.0.0.1:{}", trio.servers[0].port)).await;
        trio.servers[1].order("pause").await.expect("paused");
        let mut waiting = tokio::task::JoinSet::new();
        for n in 0..64 {
            let courier = courier.clone();
            waiting.spawn(async move {
                courier.push(push(&session(&format!("w{n}")), "x").wait_replicas(1, LONG)).await
            });
        }
        wait_until("the first WAIT to run", LONG / 2, || {
            let mut master = master.clone();
            async move {
                let list: String =
                    redis::cmd("CLIENT").arg("LIST").query_async(&mut master).await.expect("LIST");
                if list.contains("cmd=wait ") { Ok(()) } else { Err(list) }
            }
        })
        .await;
        for n in 0..100 {
            courier.push(push(&session("s"), &n.to_string())).await.expect("queued");
        }
        assert_eq!(courier.stats(&session("s")).await.expect("stats").pending, 100);
        assert!(waiting.try_join_next().is_none(), "they still wait");
        trio.servers[1].order("resume").await.expect("resumed");
        while let Some(pushed) = waiting.join_next().await {
            assert_eq!(pushed.expect("no panic").expect("confirmed").replicas, Some(1));
        }
        let waits = calls(&mut master, "wait").await;
        assert!(waits <= 4, "64 pushes, {waits} times WAIT");
    }
}

/// In a Cluster each master's own replicas are waited for.
#[cfg(feature = "cluster")]
#[tokio::test]
async fn in_a_cluster_each_masters_replica_is_waited_for() {
    let cluster = crate::support::cluster::cluster_or_skip("replicas", Duration::from_secs(60)).await;
    let Some(cluster) = cluster else { return };
    let courier = Courier::builder().wait_replicas(1, LONG).connect(cluster.url()).await.expect("connected");
    let sessions: Vec<_> = (0..30).map(|n| session(&format!("s{n}"))).collect();
    for pushed in courier.push_many(sessions.iter().map(|s| push(s, "x"))).await {
        assert_eq!(pushed.expect("confirmed").replicas, Some(1));
    }
    for s in &sessions {
        assert_eq!(courier.push(push(s, "y")).await.expect("confirmed").replicas, Some(1));
    }
    for node in &cluster.nodes[..3] {
        let mut raw = crate::support::server::raw(&format!("redis://127.0.0.1:{}", node.port)).await;
        assert!(calls(&mut raw, "wait").await > 0, "{}", node.port);
    }
}
