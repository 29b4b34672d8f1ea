//! Which answer counts, and what the others hear.

use std::collections::BTreeMap;
use std::time::Duration;

use mcp_courier::relay::{Answer, AnswerError, Ask, Content, Outcome, Refusal, TaskRef};
use mcp_courier::{Error, RequestId};
use serde_json::json;

use super::{Client, accepted, ann, ask, asking, form, outcome, rid, soon};
use crate::support::fixture::{Fixture, Recorder, session};
use crate::support::wait::wait_until;

fn refused(answered: Result<(), AnswerError>) -> Refusal {
    match answered {
        Err(AnswerError::Refused(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_second_answer_and_one_to_nothing_are_refused_by_name() {
    let t = Fixture::new("second").await;
    let courier = t.courier().await;
    let (s, relay) = (session("s"), courier.relay());
    let waiting = asking(&courier, ask(&s, "q")).await;
    relay.answer(&s, &rid("q"), None, ann()).await.expect("the first counts");
    let second = relay.answer(&s, &rid("q"), None, Answer::Decline).await;
    assert_eq!(refused(second), Refusal::AlreadyAnswered);
    assert_eq!(refused(relay.answer(&s, &rid("other"), None, ann()).await), Refusal::Unknown);
    // Another session's question of that name is another question.
    assert_eq!(refused(relay.answer(&session("s2"), &rid("q"), None, ann()).await), Refusal::Unknown);
    assert_eq!(accepted(&outcome(waiting).await), json!({"name": "Ann"}));
    // Known for as long as it is kept, to whoever asks.
    let again = soon(t.courier().await.relay().await_answer(&s, &rid("q"))).await;
    assert_eq!(accepted(&again.expect("kept")), json!({"name": "Ann"}));
    assert_eq!((courier.metrics().answered, courier.metrics().answers_refused), (1, 3));
    t.finish().await;
}

/// F47: only the scope that the task belongs to may answer, an anonymous caller as little as another one; and nothing but
/// the scope itself is stored of a caller.
#[tokio::test]
async fn f47_an_answer_of_another_scope_is_refused_and_changes_nothing() {
    let t = Fixture::new("f47").await;
    let courier = t.courier().await;
    let (s, relay) = (session("s"), courier.relay());
    let mine = ask(&s, "mine").task(TaskRef::new("t").scope("alice"));
    let (mine, anonymous) = (asking(&courier, mine).await, asking(&courier, ask(&s, "anonymous")).await);
    for (id, scope) in
        [("mine", None), ("mine", Some("bob")), ("mine", Some("")), ("anonymous", Some("alice"))]
    {
        let answered = relay.answer(&s, &rid(id), scope, ann()).await;
        assert_eq!(refused(answered), Refusal::OtherScope, "{id} {scope:?}");
        // Not even whether the content would fit.
        let misfit = relay.answer(&s, &rid(id), scope, Answer::accept(json!(1))).await;
        assert_eq!(refused(misfit), Refusal::OtherScope, "{id} {scope:?}");
    }
    assert_eq!(relay.open_questions(&s).await.expect("read").len(), 2);
    relay.answer(&s, &rid("mine"), Some("alice"), ann()).await.expect("her own");
    relay.answer(&s, &rid("anonymous"), None, Answer::Decline).await.expect("nobody's");
    assert_eq!(accepted(&outcome(mine).await), json!({"name": "Ann"}));
    assert_eq!(outcome(anonymous).await, Outcome::Declined);
    // The scope is checked before anything is told of an answered question.
    assert_eq!(refused(relay.answer(&s, &rid("mine"), None, ann()).await), Refusal::OtherScope);
    let stored: BTreeMap<String, String> = t.ask(&format!("HGETALL {}", t.key("e", "s:mine"))).await;
    let known = [
        "alone_ms",
        "by",
        "content",
        "deadline_ms",
        "grace_ms",
        "keep_ms",
        "kind",
        "outcome",
        "request",
        "scope",
        "task",
        "waiters",
        "why",
    ];
    assert!(
        stored.keys().all(|field| known.contains(&&**field)),
        "nothing else of anybody is stored: {stored:?}"
    );
    t.finish().await;
}

#[tokio::test]
async fn a_late_answer_is_refused_and_the_worker_has_timed_out() {
    let t = Fixture::new("late").await;
    let courier = t.courier().await;
    let (s, relay) = (session("s"), courier.relay());
    let heard = soon(relay.ask(ask(&s, "q").timeout(Duration::from_millis(200)))).await;
    assert_eq!(heard, Ok(Outcome::TimedOut));
    assert_eq!(refused(relay.answer(&s, &rid("q"), None, ann()).await), Refusal::Late);
    // Also when no worker was there to see its time end.
    let _asked = relay.start(ask(&s, "unseen").timeout(Duration::from_millis(100))).await.expect("asked");
    t.wait_server_ms(t.server_ms().await + 120).await;
    assert_eq!(refused(relay.answer(&s, &rid("unseen"), None, ann()).await), Refusal::Late);
    assert_eq!(soon(relay.await_answer(&s, &rid("unseen"))).await, Ok(Outcome::TimedOut));
    t.finish().await;
}

/// The content does not fit: an error that says where, and the question stays open for a better one.
#[cfg(feature = "schema")]
#[tokio::test]
async fn a_content_that_does_not_fit_is_refused_and_the_question_stays_open() {
    let t = Fixture::new("misfit").await;
    let courier = t.courier().await;
    let (s, relay) = (session("s"), courier.relay());
    let waiting = asking(&courier, ask(&s, "q")).await;
    for misfit in [json!({}), json!({"name": 7}), json!({"name": "A"}), json!(null), json!("Ann")] {
        match refused(relay.answer(&s, &rid("q"), None, Answer::accept(misfit.clone())).await) {
            Refusal::Mismatch(why) => assert!(!why.is_empty() && !why.contains('7'), "{misfit}: {why}"),
            other => panic!("{misfit}: {other:?}"),
        }
    }
    assert_eq!(relay.open_questions(&s).await.expect("read").len(), 1);
    relay.answer(&s, &rid("q"), None, ann()).await.expect("it fits");
    assert_eq!(accepted(&outcome(waiting).await), json!({"name": "Ann"}));
    t.finish().await;
}

/// A client that answers what does not fit is asked again and told why; one that never does ends as cancelled.
#[cfg(feature = "schema")]
#[tokio::test]
async fn a_client_whose_content_does_not_fit_is_asked_again_and_not_for_ever() {
    let t = Fixture::new("asked_again").await;
    let courier = t.courier().await;
    let (s, client) = (session("s"), Client::saying(Ok(Answer::accept(json!({"name": "A"})))));
    let sink = courier.relay().attach(Recorder::new(), client.clone());
    courier.subscribers().ensure_running(&s, sink).await.expect("claimed");
    assert_eq!(soon(courier.relay().ask(ask(&s, "q"))).await, Ok(Outcome::Cancelled));
    let complaints: Vec<bool> = client.asked().iter().map(|q| q.complaint.is_some()).collect();
    assert_eq!(complaints, [false, true, true]);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The worker hears of a schema that can never be checked, and not the user.
#[cfg(feature = "schema")]
#[tokio::test]
async fn a_schema_that_is_none_is_refused_before_anything_is_sent() {
    let t = Fixture::new("no_schema").await;
    let courier = t.courier().await;
    let s = session("s");
    for schema in [
        json!("object"),
        json!({"type": "no such type"}),
        // Nothing is fetched, whatever a schema refers to.
        json!({"$ref": "http://127.0.0.1:9/schema.json"}),
        json!({"$ref": "file:///etc/hostname"}),
    ] {
        let request = mcp_courier::relay::Request::form("?", schema.clone());
        let refused = courier.relay().start(Ask::new(&s, request)).await.map(|_| ());
        assert!(
            matches!(refused, Err(Error::Invalid { what: "requested schema", .. })),
            "{schema}: {refused:?}"
        );
    }
    assert_eq!(t.keys().await, []);
    t.finish().await;
}

/// Asking again under the same id asks nothing twice, and never takes another question's place.
#[tokio::test]
async fn one_id_is_one_question() {
    let t = Fixture::new("one_id").await;
    let courier = t.courier().await;
    let (s, sink, client) = (session("s"), Recorder::new(), Client::silent());
    let attached = courier.relay().attach(sink.clone(), client.clone());
    courier.subscribers().ensure_running(&s, attached).await.expect("claimed");
    let waiting = [asking(&courier, ask(&s, "q")).await, asking(&courier, ask(&s, "q")).await];
    let other = courier.relay().start(Ask::new(&s, form("another")).id(rid("q"))).await.map(|_| ());
    assert!(matches!(other, Err(Error::Invalid { what: "request id", .. })), "{other:?}");
    client.wait_for(1).await;
    client.say(Ok(ann()));
    for waiting in waiting {
        assert_eq!(accepted(&outcome(waiting).await), json!({"name": "Ann"}));
    }
    let after = soon(courier.relay().ask(ask(&s, "q"))).await.expect("known");
    assert_eq!(accepted(&after), json!({"name": "Ann"}));
    assert_eq!((client.asked().len(), sink.seen().len(), courier.metrics().asked), (1, 1, 1));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// F36: two questions of a task are open. Each answer goes to its own; unknown and repeated ones change nothing and are
/// counted; the worker is awake within a tenth of a second and has both as they were sent. An answer that cannot be
/// stored is an error, never a success.
#[tokio::test(flavor = "multi_thread")]
async fn f36_answers_are_delivered_or_refused_never_acknowledged_and_dropped() {
    let t = Fixture::plain("f36").await;
    let (worker, server) = (t.courier().await, t.courier().await);
    let (s, relay) = (session("s"), server.relay());
    let (k1, k2) = (asking(&worker, ask(&s, "k1")).await, asking(&worker, ask(&s, "k2")).await);
    let open = || async {
        let open = relay.open_questions(&s).await.expect("read");
        open.iter().map(|q| q.id.as_str().to_owned()).collect::<Vec<_>>()
    };
    relay.answer(&s, &rid("k1"), None, ann()).await.expect("stored");
    assert_eq!(open().await, ["k2"]);
    assert_eq!(refused(relay.answer(&s, &rid("kx"), None, ann()).await), Refusal::Unknown);
    assert_eq!(open().await, ["k2"]);
    let sent = Content::from_json("{\"name\" :\"Bob\", \"name2\":[1.0]}").expect("JSON");
    relay.answer(&s, &rid("k2"), None, Answer::Accept(sent.clone())).await.expect("stored");
    let both =
        tokio::time::timeout(Duration::from_millis(100), async { (outcome(k1).await, outcome(k2).await) });
    let (k1, k2) = both.await.expect("awake within 100 ms");
    assert_eq!(accepted(&k1), json!({"name": "Ann"}));
    assert_eq!(k2, Outcome::Accepted(sent));
    assert_eq!(refused(relay.answer(&s, &rid("k2"), None, ann()).await), Refusal::AlreadyAnswered);
    assert_eq!(soon(worker.relay().await_answer(&s, &rid("k2"))).await, Ok(k2));
    assert_eq!(server.metrics().answers_refused, 2);

    // The store is out of reach: an error, and the question is as open as before.
    let proxy = crate::support::proxy::Proxy::start(t.server.url()).await;
    let hasty = t.builder().call_timeout(Duration::from_millis(200)).deadline(Duration::from_millis(500));
    let cut_off = hasty.connect(proxy.url()).await.expect("connected");
    let _asked = worker.relay().start(ask(&s, "k3")).await.expect("asked");
    proxy.set(crate::support::proxy::Mode::Refuse);
    let lost = cut_off.relay().answer(&s, &rid("k3"), None, ann()).await;
    assert!(matches!(lost, Err(AnswerError::Store(_))), "{lost:?}");
    assert_eq!(open().await, ["k3"]);
    t.finish().await;
}

/// F38: a wait ends with the question's time, within half a second; it holds nothing afterwards; and a later answer is
/// refused. What ends a wait has its own name each time.
#[tokio::test(flavor = "multi_thread")]
async fn f38_every_wait_ends_in_time_and_says_why() {
    let t = Fixture::new("f38").await;
    let courier = t.courier().await;
    let (s, relay) = (session("s"), courier.relay());
    let started = std::time::Instant::now();
    assert_eq!(
        soon(relay.ask(ask(&s, "q1").timeout(Duration::from_millis(900)))).await,
        Ok(Outcome::TimedOut)
    );
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(890) && took < Duration::from_millis(1400), "{took:?}");
    assert_eq!(relay.waiting(), 0);
    assert_eq!(refused(relay.answer(&s, &rid("q1"), None, ann()).await), Refusal::Late);

    let ended = asking(&courier, ask(&s, "q2")).await;
    assert_eq!(relay.end_session(&s).await, Ok(1));
    assert_eq!(outcome(ended).await, Outcome::SessionGone);
    let withdrawn = asking(&courier, ask(&s, "q3")).await;
    assert_eq!(relay.withdraw(&s, &rid("q3")).await, Ok(true));
    assert_eq!(relay.withdraw(&s, &rid("q3")).await, Ok(false));
    assert_eq!(outcome(withdrawn).await, Outcome::Cancelled);
    let waiting = asking(&courier, ask(&s, "q4")).await;
    wait_until("it waits", Duration::from_secs(5), || async {
        if relay.waiting() == 1 { Ok(()) } else { Err(relay.waiting().to_string()) }
    })
    .await;
    courier.shutdown(Duration::from_secs(1)).await;
    let down = soon(waiting).await.expect("no panic");
    assert!(matches!(down, Err(Error::Closed { .. })), "{down:?}");
    let unknown =
        soon(t.courier().await.relay().await_answer(&s, &RequestId::new("never").expect("valid"))).await;
    assert!(matches!(unknown, Err(Error::Invalid { what: "request id", .. })), "{unknown:?}");
    assert_eq!(relay.waiting(), 0);
    t.finish().await;
}
