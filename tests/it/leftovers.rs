//! What stays behind, and what happens when parts of the state vanish under traffic.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mcp_courier::{Courier, SessionId, SinkError};

use crate::support::capture::Capture;
use crate::support::fixture::{Fixture, Process, Recorder, push, session, wait_pending};
use crate::support::private::{Options, private_or_skip};
use crate::support::wait::wait_until;

/// Finished work is gone: after many messages, failures, dead letters and crashes only the documented keys are left,
/// and on the way none but the indexes lives for ever.
#[tokio::test]
async fn f57_finished_work_leaves_nothing_behind() {
    let t = Fixture::new("f57").await;
    let ms = Duration::from_millis;
    let builder = || {
        t.builder()
            .dedupe(ms(300))
            .backoff(ms(1))
            .ttl(Duration::from_secs(30))
            .dead_ttl(Duration::from_secs(1))
            .max_attempts(3)
            .look_again(ms(100))
            .lease(ms(900))
            .node_grace(ms(200))
    };
    let sessions: Vec<SessionId> = (0..20).map(|n| session(&format!("s{n}"))).collect();
    let worker = t.connect(builder()).await;
    let served = t.connect(builder()).await;
    let delivered = Arc::new(AtomicUsize::new(0));
    let sink = {
        let delivered = delivered.clone();
        move |d: mcp_courier::Delivery| {
            delivered.fetch_add(1, Ordering::Relaxed);
            let n: usize = std::str::from_utf8(d.body()).ok().and_then(|b| b.parse().ok()).unwrap_or(0);
            async move {
                match n % 100 {
                    13 if d.attempt == 1 => Err(SinkError::retry("once")),
                    47 => Err(SinkError::retry("always")),
                    71 => Err(SinkError::rejected("never")),
                    _ => Ok(()),
                }
            }
        }
    };
    for s in &sessions {
        served.subscribers().ensure_running(s, sink.clone()).await.expect("claimed");
    }
    let mut pushing = tokio::task::JoinSet::new();
    for lane in 0..10 {
        let (worker, sessions) = (worker.clone(), sessions.clone());
        pushing.spawn(async move {
            for n in 0..2000 {
                let message = push(&sessions[(lane + n) % sessions.len()], &n.to_string());
                let message = if n % 50 == 0 { message.ttl(ms(1)) } else { message };
                worker.push(message).await.expect("queued");
            }
        });
    }
    // Processes that serve sessions of their own die on the way, each with something left to do.
    let mut round = 0;
    while !pushing.is_empty() {
        let process = Process::start(builder(), t.server.url()).await;
        for n in 0..5 {
            let s = session(&format!("dying{round}-{n}"));
            process.serve(&s, |_| std::future::pending::<Result<(), SinkError>>()).await;
            worker.push(push(&s, "x").ttl(ms(400))).await.expect("queued");
        }
        for (key, life) in t.keys().await {
            assert!(life >= 0 || ["s", "w"].contains(&&*key), "{key} lives for ever");
        }
        process.crash().await;
        round += 1;
        while pushing.try_join_next().is_some() {}
    }
    for s in &sessions {
        wait_pending(&worker, s, 0).await;
    }
    assert!(delivered.load(Ordering::Relaxed) >= 19_000);
    wait_until("only the indexes are left", Duration::from_secs(15), || async {
        let keys: Vec<_> = t.keys().await.into_iter().map(|(key, _)| key).collect();
        let owned = served.overview(0).await.expect("overview").owned;
        if keys == ["n", "s"] && owned == 20 { Ok(()) } else { Err(format!("{owned} owned, {keys:?}")) }
    })
    .await;
    served.shutdown(Duration::from_secs(5)).await;
    // Dead nodes stay in the index for an hour: how long ago they died decides whether a takeover counts an attempt.
    let left: Vec<_> = t.keys().await.into_iter().map(|(key, _)| key).collect();
    assert_eq!(left, if round > 0 { vec!["n"] } else { vec![] });
    t.finish().await;
}

/// Pushes numbered messages until told to stop; answers how many.
async fn traffic(courier: Courier, s: SessionId, stop: Arc<AtomicBool>) -> usize {
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        courier.push(push(&s, &format!("{s} {n}"))).await.expect("queued");
        n += 1;
        // The pace of the load: what is pushed can be delivered.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    n
}

/// Each key of a session vanishes in turn, as by eviction, in the middle of traffic: no panic, no hot loop, what is
/// left is delivered in order, the structure is made anew, and another session gets neither loss nor strangers.
#[tokio::test]
async fn f59_the_loss_of_any_single_key_heals_under_traffic() {
    for key in ["q:a", "dead:a", "d:a:*", "s", "w", "n"] {
        let t = Fixture::new(&format!("f59_{}", key.split(':').next().expect("a kind"))).await;
        let courier = t.courier().await;
        let other = t.courier().await;
        let (a, b) = (session("a"), session("b"));
        let fails = |d: &mcp_courier::Delivery| match d.body() {
            [.., b'7', b'7'] => Err(SinkError::rejected("no")),
            [.., b'2', b'5'] if d.attempt == 1 => Err(SinkError::retry("once")),
            _ => Ok(()),
        };
        let (to_a, to_b) = (Recorder::answering(fails), Recorder::new());
        courier.subscribers().ensure_running(&a, to_a.clone()).await.expect("claimed");
        other.subscribers().ensure_running(&b, to_b.clone()).await.expect("claimed");
        let stop = Arc::new(AtomicBool::new(false));
        let pushing = [&a, &b].map(|s| tokio::spawn(traffic(other.clone(), s.clone(), stop.clone())));

        for _ in 0..4 {
            let from = to_a.seen().len();
            to_a.wait_for(from + 20).await;
            let victims: Vec<String> = match key.strip_suffix('*') {
                Some(start) => {
                    t.keys().await.into_iter().map(|k| k.0).filter(|k| k.starts_with(start)).collect()
                }
                None => vec![key.to_owned()],
            };
            for victim in victims {
                let _: u64 = t.ask(&format!("DEL {}", t.key(&victim, ""))).await;
            }
        }
        stop.store(true, Ordering::Relaxed);
        let mut pushed = Vec::new();
        for task in pushing {
            pushed.push(task.await.expect("no panic"));
        }
        // The structure is there again: a last message arrives, and nothing stays pending.
        for s in [&a, &b] {
            other.push(push(s, &format!("{s} last"))).await.expect("queued");
        }
        for (sink, last) in [(&to_a, "a last"), (&to_b, "b last")] {
            wait_until(&format!("{last} after the loss of {key}"), Duration::from_secs(10), || async {
                let seen = sink.bodies();
                if seen.iter().any(|body| body == last) { Ok(()) } else { Err(format!("{:?}", seen.last())) }
            })
            .await;
        }
        for s in [&a, &b] {
            wait_pending(&other, s, 0).await;
        }
        wait_until("both have their owners", Duration::from_secs(5), || async {
            match (t.token("a").await, t.token("b").await, courier.nodes().await.expect("nodes").len()) {
                (Some(_), Some(_), 2) => Ok(()),
                seen => Err(format!("{seen:?}")),
            }
        })
        .await;

        for (sink, s, count) in [(&to_a, &a, pushed[0]), (&to_b, &b, pushed[1])] {
            let mut firsts = HashSet::new();
            let mut numbers = Vec::new();
            for body in sink.bodies() {
                let n = body.strip_prefix(&format!("{s} ")).unwrap_or_else(|| panic!("{key}: {body} at {s}"));
                if firsts.insert(body.clone()) && n != "last" {
                    numbers.push(n.parse::<usize>().expect("a number"));
                }
            }
            assert!(numbers.is_sorted(), "{key}: out of order at {s}");
            if key != "q:a" || *s == b {
                assert_eq!(numbers.len(), count, "{key}: lost at {s}");
            }
        }
        // At most once more for each time that the owners were lost.
        for m in [courier.metrics(), other.metrics()] {
            assert!(m.claims <= 20 && m.state_lost <= 20, "{key}: {m:?}");
        }
        for c in [courier, other] {
            c.shutdown(Duration::from_secs(5)).await;
        }
        t.finish().await;
    }
}

/// A policy that deletes messages at the memory limit is warned about when somebody connects, once, and so is one that
/// may not be asked for.
#[tokio::test]
async fn f59_an_eviction_policy_that_deletes_messages_is_warned_about_at_connect() {
    let Some(server) = private_or_skip("f59", Options::default()).await else { return };
    let mut raw = server.raw().await;
    let set = |name: &str, value: &str| {
        let mut cmd = redis::cmd("CONFIG");
        cmd.arg("SET").arg(name).arg(value);
        cmd
    };
    let mut user = redis::cmd("ACL");
    user.arg(&["SETUSER", "blind", "on", ">p", "~*", "resetchannels", "&*", "+@all", "-info"]);
    user.exec_async(&mut raw).await.expect("a user");
    let blind = format!("redis://blind:p@127.0.0.1:{}", server.port());
    let url = server.url();
    set("maxmemory", "100mb").exec_async(&mut raw).await.expect("set");
    for (policy, url, warnings) in [
        ("noeviction", &url, 0),
        ("allkeys-lru", &url, 1),
        ("volatile-lru", &url, 1),
        ("volatile-ttl", &url, 1),
        ("noeviction", &blind, 1),
    ] {
        set("maxmemory-policy", policy).exec_async(&mut raw).await.expect("set");
        let capture = Capture::start();
        let courier = Courier::connect(url).await.expect("connected");
        courier.push(push(&session("s"), "x")).await.expect("queued");
        let warned = capture.lines_with(&["WARN", "evict"]);
        assert_eq!(warned.len(), warnings, "{policy}: {warned:?}");
        assert!(warnings == 0 || url == &blind || warned[0].contains(policy), "{policy}: {warned:?}");
    }
}

/// All of it at once, with nobody pushing: idle sessions find out by themselves that their owners are lost.
#[tokio::test]
async fn f59_idle_sessions_are_claimed_again_when_everything_is_gone() {
    let t = Fixture::new("f59_all").await;
    let (one, two) = (t.courier().await, t.courier().await);
    let sinks: Vec<_> = (0..30).map(|n| (session(&format!("s{n}")), Recorder::new())).collect();
    for (n, (s, sink)) in sinks.iter().enumerate() {
        let courier = if n % 2 == 0 { &one } else { &two };
        courier.subscribers().ensure_running(s, sink.clone()).await.expect("claimed");
    }
    for round in 1..=3 {
        for key in ["s", "w", "n"] {
            let _: u64 = t.ask(&format!("DEL {}", t.key(key, ""))).await;
        }
        wait_until("every session has its owner again", Duration::from_secs(5), || async {
            let owned = one.overview(0).await.expect("overview").owned;
            if owned == 30 { Ok(()) } else { Err(format!("{owned} owned")) }
        })
        .await;
        for (s, sink) in &sinks {
            one.push(push(s, s.as_str())).await.expect("queued");
            sink.wait_for(round).await;
            assert!(sink.seen().iter().all(|d| d.session == *s && d.attempt == 1));
        }
    }
    for (s, _) in &sinks {
        wait_pending(&one, s, 0).await;
    }
    for courier in [one, two] {
        assert_eq!(courier.subscribers().count(), 15);
        courier.shutdown(Duration::from_secs(5)).await;
    }
    t.finish().await;
}
