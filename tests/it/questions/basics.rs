//! A worker asks, the client answers, the worker goes on.

use std::time::Duration;

use mcp_courier::relay::{Answer, Ask, AskError, Capabilities, Content, Outcome, Request, TaskRef};
use serde_json::{Map, json};

use super::{Client, accepted, ann, ask, asking, form, outcome, rid, soon};
use crate::support::fixture::{Fixture, Recorder, push, session};

/// The whole way: the notification with id, status, request, message and schema, the question, the content.
#[tokio::test]
async fn an_answer_reaches_the_worker_and_the_client_was_told_first() {
    let t = Fixture::new("answer").await;
    let (worker, server) = (t.courier().await, t.courier().await);
    let (s, sink, client) = (session("s"), Recorder::new(), Client::saying(Ok(ann())));
    let relay = server.relay();
    server
        .subscribers()
        .ensure_running(&s, relay.attach(sink.clone(), client.clone()))
        .await
        .expect("claimed");
    let task = TaskRef::new("t1").scope("alice");
    let heard = soon(worker.elicit(&s, &task, form("Your name?"), Duration::from_secs(30))).await;
    assert_eq!(accepted(&heard.expect("an outcome")), json!({"name": "Ann"}));

    let question = client.asked().remove(0);
    assert_eq!((question.session, question.task), (s, Some(task)));
    assert_eq!(question.request, form("Your name?"));
    assert!(question.left > Duration::from_secs(20) && question.complaint.is_none());
    let told = sink.seen()[0].notification().expect("a notification");
    assert_eq!(told.method, "notifications/tasks/status");
    let params = told.params.expect("params");
    assert_eq!((&params["taskId"], &params["status"]), (&json!("t1"), &json!("input_required")));
    let related = &params["_meta"]["io.modelcontextprotocol/related-task"];
    assert_eq!(related["task_scope"], json!("alice"));
    assert_eq!(related["elicitation"]["requestId"], json!(question.id.as_str()));
    assert_eq!(related["elicitation"]["message"], json!("Your name?"));
    assert_eq!(related["elicitation"]["requestedSchema"]["required"], json!(["name"]));
    assert_eq!((worker.metrics().asked, server.metrics().answered), (1, 1));
    assert_eq!(
        (worker.relay().waiting(), worker.relay().open_questions(&session("s")).await),
        (0, Ok(vec![]))
    );
    server.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The bytes of a content are the client's: order, spacing and numbers that no double holds.
#[tokio::test]
async fn a_content_arrives_byte_for_byte() {
    let t = Fixture::new("bytes").await;
    let courier = t.courier().await;
    let s = session("s");
    let exact = "{\"z\": 1, \"name\":\"\u{e9}\\u0041\", \"n\": 12345678901234567890.10, \"list\": []}";
    let waiting = asking(&courier, ask(&s, "q")).await;
    let content = Content::from_json(exact).expect("JSON");
    courier.relay().answer(&s, &rid("q"), None, Answer::Accept(content)).await.expect("stored");
    match outcome(waiting).await {
        Outcome::Accepted(content) => assert_eq!(content.as_bytes(), exact.as_bytes()),
        other => panic!("{other:?}"),
    }
    t.finish().await;
}

#[tokio::test]
async fn declining_cancelling_failing_and_being_unable_are_heard_at_once() {
    let t = Fixture::new("others").await;
    let courier = t.courier().await;
    for (n, (client, expected, asked)) in [
        (Client::saying(Ok(Answer::Decline)), Outcome::Declined, 1),
        (Client::saying(Ok(Answer::Cancel)), Outcome::Cancelled, 1),
        (Client::saying(Err(AskError::Unsupported)), Outcome::Cancelled, 1),
        (Client::saying(Err(AskError::Failed("broken".into()))), Outcome::Cancelled, 1),
        (Client::saying(Err(AskError::Gone)), Outcome::SessionGone, 1),
        // The client has no handler for it: it is not even asked.
        (Client::silent().able_to(Capabilities::ALL.form(false)), Outcome::Cancelled, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let s = session(&format!("s{n}"));
        let sink = courier.relay().attach(Recorder::new(), client.clone());
        courier.subscribers().ensure_running(&s, sink).await.expect("claimed");
        let heard = soon(courier.relay().ask(ask(&s, "q").timeout(Duration::from_secs(3600)))).await;
        assert_eq!(heard, Ok(expected), "case {n}");
        assert_eq!(client.asked().len(), asked, "case {n}");
    }
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

#[tokio::test]
async fn an_asker_that_panics_is_a_client_that_failed() {
    let t = Fixture::new("panic").await;
    let courier = t.courier().await;
    let s = session("s");
    let sink = courier.relay().attach(Recorder::new(), |question: mcp_courier::relay::Question| async move {
        assert!(question.session.as_str().is_empty(), "as intended: the asker panics");
        Ok(Answer::Cancel)
    });
    courier.subscribers().ensure_running(&s, sink).await.expect("claimed");
    assert_eq!(soon(courier.relay().ask(ask(&s, "q"))).await, Ok(Outcome::Cancelled));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A user who thinks holds up nothing but the worker that asked.
#[tokio::test]
async fn a_question_does_not_block_its_sessions_queue_nor_another_question() {
    let t = Fixture::new("no_block").await;
    let courier = t.courier().await;
    let (s, sink, client) = (session("s"), Recorder::new(), Client::silent());
    let attached = courier.relay().attach(sink.clone(), client.clone());
    courier.subscribers().ensure_running(&s, attached).await.expect("claimed");
    let first = asking(&courier, ask(&s, "q1")).await;
    courier.push(push(&s, "{\"method\":\"notifications/progress\"}")).await.expect("queued");
    let second = asking(&courier, ask(&s, "q2")).await;
    sink.wait_for(3).await;
    let asked = client.wait_for(2).await;
    assert_eq!(asked.iter().map(|q| q.id.as_str()).collect::<Vec<_>>(), ["q1", "q2"]);
    client.say(Ok(ann()));
    for waiting in [first, second] {
        assert_eq!(accepted(&outcome(waiting).await), json!({"name": "Ann"}));
    }
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

#[tokio::test]
async fn two_questions_in_a_row_get_two_answers() {
    let t = Fixture::new("in_a_row").await;
    let courier = t.courier().await;
    let s = session("s");
    let sink = courier.relay().attach(Recorder::new(), |q: mcp_courier::relay::Question| async move {
        Ok(Answer::accept(json!({"name": q.request.message()})))
    });
    courier.subscribers().ensure_running(&s, sink).await.expect("claimed");
    for name in ["Ann", "Bob"] {
        let task = TaskRef::new("t");
        let heard = soon(courier.elicit(&s, &task, form(name), Duration::from_secs(30))).await;
        assert_eq!(accepted(&heard.expect("an outcome")), json!({"name": name}));
    }
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Sampling, roots and URLs go the same way. Without a task the client is asked and not notified.
#[tokio::test]
async fn sampling_roots_and_urls_are_asked_as_well() {
    let t = Fixture::new("kinds").await;
    let courier = t.courier().await;
    let (s, sink) = (session("s"), Recorder::new());
    let attached = courier.relay().attach(sink.clone(), |q: mcp_courier::relay::Question| async move {
        Ok(Answer::accept(json!({"asked": q.request.kind.method(), "params": q.request.params})))
    });
    courier.subscribers().ensure_running(&s, attached).await.expect("claimed");
    let mut params = Map::new();
    params.insert("maxTokens".into(), json!(5));
    for (request, expected) in [
        (Request::sampling(params), json!({"asked": "sampling/createMessage", "params": {"maxTokens": 5}})),
        (Request::roots(), json!({"asked": "roots/list", "params": {}})),
        // An acceptance of a URL says that the user went there, nothing else.
        (Request::url("Pay", "https://example.com/pay", "e1"), json!(null)),
    ] {
        let heard = soon(courier.relay().ask(Ask::new(&s, request))).await.expect("an outcome");
        assert_eq!(accepted(&heard), expected);
    }
    assert_eq!(sink.bodies(), [""; 0]);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}
