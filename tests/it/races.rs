//! Calls that meet.

use std::sync::Arc;
use std::time::Duration;

use mcp_courier::{Delivery, NotificationSink, SinkError};

use crate::support::fixture::{Fixture, Recorder, push, session, wait_pending};
use crate::support::proxy::{Mode, Proxy};
use crate::support::wait::wait_until;

/// Many requests of one client meet in one process.
#[tokio::test(flavor = "multi_thread")]
async fn of_many_ensure_running_that_meet_one_starts_the_session() {
    let t = Fixture::new("ensure_meet").await;
    let c = t.courier().await;
    for round in 0..20 {
        let s = session(&format!("s{round}"));
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..64 {
            let (c, s) = (c.clone(), s.clone());
            all.spawn(async move { c.subscribers().ensure_running(&s, Recorder::new()).await });
        }
        let answers: Vec<bool> =
            all.join_all().await.into_iter().map(|r| r.expect("served, by whatever call")).collect();
        assert_eq!(answers.iter().filter(|started| **started).count(), 1);
    }
    assert_eq!(c.metrics().claims, 20);
    c.shutdown(Duration::from_secs(2)).await;
    t.finish().await;
}

/// The client disconnects and is back at once.
#[tokio::test]
async fn a_session_that_is_ensured_while_it_is_being_stopped_is_served() {
    let t = Fixture::new("ensure_stop").await;
    let c = t.courier().await;
    let registry = c.subscribers();
    for round in 0..50 {
        let s = session(&format!("s{round}"));
        registry.ensure_running(&s, Recorder::new()).await.expect("served");
        let mut stopping = Box::pin(registry.stop(&s));
        std::future::poll_fn(|cx| {
            assert!(stopping.as_mut().poll(cx).is_pending(), "it is being given back");
            std::task::Poll::Ready(())
        })
        .await;
        assert!(!registry.is_running(&s));
        assert!(registry.ensure_running(&s, Recorder::new()).await.expect("served"));
        assert!(stopping.await);
        assert!(registry.is_running(&s));
        assert!(t.token(s.as_str()).await.is_some());
    }
    c.shutdown(Duration::from_secs(2)).await;
    t.finish().await;
}

/// A closure as sink answers `Closed`; the client comes back while the session is being given back.
#[tokio::test]
async fn a_session_whose_sink_closed_is_served_again_at_once() {
    let t = Fixture::plain("races").await;
    let proxy = Proxy::start(t.server.url()).await;
    let c = t.connect_to(proxy.url()).await;
    let s = session("s");
    let told = Arc::new(tokio::sync::Notify::new());
    let closing = {
        let told = told.clone();
        move |_: Delivery| {
            let told = told.clone();
            async move {
                told.notify_one();
                Err(SinkError::Closed)
            }
        }
    };
    c.subscribers().ensure_running(&s, closing).await.expect("served");
    proxy.set(Mode::Delay(Duration::from_millis(50)));
    c.push(push(&s, "1")).await.expect("queued");
    told.notified().await;
    tokio::task::yield_now().await;
    let recorder = Recorder::new();
    let started = c.subscribers().ensure_running(&s, recorder.clone()).await.expect("served");
    assert!(started);
    recorder.wait_for(1).await;
    proxy.set(Mode::Pass);
    c.shutdown(Duration::from_secs(2)).await;
    t.finish().await;
}

/// The bell is away while other processes take sessions and give them back.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_taken_while_the_bell_was_away_are_not_served_on_paper() {
    let t = Fixture::plain("races").await;
    let proxy = Proxy::start(t.server.url()).await;
    let c = t.connect_to(proxy.url()).await;
    let other = t.courier().await;
    let recorder = Recorder::new();
    for n in 0..20 {
        c.subscribers().ensure_running(&session(&format!("s{n}")), recorder.clone()).await.expect("served");
    }
    proxy.set(Mode::Refuse);
    for n in 0..4 {
        let s = session(&format!("s{n}"));
        other.subscribers().ensure_running(&s, Recorder::new()).await.expect("served");
        if n % 2 == 0 {
            other.subscribers().stop(&s).await;
        }
    }
    proxy.set(Mode::Pass);
    let worker = t.courier().await;
    for n in 0..20 {
        worker.push(push(&session(&format!("s{n}")), "x")).await.expect("queued");
    }
    for n in 0..20 {
        let s = session(&format!("s{n}"));
        wait_pending(&worker, &s, 0).await;
        wait_until("one owner", Duration::from_secs(5), || async {
            let (here, there) = (c.subscribers().is_running(&s), other.subscribers().is_running(&s));
            if here != there { Ok(()) } else { Err(format!("{s}: here {here}, there {there}")) }
        })
        .await;
    }
    c.shutdown(Duration::from_secs(2)).await;
    other.shutdown(Duration::from_secs(2)).await;
    t.finish().await;
}

/// Many tasks replace, stop and ensure one session at random; at the end it is ensured once more.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_survives_a_storm_of_calls() {
    let t = Fixture::new("races").await;
    for round in 0..30 {
        let c = t.courier().await;
        let s = session(&format!("s{round}"));
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..32 {
            let (c, s) = (c.clone(), s.clone());
            all.spawn(async move {
                for _ in 0..10 {
                    match fastrand::u8(..3) {
                        0 => {
                            let _ = c.subscribers().ensure_running(&s, Recorder::new()).await;
                        }
                        1 => {
                            c.subscribers().stop(&s).await;
                        }
                        _ => {
                            let cancel = mcp_courier::CancellationToken::new();
                            let looped = c.subscriber_loop(&s, Recorder::new(), cancel.clone());
                            let _ =
                                tokio::time::timeout(Duration::from_micros(fastrand::u64(..3000)), looped)
                                    .await;
                        }
                    }
                }
            });
        }
        while let Some(r) = all.join_next().await {
            r.expect("no panic");
        }
        wait_until("nothing", Duration::from_secs(10), || async {
            c.subscribers().stop(&s).await;
            if c.subscribers().count() == 0 { Ok(()) } else { Err("one".into()) }
        })
        .await;
        let recorder = Recorder::new();
        c.subscribers().ensure_running(&s, recorder.clone()).await.expect("served");
        c.push(push(&s, "1")).await.expect("queued");
        wait_until("delivered", Duration::from_secs(3), || async {
            if recorder.seen().is_empty() {
                Err(format!(
                    "round {round}: token {:?} node {:?} {:?}",
                    t.token(s.as_str()).await,
                    c,
                    c.metrics()
                ))
            } else {
                Ok(())
            }
        })
        .await;
        wait_pending(&c, &s, 0).await;
        c.shutdown(Duration::from_secs(2)).await;
    }
    t.finish().await;
}

/// A sink that cannot even say whether it is open must not take its session's task with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_panics_when_asked_is_closed_and_its_session_free() {
    struct Broken;
    impl NotificationSink for Broken {
        async fn deliver(&self, _: Delivery) -> Result<(), SinkError> {
            Ok(())
        }
        fn is_closed(&self) -> bool {
            panic!("asked")
        }
    }
    let t = Fixture::new("asked").await;
    let c = t.courier().await;
    let s = session("s");
    c.subscribers().ensure_running(&s, Broken).await.expect("claimed");
    c.push(push(&s, "1")).await.expect("queued");
    wait_until("it ended", Duration::from_secs(5), || async {
        let count = c.subscribers().count();
        if count == 0 { Ok(()) } else { Err(count.to_string()) }
    })
    .await;
    let recorder = Recorder::new();
    assert!(c.subscribers().ensure_running(&s, recorder.clone()).await.expect("claimed"));
    assert_eq!(recorder.wait_for(1).await, ["1"]);
    wait_pending(&c, &s, 0).await;
    c.shutdown(Duration::from_secs(2)).await;
    t.finish().await;
}
