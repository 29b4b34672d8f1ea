//! A session's end, and what only looks like one.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mcp_courier::relay::{AskError, Outcome};
use mcp_courier::{CancellationToken, Claim, Delivery, Ended, NotificationSink, SinkError};
use serde_json::json;

use super::{Client, accepted, ann, ask, asking, outcome, rid, soon};
use crate::support::fixture::{Fixture, Recorder, push, serve, session};
use crate::support::wait::wait_until;

/// A sink whose client can leave.
#[derive(Clone)]
struct Leaving(Recorder, CancellationToken);

impl NotificationSink for Leaving {
    async fn deliver(&self, delivery: Delivery) -> Result<(), SinkError> {
        if self.1.is_cancelled() { Err(SinkError::Closed) } else { self.0.deliver(delivery).await }
    }

    fn is_closed(&self) -> bool {
        self.1.is_cancelled()
    }
}

/// The sink closes: every open question of the session ends at once, in whatever state.
#[tokio::test]
async fn a_client_that_leaves_while_it_is_asked_is_heard_of_at_once() {
    let t = Fixture::new("leaves").await;
    let (worker, server) = (t.courier().await, t.courier().await);
    let (s, client, left) = (session("s"), Client::silent(), CancellationToken::new());
    let sink = server.relay().attach(Leaving(Recorder::new(), left.clone()), client.clone());
    let serving = serve(&server, &s, sink);
    let waiting = [asking(&worker, ask(&s, "q1")).await, asking(&worker, ask(&s, "q2")).await];
    client.wait_for(2).await;
    left.cancel();
    let started = Instant::now();
    // Whatever comes next finds the sink closed.
    worker.push(push(&s, "{}")).await.expect("queued");
    assert_eq!(serving.ended().await, Ended::SinkClosed);
    for waiting in waiting {
        assert_eq!(outcome(waiting).await, Outcome::SessionGone);
    }
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!(client.dropped(), 2, "nobody thinks about them any longer");
    t.finish().await;
}

/// The session is ended by its client: also questions that were never announced, from any process.
#[tokio::test]
async fn ending_a_session_ends_all_its_questions_and_no_others() {
    let t = Fixture::new("end_session").await;
    let (worker, server) = (t.courier().await, t.courier().await);
    let (s, other) = (session("s"), session("other"));
    let client = Client::silent();
    let sink = server.relay().attach(Recorder::new(), client.clone());
    server.subscribers().ensure_running(&s, sink).await.expect("claimed");
    let asked = asking(&worker, ask(&s, "q1")).await;
    let kept = asking(&worker, ask(&other, "q1")).await;
    client.wait_for(1).await;
    assert_eq!(worker.relay().end_session(&s).await, Ok(1));
    assert_eq!(outcome(asked).await, Outcome::SessionGone);
    wait_until("the client is not asked any more", Duration::from_secs(5), || async {
        if client.dropped() == 1 { Ok(()) } else { Err("it still is".to_owned()) }
    })
    .await;
    assert_eq!(worker.relay().end_session(&s).await, Ok(0));
    worker.relay().answer(&other, &rid("q1"), None, ann()).await.expect("it is open");
    assert_eq!(accepted(&outcome(kept).await), json!({"name": "Ann"}));
    server.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Stopping, shutting down and being superseded are no end of the session: its questions go with it.
#[tokio::test]
async fn a_question_moves_with_its_session_and_is_asked_there() {
    let t = Fixture::new("moves").await;
    let worker = t.courier().await;
    let (s, relay) = (session("s"), worker.relay());
    let waiting = asking(&worker, ask(&s, "q")).await;
    let mut earlier: Option<(mcp_courier::Courier, Client)> = None;
    for way in ["stop", "shutdown", "superseded"] {
        let (server, client) = (t.courier().await, Client::silent());
        let sink = server.relay().attach(Recorder::new(), client.clone());
        server.subscribers().ensure_running(&s, sink).await.expect("claimed");
        assert_eq!(client.wait_for(1).await[0].id, rid("q"), "{way}");
        if let Some((_server, client)) = earlier.take() {
            wait_until("the old client is left alone", Duration::from_secs(5), || async {
                if client.dropped() == 1 { Ok(()) } else { Err("it still thinks".to_owned()) }
            })
            .await;
        }
        match way {
            "stop" => assert!(server.subscribers().stop(&s).await),
            "shutdown" => drop(server.shutdown(Duration::from_secs(5)).await),
            _ => {}
        }
        earlier = Some((server, client));
    }
    let (server, client) = (t.courier().await, Client::saying(Ok(ann())));
    let sink = server.relay().attach(Recorder::new(), client.clone());
    server.subscribers().ensure_running(&s, sink).await.expect("claimed");
    assert_eq!(accepted(&outcome(waiting).await), json!({"name": "Ann"}));
    assert_eq!(client.asked().len(), 1);
    assert_eq!(relay.open_questions(&s).await, Ok(vec![]));
    server.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A client that goes because its server goes down may come back elsewhere.
#[tokio::test]
async fn a_client_that_goes_with_its_server_is_not_taken_for_gone() {
    let t = Fixture::new("with_server").await;
    let (worker, server) = (t.courier().await, t.courier().await);
    let (s, client) = (session("s"), Client::silent());
    let sink = server.relay().attach(Recorder::new(), client.clone());
    server.subscribers().ensure_running(&s, sink).await.expect("claimed");
    let waiting = asking(&worker, ask(&s, "q")).await;
    client.wait_for(1).await;
    let down = server.shutdown(Duration::from_secs(5));
    client.say(Err(AskError::Gone));
    down.await;
    assert_eq!(worker.relay().open_questions(&s).await.expect("read").len(), 1);
    let (next, client) = (t.courier().await, Client::saying(Ok(ann())));
    let sink = next.relay().attach(Recorder::new(), client);
    next.subscribers().ensure_running(&s, sink).await.expect("claimed");
    assert_eq!(accepted(&outcome(waiting).await), json!({"name": "Ann"}));
    next.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Nobody serves the session: the worker hears so after the question's grace, long before its timeout.
#[tokio::test]
async fn a_session_that_nobody_serves_is_gone_after_the_grace() {
    let t = Fixture::new("grace").await;
    let worker = t.courier().await;
    let s = session("s");
    let question = ask(&s, "q").timeout(Duration::from_secs(3600)).grace(Duration::from_millis(500));
    let started = Instant::now();
    assert_eq!(soon(worker.relay().ask(question)).await, Ok(Outcome::SessionGone));
    assert!(started.elapsed() >= Duration::from_millis(500), "{:?}", started.elapsed());
    t.finish().await;
}

/// An owner that comes within the grace is in time, and the grace begins anew when it leaves.
#[tokio::test]
async fn an_owner_that_comes_within_the_grace_is_in_time() {
    let t = Fixture::new("in_time").await;
    let (worker, server) = (t.courier().await, t.courier().await);
    let s = session("s");
    let waiting = asking(&worker, ask(&s, "q").grace(Duration::from_secs(20))).await;
    wait_until("the worker has seen that it is alone", Duration::from_secs(10), || async {
        let alone: Option<String> = t.ask(&format!("HGET {} alone_ms", t.key("e", "s:q"))).await;
        alone.map(drop).ok_or_else(|| "not yet".to_owned())
    })
    .await;
    let client = Client::silent();
    let sink = server.relay().attach(Recorder::new(), client.clone());
    server.subscribers().ensure_running(&s, sink).await.expect("claimed");
    client.wait_for(1).await;
    let alone: Option<String> = t.ask(&format!("HGET {} alone_ms", t.key("e", "s:q"))).await;
    assert_eq!(alone, None, "somebody serves it");
    client.say(Ok(ann()));
    assert_eq!(accepted(&outcome(waiting).await), json!({"name": "Ann"}));
    server.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Its notification can never be delivered: the client will not hear of the question, and the worker hears that.
#[tokio::test]
async fn a_question_whose_announcement_becomes_a_dead_letter_is_cancelled() {
    let t = Fixture::new("dead_notice").await;
    let courier = t.courier().await;
    for (sid, verdict) in [("rejected", SinkError::rejected("no")), ("retried", SinkError::retry("later"))] {
        let (s, client) = (session(sid), Client::silent());
        let sink = Recorder::answering(move |_| Err(verdict.clone()));
        let attached = courier.relay().attach(sink, client.clone());
        courier.subscribers().ensure_running(&s, attached).await.expect("claimed");
        assert_eq!(soon(courier.relay().ask(ask(&s, "q"))).await, Ok(Outcome::Cancelled), "{sid}");
        assert_eq!(client.asked().len(), 0);
    }
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Over before the session came to it: the client hears nothing.
#[tokio::test]
async fn a_question_that_is_over_is_neither_announced_nor_asked() {
    let t = Fixture::new("over").await;
    let (worker, server) = (t.courier().await, t.courier().await);
    let s = session("s");
    let waiting = asking(&worker, ask(&s, "q")).await;
    assert_eq!(worker.relay().withdraw(&s, &rid("q")).await, Ok(true));
    assert_eq!(outcome(waiting).await, Outcome::Cancelled);
    worker.push(push(&s, "{\"method\":\"after\"}")).await.expect("queued");
    let (sink, client) = (Recorder::new(), Client::silent());
    let attached = server.relay().attach(sink.clone(), client.clone());
    server.subscribers().ensure_running(&s, attached).await.expect("claimed");
    assert_eq!(sink.wait_for(1).await, ["{\"method\":\"after\"}"]);
    assert_eq!(client.asked(), []);
    server.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// An ordinary message may have any id.
#[tokio::test]
async fn a_message_whose_id_looks_like_a_questions_is_delivered() {
    let t = Fixture::new("looks_like").await;
    let courier = t.courier().await;
    let (s, sink, client) = (session("s"), Recorder::new(), Client::silent());
    let attached = courier.relay().attach(sink.clone(), client.clone());
    courier.subscribers().ensure_running(&s, attached).await.expect("claimed");
    let id = mcp_courier::MessageId::new("ask:me").expect("valid");
    courier.push(push(&s, "plain").id(id)).await.expect("queued");
    assert_eq!(sink.wait_for(1).await, ["plain"]);
    assert_eq!(client.asked(), []);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// What a sink hears beside its messages.
#[derive(Clone, Default)]
struct Listening(Arc<Mutex<Vec<String>>>);

impl Listening {
    fn heard(&self) -> Vec<String> {
        self.0.lock().expect("not poisoned").clone()
    }
}

impl NotificationSink for Listening {
    async fn deliver(&self, _: Delivery) -> Result<(), SinkError> {
        Ok(())
    }

    fn claimed(&self, claim: &Claim) {
        assert!(claim.epoch > 0);
        self.0.lock().expect("not poisoned").push(format!("{} claimed", claim.session));
    }

    fn ended(&self, claim: &Claim, why: Ended) {
        self.0.lock().expect("not poisoned").push(format!("{} {why:?}", claim.session));
    }
}

/// Through a relay's sink as well: once for the claim, once for the end, whoever ends it.
#[tokio::test]
async fn a_sink_hears_of_its_claim_and_once_of_its_end() {
    let t = Fixture::new("hears").await;
    let (one, two) = (t.courier().await, t.courier().await);
    let s = session("s");
    let (first, second, third) = (Listening::default(), Listening::default(), Listening::default());
    let plain = serve(&one, &s, first.clone());
    wait_until("claimed", Duration::from_secs(5), || async {
        if first.heard().len() == 1 { Ok(()) } else { Err(format!("{:?}", first.heard())) }
    })
    .await;
    // Replaced in the same process, while nothing runs for it.
    let replaced = serve(&one, &s, one.relay().attach(second.clone(), Client::silent()));
    assert_eq!(plain.ended().await, Ended::Superseded);
    wait_until("claimed", Duration::from_secs(5), || async {
        if second.heard().len() == 1 { Ok(()) } else { Err(format!("{:?}", second.heard())) }
    })
    .await;
    two.subscribers().ensure_running(&s, Arc::new(third.clone())).await.expect("claimed");
    assert_eq!(replaced.ended().await, Ended::Superseded);
    two.shutdown(Duration::from_secs(5)).await;
    assert_eq!(first.heard(), ["s claimed", "s Superseded"]);
    assert_eq!(second.heard(), ["s claimed", "s Superseded"]);
    assert_eq!(third.heard(), ["s claimed", "s Stopped"]);
    t.finish().await;
}
