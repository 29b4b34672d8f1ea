//! How many connections, to what, with which credentials.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mcp_courier::{Courier, Credentials, Error};
use redis::aio::MultiplexedConnection;

use crate::support::capture::Capture;
use crate::support::fixture::{Recorder, push, session};
use crate::support::private::{Options, private_or_skip};
use crate::support::wait::wait_until;

/// Connections that carry this library's name, as the server sees them.
async fn ours(raw: &mut MultiplexedConnection) -> usize {
    let list: String = redis::cmd("CLIENT").arg("LIST").query_async(raw).await.expect("CLIENT LIST");
    let own: u64 = redis::cmd("CLIENT").arg("ID").query_async(raw).await.expect("CLIENT ID");
    list.lines().filter(|l| !l.starts_with(&format!("id={own} "))).count()
}

/// F52: 10,000 sessions on one replica, two connections at every moment, with a server that has few to give.
#[tokio::test(flavor = "multi_thread")]
async fn f52_ten_thousand_sessions_use_two_connections() {
    let Some(server) =
        private_or_skip("f52", Options { extra: &["--maxclients", "64"], ..Options::default() }).await
    else {
        return;
    };
    let mut raw = server.raw().await;
    let owner = Courier::connect(server.url()).await.expect("connected");
    assert_eq!(ours(&mut raw).await, 1, "who only pushes needs one");
    let registry = owner.subscribers();
    let sink = Recorder::new();
    let mut claims = tokio::task::JoinSet::new();
    for n in 0..10_000 {
        let (registry, sink) = (registry.clone(), sink.clone());
        claims.spawn(async move { registry.ensure_running(&session(&format!("s{n}")), sink).await });
        if n % 1000 == 0 {
            assert!(ours(&mut raw).await <= 2);
        }
    }
    while let Some(claimed) = claims.join_next().await {
        assert_eq!(claimed.expect("no panic"), Ok(true));
    }
    assert_eq!((ours(&mut raw).await, registry.count()), (2, 10_000));
    let churned = Instant::now();
    for n in 0..2_000 {
        let s = session(&format!("s{}", n * 7 % 10_000));
        owner.push(push(&s, "x")).await.expect("queued");
        if n % 10 == 0 {
            assert!(registry.stop(&s).await);
            registry.ensure_running(&s, sink.clone()).await.expect("claimed");
            assert!(ours(&mut raw).await <= 2);
        }
    }
    sink.wait_for(2_000).await;
    println!("2,000 pushes and 200 changes of owner in {:?}", churned.elapsed());
    assert_eq!(sink.seen().len(), 2_000);
    owner.shutdown(Duration::from_secs(10)).await;
    assert_eq!(registry.count(), 0);
    drop((registry, owner));
    wait_until("no connection left", Duration::from_secs(5), || {
        let mut raw = raw.clone();
        async move {
            let open = ours(&mut raw).await;
            if open == 0 { Ok(()) } else { Err(open.to_string()) }
        }
    })
    .await;
}

/// A process has a limit of its own; a session that it serves already is no new one.
#[tokio::test]
async fn one_session_more_than_the_limit_is_refused() {
    let t = crate::support::fixture::Fixture::new("max_sessions").await;
    let courier = t.connect(t.builder().max_sessions(2)).await;
    let registry = courier.subscribers();
    for name in ["a", "b"] {
        assert_eq!(registry.ensure_running(&session(name), Recorder::new()).await, Ok(true));
    }
    let refused = registry.ensure_running(&session("c"), Recorder::new()).await;
    assert_eq!(refused, Err(Error::TooManySessions { limit: 2 }));
    assert_eq!(registry.ensure_running(&session("a"), Recorder::new()).await, Ok(false));
    registry.stop(&session("a")).await;
    assert_eq!(registry.ensure_running(&session("c"), Recorder::new()).await, Ok(true));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// F52: a server that has no connection left says so, by name, and is tried again.
#[tokio::test]
async fn f52_a_server_without_free_connections_is_a_typed_error() {
    let Some(server) =
        private_or_skip("f52_full", Options { extra: &["--maxclients", "33"], ..Options::default() }).await
    else {
        return;
    };
    let mut raw = server.raw().await;
    redis::cmd("CONFIG").arg("SET").arg("maxclients").arg(1).exec_async(&mut raw).await.expect("set");
    let refused = Courier::connect(server.url()).await.expect_err("no connection left");
    assert!(matches!(refused, Error::Refused { .. } | Error::Unreachable { .. }), "{refused:?}");
    assert!(refused.to_string().contains("connect"), "{refused}");
}

/// F45: the password changes; every connection asks the provider again, and serves within two seconds of a good answer.
#[tokio::test(flavor = "multi_thread")]
async fn f45_credentials_are_asked_for_at_every_connect() {
    let Some(server) = private_or_skip("f45", Options::default()).await else { return };
    let mut raw = server.raw().await;
    let acl = |rules: &'static str| {
        let mut cmd = redis::cmd("ACL");
        cmd.arg("SETUSER").arg("app").arg(rules.split(' ').collect::<Vec<_>>());
        cmd
    };
    acl("on >first-secret ~* &* +@all").exec_async(&mut raw).await.expect("user");

    let capture = Capture::start();
    let current = Arc::new(std::sync::Mutex::new(Ok::<_, String>("first-secret")));
    let asked = Arc::new(AtomicUsize::new(0));
    let builder = || {
        let (current, asked) = (current.clone(), asked.clone());
        Courier::builder().heartbeat(Duration::from_millis(200)).lease(Duration::from_secs(2)).credentials(
            move || {
                asked.fetch_add(1, Ordering::Relaxed);
                let answer = current.lock().expect("not poisoned").clone();
                async move { answer.map(|secret| Credentials::user("app", secret)) }
            },
        )
    };
    let owner = builder().connect(server.url()).await.expect("connected");
    let s = session("s");
    let sink = Recorder::new();
    owner.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(asked.load(Ordering::Relaxed), 2, "once for each connection");

    let cut = |raw: &MultiplexedConnection| {
        let mut raw = raw.clone();
        async move {
            for kind in ["normal", "pubsub"] {
                let mut kill = redis::cmd("CLIENT");
                kill.arg("KILL").arg("TYPE").arg(kind).arg("SKIPME").arg("yes");
                kill.exec_async(&mut raw).await.expect("killed");
            }
        }
    };
    // Rotated: the old password is gone, the provider knows the new one.
    acl("<first-secret >second-secret").exec_async(&mut raw).await.expect("rotated");
    *current.lock().expect("not poisoned") = Ok("second-secret");
    cut(&raw).await;
    owner.push(push(&s, "rotated")).await.expect("queued");
    sink.wait_for(1).await;

    // The provider fails, then is wrong, then is right.
    for wrong in [Err("the vault is sealed".to_owned()), Ok("wrong-secret")] {
        *current.lock().expect("not poisoned") = wrong.clone();
        let before = asked.load(Ordering::Relaxed);
        let start = Instant::now();
        cut(&raw).await;
        wait_until("unhealthy with the reason", Duration::from_secs(5), || async {
            let code = if wrong.is_ok() { "WRONGPASS" } else { "CREDENTIALS" };
            match owner.health().commands {
                Some(Error::Refused { code: found, .. }) if found == code => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        wait_until("three tries", Duration::from_secs(10), || async {
            let tries = asked.load(Ordering::Relaxed) - before;
            if tries >= 6 { Ok(()) } else { Err(tries.to_string()) }
        })
        .await;
        assert!(
            start.elapsed() > Duration::from_millis(2_000),
            "two connections, no more than one try a second each"
        );
    }
    *current.lock().expect("not poisoned") = Ok("second-secret");
    let good = Instant::now();
    owner.push(push(&s, "right again")).await.expect("queued");
    assert_eq!(sink.wait_for(2).await, ["rotated", "right again"]);
    assert!(good.elapsed() < Duration::from_secs(4), "{:?}", good.elapsed());

    let shown = format!("{owner:?} {:?} {:?} {}", owner.health(), builder(), capture.text());
    for secret in ["first-secret", "second-secret", "wrong-secret"] {
        assert!(!shown.contains(secret), "{secret} is shown");
    }
    owner.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_wrong_password_is_an_authentication_error_that_does_not_show_it() {
    let Some(server) =
        private_or_skip("password", Options { extra: &["--requirepass", "right"], ..Options::default() })
            .await
    else {
        return;
    };
    let host = format!("127.0.0.1:{}", server.port());
    for url in [format!("redis://:wrong@{host}"), format!("redis://nobody:wrong@{host}")] {
        let refused = Courier::connect(&url).await.expect_err("wrong");
        assert!(matches!(&refused, Error::Refused { code, .. } if code == "WRONGPASS"), "{refused:?}");
        assert!(!format!("{refused} {refused:?}").contains("wrong@"), "{refused}");
    }
    let none = Courier::connect(format!("redis://{host}")).await.expect_err("none");
    assert!(matches!(&none, Error::Refused { code, .. } if code == "NOAUTH"), "{none:?}");
    let courier = Courier::connect(format!("redis://:right@{host}/3")).await.expect("connected");
    courier.push(push(&session("s"), "x")).await.expect("queued");
}

#[tokio::test]
async fn nobody_at_the_address_is_an_error_at_connect() {
    let nobody = Courier::connect("redis://127.0.0.1:1").await.expect_err("nobody");
    assert!(matches!(nobody, Error::Unreachable { ambiguous: false, .. }), "{nobody:?}");
    assert!(nobody.to_string().contains("127.0.0.1:1"), "{nobody}");
}

/// A user with too few rights is told at connect, by name.
#[tokio::test]
async fn a_missing_right_is_an_error_at_connect() {
    let Some(server) = private_or_skip("rights", Options::default()).await else { return };
    let mut raw = server.raw().await;
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER").arg("poor").arg(vec![
        "on",
        ">p",
        "~courier:*",
        "resetchannels",
        "&courier:*",
        "+@all",
        "-evalsha",
        "-eval",
    ]);
    user.exec_async(&mut raw).await.expect("user");
    let url = format!("redis://poor:p@127.0.0.1:{}", server.port());
    let refused = Courier::connect(&url).await.expect_err("no scripts");
    assert!(matches!(&refused, Error::Refused { code, .. } if code == "NOPERM"), "{refused:?}");
}

#[cfg(unix)]
#[tokio::test]
async fn a_unix_socket_serves_as_well() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("redis.sock");
    let path = socket.to_str().expect("text").to_owned();
    let options = Options { extra: &["--unixsocket", &path], local_files: true, ..Options::default() };
    let Some(_server) = private_or_skip("unix", options).await else { return };
    let courier = Courier::connect(format!("redis+unix://{path}?db=2")).await.expect("connected");
    let s = session("s");
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    courier.push(push(&s, "through a socket")).await.expect("queued");
    assert_eq!(sink.wait_for(1).await, ["through a socket"]);
    courier.shutdown(Duration::from_secs(5)).await;
}

/// 64 tasks, connections killed meanwhile: no caller gets another's answer.
#[tokio::test(flavor = "multi_thread")]
async fn replies_reach_their_own_callers_across_reconnects() {
    let Some(server) = private_or_skip("replies", Options::default()).await else { return };
    let mut raw = server.raw().await;
    let courier = Courier::connect(server.url()).await.expect("connected");
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..64 {
        let (courier, stop) = (courier.clone(), stop.clone());
        tasks.spawn(async move {
            // Each session has as many pending messages as its number says: an answer tells whose it is.
            let s = session(&format!("s{n}"));
            for _ in 0..n {
                courier.push(push(&s, "x")).await.expect("queued");
            }
            while !stop.load(Ordering::Relaxed) {
                let stats = courier.stats(&s).await.expect("answered in the end");
                assert_eq!((stats.pending, stats.session.as_str()), (n, s.as_str()));
            }
        });
    }
    for _ in 0..10 {
        let before = courier.metrics().reconnects;
        redis::cmd("CLIENT")
            .arg("KILL")
            .arg("TYPE")
            .arg("normal")
            .exec_async(&mut raw)
            .await
            .expect("killed");
        wait_until("connected again", Duration::from_secs(5), || async {
            if courier.metrics().reconnects > before { Ok(()) } else { Err("no".to_owned()) }
        })
        .await;
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done.expect("every answer was the caller's own");
    }
}

/// A first subscription that is refused, or dropped, leaves no connection behind.
#[tokio::test]
async fn a_failed_or_dropped_first_subscription_leaves_no_connection() {
    let Some(server) = private_or_skip("bell_leak", Options::default()).await else { return };
    let mut raw = server.raw().await;
    let courier = Courier::builder()
        .deadline(Duration::from_millis(200))
        .connect(server.url())
        .await
        .expect("connected");
    let set = |n: u8| {
        let mut cmd = redis::cmd("CONFIG");
        cmd.arg("SET").arg("min-replicas-to-write").arg(n);
        cmd
    };
    set(1).exec_async(&mut raw).await.expect("set");
    for _ in 0..10 {
        courier.subscribers().ensure_running(&session("s"), Recorder::new()).await.expect_err("refused");
        let registry = courier.subscribers();
        let s = session("s");
        let dropped =
            tokio::time::timeout(Duration::from_micros(300), registry.ensure_running(&s, Recorder::new()));
        let _ = dropped.await;
    }
    wait_until("one connection", Duration::from_secs(5), || {
        let mut raw = raw.clone();
        async move {
            let open = ours(&mut raw).await;
            if open == 1 { Ok(()) } else { Err(open.to_string()) }
        }
    })
    .await;
    set(0).exec_async(&mut raw).await.expect("set");
    courier.subscribers().ensure_running(&session("s"), Recorder::new()).await.expect("claimed");
    assert_eq!(ours(&mut raw).await, 2);
    courier.shutdown(Duration::from_secs(5)).await;
}
