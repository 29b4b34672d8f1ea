//! Every error a server can give, injected: what a caller gets, what the loops do, what the log says. The rows are those
//! of `docs/errors.md`.

use std::time::Duration;

use mcp_courier::{Courier, Error};

use crate::support::capture::Capture;
use crate::support::fixture::{Fixture, Recorder, push, session, wait_pending};
use crate::support::proxy::{Proxy, Refuse};
use crate::support::wait::wait_until;

/// What the page says of a code: repeated by the library, retryable, connection opened again.
fn row(code: &str) -> (bool, bool, bool) {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/errors.md")).expect("the page");
    let line = page.lines().find(|l| l.starts_with(&format!("| `{code}` |"))).expect("a row");
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    (cells[2] != "returned", cells[3] == "yes", cells[4] == "opened again")
}

/// A server that refuses every script with this code: the caller gets what the page says and nothing is stored; the
/// loops do not end, do not spin, warn once, and serve again by themselves.
async fn refused(code: &str) {
    let (repeated, retryable, reopened) = row(code);
    let t = Fixture::plain(code).await;
    let proxy = Proxy::start(t.server.url()).await;
    let capture = Capture::start();
    // Time for several tries, and for a connection to be opened again.
    let deadline = Duration::from_millis(if reopened { 2500 } else { 600 });
    let owner = t.builder().deadline(deadline).connect(proxy.url()).await.expect("connected");
    let worker = t.courier().await;
    let s = session("s");
    let sink = Recorder::new();
    owner.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    worker.push(push(&s, "1")).await.expect("queued");
    sink.wait_for(1).await;
    wait_pending(&worker, &s, 0).await;

    proxy.refuse(Refuse::Scripts, Some(&format!("{code} as the test says")));
    let retries = owner.metrics().push_retries;
    let error = owner.push(push(&s, "refused")).await.expect_err("refused");
    assert!(matches!(&error, Error::Refused { code: found, .. } if found == code), "{error:?}");
    assert_eq!((error.is_retryable(), error.is_ambiguous()), (retryable, false), "{error}");
    assert_eq!(owner.metrics().push_retries > retries, repeated, "{:?}", owner.metrics());
    assert_eq!(worker.stats(&s).await.expect("stats").pending, 0, "nothing was stored");

    // The doorbell brings the message; its ack is refused, and what follows stays pending.
    worker.push(push(&s, "2")).await.expect("queued");
    sink.wait_for(2).await;
    worker.push(push(&s, "3")).await.expect("queued");
    wait_until("heartbeat, sweep and session to have met it", Duration::from_secs(10), || async {
        let told = |what: &str| capture.lines_with(&["WARN", what, code]).len();
        let told = [told("no heartbeat"), told("no sweep"), told("engine::runner")];
        if told.iter().all(|n| *n >= 1) { Ok(()) } else { Err(format!("{told:?}")) }
    })
    .await;
    let (calls, connections) = (proxy.refused(), proxy.accepted());
    // Not a wait: the time in which a loop that spins would show.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let (calls, connections) = (proxy.refused() - calls, proxy.accepted() - connections);
    assert!((2..60).contains(&calls), "{calls} calls in 1.5 s");
    assert!(connections <= if reopened { 4 } else { 0 }, "{connections} new connections in 1.5 s");
    assert!(owner.subscribers().is_running(&s), "the loop ended");
    assert!(owner.health().commands.is_some(), "{:?}", owner.health());
    for what in ["no heartbeat", "no sweep", "engine::runner"] {
        assert_eq!(
            capture.lines_with(&["WARN", what]).len(),
            1,
            "{what}: {}",
            capture.lines_with(&["WARN"]).join("\n")
        );
    }
    let all = capture.lines_with(&["WARN"]);
    assert!(all.len() <= if reopened { 6 } else { 3 }, "{}", all.join("\n"));

    proxy.refuse(Refuse::Scripts, None);
    assert_eq!(sink.wait_for(3).await, ["1", "2", "3"]);
    wait_pending(&worker, &s, 0).await;
    wait_until("healthy", Duration::from_secs(10), || async {
        if owner.health().is_healthy() { Ok(()) } else { Err(format!("{:?}", owner.health())) }
    })
    .await;
    assert_eq!(capture.lines_with(&["INFO", "served again"]).len(), 1);
    assert_eq!(sink.bodies(), ["1", "2", "3"], "no duplicates");
    owner.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

macro_rules! codes {
    ($($test:ident $code:literal),* $(,)?) => {
        $(#[tokio::test]
        async fn $test() {
            refused($code).await;
        })*

        /// No row of the page is left out.
        #[test]
        fn every_code_of_the_page_is_injected() {
            let page = include_str!("../../docs/errors.md");
            let rows = page.lines().skip_while(|l| !l.starts_with("| code |")).skip(2);
            let codes: Vec<&str> =
                rows.map_while(|l| l.strip_prefix("| `")).filter_map(|l| l.split('`').next()).collect();
            assert_eq!(codes, [$($code),*]);
        }
    };
}

codes! {
    noscript_for_the_text_as_well "NOSCRIPT",
    loading "LOADING",
    readonly "READONLY",
    masterdown "MASTERDOWN",
    clusterdown "CLUSTERDOWN",
    tryagain "TRYAGAIN",
    moved "MOVED",
    ask "ASK",
    oom "OOM",
    misconf "MISCONF",
    noreplicas "NOREPLICAS",
    busy "BUSY",
    unkillable "UNKILLABLE",
    noperm "NOPERM",
    wrongpass "WRONGPASS",
    noauth "NOAUTH",
    credentials "CREDENTIALS",
    denied "DENIED",
    wrongtype "WRONGTYPE",
    crossslot "CROSSSLOT",
    noproto "NOPROTO",
    execabort "EXECABORT",
    no_master_of_this_name "MASTER",
    version "VERSION",
    err "ERR",
}

#[tokio::test]
async fn a_code_that_nobody_knows_is_returned_and_survived() {
    let t = Fixture::plain("unknown_code").await;
    let proxy = Proxy::start(t.server.url()).await;
    let courier = t.connect_to(proxy.url()).await;
    proxy.refuse(Refuse::Scripts, Some("SOMETHINGNEW from a later server"));
    let error = courier.push(push(&session("s"), "x")).await.expect_err("refused");
    assert!(matches!(&error, Error::Refused { code, .. } if code == "SOMETHINGNEW"), "{error:?}");
    assert!(!error.is_retryable() && error.to_string().contains("from a later server"), "{error}");
    proxy.refuse(Refuse::Scripts, None);
    courier.ping().await.expect("served again");
    t.finish().await;
}

/// A server that refuses already the greeting or the subscription: `connect` says so, a running courier tries on, and is
/// back by itself. What will pass is looked at after 20 ms, 40 ms and so on; the rest at most once a second.
async fn refused_at_connect(code: &str, text: &str) {
    let t = Fixture::plain("at_connect").await;
    let proxy = Proxy::start(t.server.url()).await;
    let capture = Capture::start();
    let owner =
        t.builder().call_timeout(Duration::from_millis(500)).connect(proxy.url()).await.expect("connected");
    let worker = t.courier().await;
    let s = session("s");
    let sink = Recorder::new();
    owner.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");

    proxy.refuse(Refuse::Everything, Some(text));
    proxy.cut();
    let error = Courier::connect(proxy.url()).await.expect_err("refused");
    assert!(matches!(&error, Error::Refused { code: found, .. } if found == code), "{error:?}");
    wait_until("both connections to say why", Duration::from_secs(10), || async {
        let told = capture.lines_with(&["WARN", "cannot connect", code]).len();
        if told >= 2 { Ok(()) } else { Err(told.to_string()) }
    })
    .await;
    let before = proxy.accepted();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let tries = proxy.accepted() - before;
    let most = if row(code).0 { 16 } else { 7 };
    assert!((2..=most).contains(&tries), "{tries} connections of two links in 3 s");
    assert_eq!(capture.lines_with(&["WARN", "cannot connect"]).len(), 2, "once for each connection");

    worker.push(push(&s, "x")).await.expect("queued");
    proxy.refuse(Refuse::Everything, None);
    sink.wait_for(1).await;
    wait_pending(&worker, &s, 0).await;
    assert_eq!(sink.bodies(), ["x"]);
    owner.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

#[tokio::test]
async fn loading_at_connect() {
    refused_at_connect("LOADING", "LOADING Redis is loading the dataset in memory").await;
}

#[tokio::test]
async fn no_free_connection_at_connect() {
    refused_at_connect("ERR", "ERR max number of clients reached").await;
}

#[tokio::test]
async fn protected_mode_at_connect() {
    refused_at_connect("DENIED", "DENIED Redis is running in protected mode").await;
}
