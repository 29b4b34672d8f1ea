//! What happens at the same moment.

use std::time::Duration;

use mcp_courier::relay::{Answer, AnswerError, Ask, Outcome, Refusal};
use serde_json::json;

use super::{Client, accepted, ann, ask, asking, form, outcome, rid, soon};
use crate::support::fixture::{Fixture, Process, Recorder, session};
use crate::support::proxy::{Mode, Proxy};
use crate::support::wait::wait_until;

/// Twenty answers from four processes to one question: one counts, and it is the one that the worker gets.
#[tokio::test(flavor = "multi_thread")]
async fn of_many_answers_at_once_exactly_one_counts() {
    let t = Fixture::new("at_once").await;
    let worker = t.courier().await;
    let s = session("s");
    let mut servers = Vec::new();
    for _ in 0..4 {
        servers.push(t.courier().await);
    }
    for round in 0..10 {
        let id = rid(&format!("q{round}"));
        let waiting = asking(&worker, ask(&s, id.as_str())).await;
        let mut answers = tokio::task::JoinSet::new();
        for n in 0..20 {
            let (relay, s, id) = (servers[n % 4].relay(), s.clone(), id.clone());
            let answer = Answer::accept(json!({"name": format!("number {n}")}));
            answers.spawn(async move { (n, relay.answer(&s, &id, None, answer).await) });
        }
        let mut winners = Vec::new();
        while let Some(answered) = answers.join_next().await {
            match answered.expect("no panic") {
                (n, Ok(())) => winners.push(n),
                (_, Err(e)) => assert_eq!(e, AnswerError::Refused(Refusal::AlreadyAnswered)),
            }
        }
        assert_eq!(winners.len(), 1, "round {round}");
        let heard = accepted(&outcome(waiting).await);
        assert_eq!(heard, json!({"name": format!("number {}", winners[0])}), "round {round}");
    }
    t.finish().await;
}

/// An answer and the end of the question's time: both sides hear the same, whoever was first.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_and_a_timeout_at_once_end_the_same_for_both_sides() {
    let t = Fixture::new("timeout_race").await;
    let (worker, server) = (t.courier().await, t.courier().await);
    let s = session("s");
    let mut pairs = tokio::task::JoinSet::new();
    for n in 0..60_u64 {
        let id = rid(&format!("q{n}"));
        let question = Ask::new(&s, form("?")).id(id.clone()).timeout(Duration::from_millis(120));
        let waiting = asking(&worker, question).await;
        let (relay, s) = (server.relay(), s.clone());
        pairs.spawn(async move {
            // Around the end, some before it and some after.
            tokio::time::sleep(Duration::from_millis(105 + n / 2)).await;
            (relay.answer(&s, &id, None, ann()).await, outcome(waiting).await)
        });
    }
    while let Some(pair) = pairs.join_next().await {
        match pair.expect("no panic") {
            (Ok(()), Outcome::Accepted(content)) => assert_eq!(content.value(), json!({"name": "Ann"})),
            (Err(AnswerError::Refused(Refusal::Late)), Outcome::TimedOut) => {}
            other => panic!("the two sides differ: {other:?}"),
        }
    }
    t.finish().await;
}

/// An answer and a withdrawal, the same.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_and_a_withdrawal_at_once_end_the_same_for_all() {
    let t = Fixture::new("withdraw_race").await;
    let (worker, server) = (t.courier().await, t.courier().await);
    let s = session("s");
    for n in 0..30 {
        let id = rid(&format!("q{n}"));
        let waiting = asking(&worker, ask(&s, id.as_str())).await;
        let (one, two) = (worker.relay(), server.relay());
        let both = tokio::join!(one.withdraw(&s, &id), two.answer(&s, &id, None, ann()));
        match (both, outcome(waiting).await) {
            ((Ok(true), Err(AnswerError::Refused(Refusal::Closed))), Outcome::Cancelled) => {}
            ((Ok(false), Ok(())), Outcome::Accepted(_)) => {}
            other => panic!("the sides differ: {other:?}"),
        }
    }
    t.finish().await;
}

/// The answer's ring is lost on its way: the slow look finds it.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_whose_signal_is_lost_is_found_by_the_next_look() {
    let t = Fixture::plain("lost_signal").await;
    let proxy = Proxy::start(t.server.url()).await;
    let (worker, server) = (t.connect_to(proxy.url()).await, t.courier().await);
    let s = session("s");
    let waiting = asking(&worker, ask(&s, "q")).await;
    wait_waiters(&t, "s:q").await;
    proxy.drop_frames_with(Some(b"@question"));
    server.relay().answer(&s, &rid("q"), None, ann()).await.expect("stored");
    let heard = tokio::time::timeout(Duration::from_secs(5), outcome(waiting)).await.expect("within 5 s");
    assert_eq!(accepted(&heard), json!({"name": "Ann"}));
    assert!(proxy.dropped() > 0, "the signal was sent and lost");
    t.finish().await;
}

/// Both connections of the worker are away while the client answers: the worker hears it when they are back.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_given_while_the_worker_is_cut_off_is_heard_after_the_reconnect() {
    let t = Fixture::plain("cut_off").await;
    let proxy = Proxy::start(t.server.url()).await;
    let (worker, server) = (t.connect_to(proxy.url()).await, t.courier().await);
    let s = session("s");
    let mut waiting = Vec::new();
    for n in 0..50 {
        waiting.push(asking(&worker, ask(&s, &format!("q{n}"))).await);
    }
    proxy.set(Mode::Refuse);
    for n in 0..50 {
        server.relay().answer(&s, &rid(&format!("q{n}")), None, ann()).await.expect("stored");
    }
    assert!(waiting.iter().all(|one| !one.is_finished()), "cut off");
    proxy.set(Mode::Pass);
    for one in waiting {
        assert_eq!(accepted(&outcome(one).await), json!({"name": "Ann"}));
    }
    assert_eq!(worker.relay().waiting(), 0);
    t.finish().await;
}

/// The server side is cut off when the client answers: the answer is kept until it can be stored.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_the_server_cannot_store_yet_is_stored_later() {
    let t = Fixture::plain("store_later").await;
    let proxy = Proxy::start(t.server.url()).await;
    let (worker, server) = (t.courier().await, t.connect_to(proxy.url()).await);
    let (s, client) = (session("s"), Client::silent());
    let sink = server.relay().attach(Recorder::new(), client.clone());
    server.subscribers().ensure_running(&s, sink).await.expect("claimed");
    let waiting = asking(&worker, ask(&s, "q")).await;
    client.wait_for(1).await;
    proxy.set(Mode::Refuse);
    client.say(Ok(ann()));
    wait_until("the server side knows that it is cut off", Duration::from_secs(10), || async {
        if server.health().commands.is_some() { Ok(()) } else { Err("it does not".to_owned()) }
    })
    .await;
    proxy.set(Mode::Pass);
    assert_eq!(accepted(&outcome(waiting).await), json!({"name": "Ann"}));
    server.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The answer was stored and the reply was lost: the repeated call is the same answer, not a second one.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_whose_reply_is_lost_is_repeated_as_the_same_answer() {
    let t = Fixture::plain("reply_lost").await;
    let proxy = Proxy::start(t.server.url()).await;
    let worker = t.courier().await;
    let builder = t.builder().call_timeout(Duration::from_millis(300));
    let server = builder.connect(proxy.url()).await.expect("connected");
    let s = session("s");
    let waiting = asking(&worker, ask(&s, "q")).await;
    // The reply of the read passes, that of the write does not.
    proxy.drop_frames_with(Some(b"answered"));
    let answering = {
        let (relay, s) = (server.relay(), s.clone());
        tokio::spawn(async move { relay.answer(&s, &rid("q"), None, ann()).await })
    };
    wait_until("a lost reply", Duration::from_secs(10), || async {
        if proxy.dropped() > 0 { Ok(()) } else { Err("none".to_owned()) }
    })
    .await;
    proxy.drop_frames_with(None);
    soon(answering).await.expect("no panic").expect("one answer, it counts");
    assert_eq!(accepted(&outcome(waiting).await), json!({"name": "Ann"}));
    t.finish().await;
}

/// The owner dies between two polls while its client thinks, and a living worker waits on.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_of_an_owner_that_dies_is_asked_again_by_the_next_one() {
    let t = Fixture::new("owner_dies").await;
    let worker = t.courier().await;
    let s = session("s");
    let owner = Process::start(t.builder(), t.server.url()).await;
    let client = Client::silent();
    owner.serve(&s, owner.courier.relay().attach(Recorder::new(), client.clone())).await;
    let waiting = asking(&worker, ask(&s, "q")).await;
    client.wait_for(1).await;
    owner.crash().await;
    let (next, client, sink) = (t.courier().await, Client::silent(), Recorder::new());
    let attached = next.relay().attach(sink.clone(), client.clone());
    next.subscribers().ensure_running(&s, attached).await.expect("claimed");
    let again = client.wait_for(1).await;
    assert_eq!(again[0].id, rid("q"));
    client.say(Ok(ann()));
    assert_eq!(accepted(&outcome(waiting).await), json!({"name": "Ann"}));
    assert_eq!(client.asked().len(), 1, "once here");
    next.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Until a worker is noted as waiting for a question.
async fn wait_waiters(t: &Fixture, question: &str) {
    wait_until("a waiter", Duration::from_secs(5), || async {
        let waiters: Option<String> = t.ask(&format!("HGET {} waiters", t.key("e", question))).await;
        waiters.map(drop).ok_or_else(|| "none".to_owned())
    })
    .await;
}
