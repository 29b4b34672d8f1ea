//! Workers that die, and those who wait in their place.

use std::time::Duration;

use mcp_courier::relay::Outcome;
use serde_json::json;

use super::{Client, accepted, ann, ask, asking, outcome, rid, soon};
use crate::support::fixture::{Fixture, Process, Recorder, session};

/// The worker asks and dies; the client answers before, while, or after the next worker waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_is_replaced_and_the_answer_is_there() {
    let t = Fixture::new("worker_dies").await;
    let (server, client) = (t.courier().await, Client::silent());
    let s = session("s");
    let sink = server.relay().attach(Recorder::new(), client.clone());
    server.subscribers().ensure_running(&s, sink).await.expect("claimed");
    for (n, answered_first) in [(1, true), (2, false)] {
        let id = rid(&format!("q{n}"));
        let worker = Process::start(t.builder(), t.server.url()).await;
        let asked = {
            let (relay, question) = (worker.courier.relay(), ask(&s, id.as_str()));
            worker.runtime.spawn(async move { relay.start(question).await.map(|asked| asked.id().clone()) })
        };
        assert_eq!(asked.await.expect("no panic"), Ok(id.clone()));
        let waiting = {
            let (relay, s, id) = (worker.courier.relay(), s.clone(), id.clone());
            worker.runtime.spawn(async move { relay.await_answer(&s, &id).await })
        };
        client.wait_for(n).await;
        worker.crash().await;
        drop(waiting);
        let next = t.courier().await;
        let heard = if answered_first {
            server.relay().answer(&s, &id, None, ann()).await.expect("stored");
            soon(next.relay().await_answer(&s, &id)).await.expect("kept")
        } else {
            // The new worker asks as the old one did: under the same id it waits for the same question.
            let waiting = asking(&next, ask(&s, id.as_str())).await;
            server.relay().answer(&s, &id, None, ann()).await.expect("stored");
            outcome(waiting).await
        };
        assert_eq!(accepted(&heard), json!({"name": "Ann"}), "case {n}");
    }
    assert_eq!(client.asked().len(), 2, "each was asked once");
    server.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Ten workers wait for one question: all hear it at once, also those that are not the newest eight.
#[tokio::test(flavor = "multi_thread")]
async fn any_number_of_workers_may_wait_for_one_question() {
    let t = Fixture::new("ten_workers").await;
    let s = session("s");
    let first = t.courier().await;
    let _asked = first.relay().start(ask(&s, "q")).await.expect("asked");
    let mut waiting = Vec::new();
    for _ in 0..10 {
        let relay = t.courier().await.relay();
        let s = s.clone();
        waiting.push(tokio::spawn(async move { relay.await_answer(&s, &rid("q")).await }));
    }
    first.relay().answer(&s, &rid("q"), None, ann()).await.expect("stored");
    for one in waiting {
        assert_eq!(accepted(&outcome(one).await), json!({"name": "Ann"}));
    }
    t.finish().await;
}

/// Everybody is gone before the answer: nothing is left after the question's time and what it is kept.
#[tokio::test]
async fn a_question_that_everybody_left_vanishes_by_itself() {
    let t = Fixture::new("vanishes").await;
    let worker = t.courier().await;
    let s = session("s");
    let question = ask(&s, "q").timeout(Duration::from_millis(300)).keep(Duration::from_millis(100));
    let _asked = worker.relay().start(question).await.expect("asked");
    worker.shutdown(Duration::from_secs(1)).await;
    drop(worker);
    let end = t.server_ms().await + 800;
    t.wait_server_ms(end).await;
    let left = t.keys().await;
    assert!(left.iter().all(|(key, _)| matches!(&**key, "w" | "n")), "{left:?}");
    let unknown = soon(t.courier().await.relay().await_answer(&s, &rid("q"))).await;
    assert!(unknown.is_err(), "{unknown:?}");
    t.finish().await;
}

/// A wait that is dropped leaves the question as it is.
#[tokio::test]
async fn a_dropped_wait_changes_nothing() {
    let t = Fixture::new("dropped").await;
    let courier = t.courier().await;
    let s = session("s");
    let asked = courier.relay().start(ask(&s, "q")).await.expect("asked");
    for _ in 0..3 {
        assert!(tokio::time::timeout(Duration::from_millis(20), asked.wait()).await.is_err());
    }
    assert_eq!(courier.relay().waiting(), 0);
    courier.relay().answer(&s, asked.id(), None, mcp_courier::relay::Answer::Decline).await.expect("stored");
    assert_eq!(soon(asked.wait()).await, Ok(Outcome::Declined));
    t.finish().await;
}

/// The question's state is lost with the server's: the worker does not wait for what nobody can answer.
#[tokio::test]
async fn a_question_that_is_lost_ends_its_wait() {
    let t = Fixture::new("lost").await;
    let courier = t.courier().await;
    let s = session("s");
    let waiting = asking(&courier, ask(&s, "q")).await;
    let _: u64 = t.ask(&format!("DEL {}", t.key("e", "s:q"))).await;
    let lost = soon(waiting).await.expect("no panic");
    assert!(matches!(lost, Err(mcp_courier::Error::Invalid { what: "request id", .. })), "{lost:?}");
    t.finish().await;
}
