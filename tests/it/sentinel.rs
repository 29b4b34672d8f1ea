//! Sentinel: the master is found, followed, and never mistaken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use mcp_courier::{Builder, Courier, Error};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::restart::Load;
use crate::support::fixture::{Recorder, push, session};
use crate::support::private::{Options, private_or_skip};
use crate::support::resp::frame_len;
use crate::support::sentinel::{Setup, trio_or_skip};
use crate::support::server;
use crate::support::wait::wait_until;

/// A master that is silent for so long is replaced.
const DOWN_AFTER: Duration = Duration::from_secs(1);

fn quick() -> Builder {
    Courier::builder()
        .heartbeat(Duration::from_millis(300))
        .look_again(Duration::from_millis(300))
        .deadline(Duration::from_secs(30))
}

/// Empty while the server cuts its connections, as one does that changes its role.
async fn role_of(port: u16) -> String {
    let ask = async {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
        let mut raw = client.get_multiplexed_async_connection().await?;
        redis::cmd("INFO").arg("replication").query_async::<String>(&mut raw).await
    };
    let info = ask.await.unwrap_or_default();
    info.lines().find_map(|l| l.strip_prefix("role:")).unwrap_or_default().trim().to_owned()
}

/// Both connections lead to the master that the sentinels name, with a password of its own for each of the two kinds of
/// server, and a database.
#[tokio::test]
async fn both_connections_go_to_the_named_master_with_credentials_for_each_kind_of_server() {
    let setup = Setup { passwords: Some(("of-servers", "of-sentinels")), ..Setup::default() };
    let Some(trio) = trio_or_skip("credentials", setup).await else { return };
    let url = trio.url().replace("sentinel://", "sentinel://:of-servers@") + "/2?sentinel_pass=of-sentinels";
    let courier = Courier::connect(&url).await.expect("connected");
    let (s, sink) = (session("s"), Recorder::new());
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    courier.push(push(&s, "x")).await.expect("queued");
    assert_eq!(sink.wait_for(1).await, ["x"]);
    let master = format!("redis://:of-servers@127.0.0.1:{}", trio.servers[0].port);
    let list: String =
        redis::cmd("CLIENT").arg("LIST").query_async(&mut server::raw(&master).await).await.expect("LIST");
    let ours = list.lines().filter(|l| l.contains(" db=2 ")).count();
    assert_eq!(ours, 2, "two connections, both to database 2 of the master: {list}");
    courier.shutdown(Duration::from_secs(5)).await;

    // Of a sentinel nothing but the question is asked.
    for sentinel in &trio.sentinels {
        let mut raw = server::raw(&format!("redis://:of-sentinels@127.0.0.1:{}", sentinel.port)).await;
        let mut user = redis::cmd("ACL");
        user.arg(&[
            "SETUSER",
            "asks",
            "on",
            ">little",
            "-@all",
            "+hello",
            "+sentinel|get-master-addr-by-name",
        ]);
        user.exec_async(&mut raw).await.expect("a user");
    }
    let little = url.replace("sentinel_pass=of-sentinels", "sentinel_user=asks&sentinel_pass=little");
    Courier::connect(&little).await.expect("these rights are enough").ping().await.expect("served");

    let wrong = Courier::connect(url.replace("of-sentinels", "wrong")).await.expect_err("sentinels refuse");
    assert!(matches!(&wrong, Error::Refused { code, .. } if code == "WRONGPASS"), "{wrong}");
    let wrong = Courier::connect(url.replace("of-servers", "wrong")).await.expect_err("the master refuses");
    assert!(matches!(&wrong, Error::Refused { code, .. } if code == "WRONGPASS"), "{wrong}");
    assert!(!format!("{wrong} {wrong:?} {courier:?}").contains("of-s"), "{wrong:?} {courier:?}");
}

#[tokio::test]
async fn an_unknown_master_and_sentinels_that_are_away_are_errors_by_name() {
    let Some(trio) = trio_or_skip("unknown", Setup::default()).await else { return };
    let unknown = Courier::connect(trio.url().replace("/trio", "/nobody")).await.expect_err("nobody");
    assert!(matches!(&unknown, Error::Refused { code, .. } if code == "MASTER"), "{unknown}");
    assert!(unknown.to_string().contains("nobody"), "{unknown}");
    let nowhere = Courier::connect("redis+sentinel://127.0.0.1:1,127.0.0.1:2/trio").await.expect_err("away");
    assert!(matches!(&nowhere, Error::Unreachable { .. }), "{nowhere}");

    // One sentinel of three is enough.
    trio.sentinels[1].order("kill").await.expect("killed");
    trio.sentinels[2].order("pause").await.expect("paused");
    let courier = Courier::connect(trio.url()).await.expect("connected");
    courier.ping().await.expect("served");
    trio.sentinels[2].order("resume").await.expect("resumed");
}

/// A sentinel that missed a failover names a server that is a replica by now: it is refused, and nothing is written to
/// it.
#[tokio::test]
async fn a_replica_that_is_named_master_is_refused() {
    let Some(trio) = trio_or_skip("replica", Setup::default()).await else { return };
    let (master, other) = (&trio.servers[0], &trio.servers[1]);
    // The sentinels look away while the two change places.
    for sentinel in &trio.sentinels {
        sentinel.order("pause").await.expect("paused");
    }
    let mut raw = server::raw(&format!("redis://127.0.0.1:{}", other.port)).await;
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec_async(&mut raw).await.expect("a master");
    let mut raw = server::raw(&format!("redis://127.0.0.1:{}", master.port)).await;
    let mut demote = redis::cmd("REPLICAOF");
    demote.arg("127.0.0.1").arg(other.port).exec_async(&mut raw).await.expect("a replica");
    for sentinel in &trio.sentinels {
        sentinel.order("resume").await.expect("resumed");
    }
    // They still name the old one for a while; whoever asks now must not take it.
    let connected = Courier::connect(trio.url()).await;
    match connected {
        Err(e) => {
            assert!(matches!(&e, Error::Refused { code, .. } if code == "READONLY"), "{e}");
            assert!(e.is_retryable() && !e.is_ambiguous(), "{e}");
        }
        // The sentinels were faster: then it is the real one.
        Ok(courier) => courier
            .push(push(&session("s"), "x"))
            .await
            .map(drop)
            .expect("what calls itself master takes writes"),
    }
}

/// A sentinel that says what it is told to say, whatever the truth is.
struct Liar {
    port: u16,
    /// The port that it names.
    names: Arc<AtomicU16>,
    serving: tokio::task::JoinHandle<()>,
}

impl Liar {
    async fn start(names: u16) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let names = Arc::new(AtomicU16::new(names));
        let named = names.clone();
        let serving = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(Self::answer(client, named.clone()));
            }
        });
        Self { port, names, serving }
    }

    async fn answer(mut client: tokio::net::TcpStream, names: Arc<AtomicU16>) {
        let mut asked = Vec::new();
        let mut piece = [0; 4096];
        while let Ok(n @ 1..) = client.read(&mut piece).await {
            asked.extend_from_slice(&piece[..n]);
            while let Some(n @ 1..) = frame_len(&asked) {
                let request: Vec<u8> = asked.drain(..n).collect();
                let text = String::from_utf8_lossy(&request).to_ascii_lowercase();
                let port = names.load(Ordering::Relaxed).to_string();
                let answer = if text.contains("get-master-addr-by-name") {
                    format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len())
                } else if text.contains("hello") {
                    "%2\r\n$5\r\nproto\r\n:3\r\n$4\r\nrole\r\n$8\r\nsentinel\r\n".to_owned()
                } else {
                    "+OK\r\n".to_owned()
                };
                if client.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
            }
        }
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// F29: the primary is demoted and stays up, and the sentinels go on naming it. Nothing is written to it, calls end at
/// their own deadline, it is tried ever more slowly; and writes go on as soon as the new one is named, and again when that
/// one is killed.
#[tokio::test]
async fn f29_a_demoted_primary_that_is_still_named_is_left_alone_and_the_new_one_is_found() {
    let Some(a) = private_or_skip("f29", Options::default()).await else { return };
    let Some(b) = private_or_skip("f29", Options::default()).await else { return };
    let (mut raw_a, mut raw_b) = (a.raw().await, b.raw().await);
    let liar = Liar::start(a.port()).await;
    let url = format!("redis+sentinel://127.0.0.1:{}/trio", liar.port);
    let deadline = Duration::from_secs(2);
    let courier = quick().deadline(deadline).connect(&url).await.expect("connected");
    let (s, sink) = (session("s"), Recorder::new());
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    courier.push(push(&s, "before")).await.expect("queued");
    sink.wait_for(1).await;

    let mut follow = redis::cmd("REPLICAOF");
    follow.arg("127.0.0.1").arg(b.port()).exec_async(&mut raw_a).await.expect("demoted");
    let connections = |mut raw: redis::aio::MultiplexedConnection| async move {
        let info: String = redis::cmd("INFO").arg("stats").query_async(&mut raw).await.expect("INFO");
        let count = info.lines().find_map(|l| l.strip_prefix("total_connections_received:"));
        count.and_then(|n| n.trim().parse::<u64>().ok()).expect("a number")
    };
    let before = connections(raw_a.clone()).await;
    let from = Instant::now();
    for _ in 0..2 {
        let e = courier.push(push(&s, "meanwhile")).await.expect_err("no primary is named");
        let refused = matches!(&e, Error::Refused { code, .. } if code == "READONLY");
        assert!(refused || matches!(&e, Error::Timeout { .. }), "{e:?}");
        assert!(e.is_retryable(), "{e:?}");
    }
    let (took, tried) = (from.elapsed(), connections(raw_a.clone()).await - before);
    assert!(took < deadline * 4, "calls end at their own deadline: {took:?}");
    // Both connections: some quick tries at first, later two or three a second.
    let bound = 2 * (6 + took.as_millis() as u64 / 330);
    assert!(tried <= bound, "{tried} connections in {took:?}");
    let keys: u64 = redis::cmd("DBSIZE").query_async(&mut raw_b).await.expect("DBSIZE");
    assert_eq!(keys, 0, "nothing was written anywhere");

    liar.names.store(b.port(), Ordering::Relaxed);
    let named = Instant::now();
    courier.push(push(&s, "after")).await.expect("queued at the new primary");
    sink.wait_for(2).await;
    println!("{tried} connections in {took:?}; served {:?} after the new primary was named", named.elapsed());
    assert_eq!(sink.bodies(), ["before", "after"]);

    // The new one dies; the old one is promoted and named.
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec_async(&mut raw_a).await.expect("promoted");
    b.sigkill().await;
    liar.names.store(a.port(), Ordering::Relaxed);
    courier.push(push(&s, "again")).await.expect("queued at the old primary");
    wait_until("delivery by the old primary", Duration::from_secs(15), || async {
        if sink.bodies().iter().any(|b| b == "again") {
            Ok(())
        } else {
            Err(format!("{:?}", courier.metrics()))
        }
    })
    .await;
    courier.shutdown(Duration::from_secs(5)).await;
}

/// A failover on order, both servers alive. The old master takes writes until it hears that it is none any more, and
/// what the new one has not received by then is lost: that is Redis's to lose, and the test counts it. Everything
/// acknowledged before and after is delivered, in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_under_load_keeps_the_order_and_loses_only_what_the_old_master_took_meanwhile() {
    let narrow = ["--min-replicas-to-write", "1", "--min-replicas-max-lag", "2"];
    let Some(trio) = trio_or_skip("ordered", Setup { servers: &narrow, ..Setup::default() }).await else {
        return;
    };
    let load = Load::start(quick, &trio.url(), 4).await;
    load.wait_delivered(100).await;
    let old = trio.master_port().await;
    let from = Instant::now();
    trio.failover().await;
    wait_until("the old master to be a replica", Duration::from_secs(30), || async {
        let role = role_of(old).await;
        if role == "slave" { Ok(()) } else { Err(role) }
    })
    .await;
    let to = Instant::now();
    load.wait_delivered(100).await;
    let (pushed, repeated, lost) = load.finish_with_losses(Some((from, to))).await;
    println!("{pushed} pushed, {repeated} delivered twice, {lost} lost within {:?}", to - from);
}

/// The master is killed, or stands still, under load. Replication is asynchronous: what the replica had not received can
/// be lost, so the load goes on only after it was in step.
async fn replaced(order: &'static str) {
    let setup = Setup { down_after: DOWN_AFTER, ..Setup::default() };
    let Some(trio) = trio_or_skip(order, setup).await else { return };
    let courier = quick().connect(trio.url()).await.expect("connected");
    let (s, sink) = (session("s"), Recorder::new());
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    let mut bodies = Vec::new();
    for n in 0..50 {
        courier.push(push(&s, &n.to_string())).await.expect("queued");
        bodies.push(n.to_string());
    }
    let (old, replica) = trio.master().await;
    let mut raw = server::raw(&format!("redis://127.0.0.1:{}", old.port)).await;
    let in_step: u64 = redis::cmd("WAIT").arg(1).arg(5000).query_async(&mut raw).await.expect("WAIT");
    assert_eq!(in_step, 1, "the replica has everything");

    old.order(order).await.expect("it is gone");
    let gone = Instant::now();
    let pushing = tokio::spawn({
        let (courier, s) = (courier.clone(), s.clone());
        async move {
            for n in 50..60 {
                courier.push(push(&s, &n.to_string())).await.expect("queued after the failover");
            }
        }
    });
    let failed_over = async {
        trio.wait_failover_from(old.port).await;
        wait_until("the replica to be master", Duration::from_secs(30), || async {
            let role = role_of(replica.port).await;
            if role == "master" { Ok(()) } else { Err(role) }
        })
        .await;
        gone.elapsed()
    };
    let (failed_over, _) = tokio::join!(failed_over, sink.wait_for(51));
    let resumed = gone.elapsed();
    println!("{order}: another master after {failed_over:?}, delivery after {resumed:?}");
    // A second after the failover; twice that for a machine that is busy with other tests.
    let late = resumed.saturating_sub(failed_over);
    assert!(late < Duration::from_secs(2), "{late:?} after the failover");
    pushing.await.expect("pushed");
    bodies.extend((50..60).map(|n| n.to_string()));
    let mut seen = sink.wait_for(60).await;
    seen.dedup();
    assert_eq!(seen, bodies);
    if order == "pause" {
        // It comes back and believes to be the master, for as long as nobody tells it: nothing of ours goes there.
        old.order("resume").await.expect("resumed");
        for n in 60..80 {
            courier.push(push(&s, &n.to_string())).await.expect("queued");
            bodies.push(n.to_string());
        }
        let mut seen = sink.wait_for(80).await;
        seen.dedup();
        assert_eq!(seen, bodies);
    }
    courier.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_master_is_replaced_and_delivery_goes_on_with_the_failover() {
    replaced("kill").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_stands_still_is_replaced_and_not_used_when_it_comes_back() {
    replaced("pause").await;
}

/// A master whose snapshots fail answers `MISCONF` to `PING` too, so sentinels take it for dead. It lives, its
/// connections are open, and only 10 s later somebody tells it that it is a replica now: it is left as soon as the
/// sentinels name another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_refuses_writes_and_is_replaced_alive_is_left_with_the_failover() {
    let setup = Setup { down_after: DOWN_AFTER, ..Setup::default() };
    let Some(trio) = trio_or_skip("misconf", setup).await else { return };
    let courier = quick().connect(trio.url()).await.expect("connected");
    let (s, sink) = (session("s"), Recorder::new());
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    courier.push(push(&s, "before")).await.expect("queued");
    sink.wait_for(1).await;

    let (old, _) = trio.master().await;
    // No file can take a folder's name.
    std::fs::create_dir_all(old.folder.join("dump.rdb").join("x")).expect("a folder");
    let raw = server::raw(&format!("redis://127.0.0.1:{}", old.port)).await;
    let ask = async |words: &[&str]| {
        let mut command = redis::Cmd::new();
        words.iter().for_each(|word| {
            command.arg(word);
        });
        command.query_async::<redis::Value>(&mut raw.clone()).await.expect("done")
    };
    ask(&["CONFIG", "SET", "save", "3600 1000000"]).await;
    ask(&["BGSAVE", "SCHEDULE"]).await;
    let pushing = tokio::spawn({
        let (courier, s) = (courier.clone(), s.clone());
        async move {
            wait_until("a push to be refused", Duration::from_secs(40), async || {
                match courier.push(push(&s, "refused")).await {
                    Err(Error::Refused { code, .. }) if code == "MISCONF" => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
            while courier.push(push(&s, "after")).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    trio.wait_failover_from(old.port).await;
    let replaced = Instant::now();
    wait_until("a delivery from the new master", Duration::from_secs(40), async || {
        let seen = sink.bodies();
        if seen.iter().any(|body| body == "after") { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
    let late = replaced.elapsed();
    assert!(late < Duration::from_secs(5), "{late:?} after the failover");
    // Or it panics as a replica.
    ask(&["CONFIG", "SET", "save", ""]).await;
    pushing.await.expect("pushed");
    courier.shutdown(Duration::from_secs(5)).await;
}
