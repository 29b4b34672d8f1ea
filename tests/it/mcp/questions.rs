//! Questions of a worker to the user of an rmcp client, over HTTP.

use std::time::{Duration, Instant};

use mcp_courier::relay::{Ask, Outcome, Request, TaskRef};
use mcp_courier::{Courier, RequestId, SessionId};
use rmcp::model::ElicitationAction;
use serde_json::json;

use super::support::{Balancer, Plain, Replica};
use super::user::User;
use crate::support::fixture::{Fixture, Process};
use crate::support::wait::wait_until;

fn form(message: &str) -> Request {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
    Request::form(message, schema)
}

async fn session(replica: &Replica) -> SessionId {
    wait_until("a session", Duration::from_secs(5), || async {
        replica.sessions.courier().subscribers().sessions().pop().ok_or_else(|| "none".to_owned())
    })
    .await
}

async fn ask(worker: &Courier, session: &SessionId, message: &str) -> Outcome {
    worker.relay().ask(Ask::new(session, form(message))).await.expect("an outcome")
}

/// The first scenario: before the question, the client gets a notification with the task, its status, and the
/// question's id, text and schema.
#[tokio::test]
async fn the_client_is_told_that_input_is_required_and_asked() {
    let t = Fixture::new("mcp_input").await;
    let (worker, server) = (t.courier().await, Replica::start(&t.courier().await).await);
    let user = User::saying(ElicitationAction::Accept, Some(json!({"name": "Ann"})));
    let client = user.connect(&server.url).await;
    let session = session(&server).await;
    let question = Ask::new(&session, form("Who?"))
        .id(RequestId::new("r-1").expect("valid"))
        .task(TaskRef::new("t-1").scope("s-1"));
    let outcome = worker.relay().ask(question).await.expect("an outcome");
    let Outcome::Accepted(content) = outcome else { panic!("{outcome:?}") };
    assert_eq!(content.value(), json!({"name": "Ann"}));
    let heard = user.heard.lock().expect("not poisoned").clone();
    assert_eq!(heard.len(), 1, "{heard:?}");
    let text = heard[0].to_string();
    assert_eq!(heard[0]["method"], "notifications/tasks/status");
    assert_eq!(heard[0]["params"]["taskId"], "t-1");
    assert_eq!(heard[0]["params"]["status"], "input_required");
    for part in ["r-1", "Who?", "requestedSchema", "required"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    client.cancel().await.expect("it ends");
    server.wait_count(0).await;
    server.shutdown().await;
    t.finish().await;
}

/// Accept with structured content, decline, cancel; two in a row.
#[tokio::test]
async fn what_the_user_says_is_what_the_worker_hears() {
    let t = Fixture::new("mcp_says").await;
    let (worker, server) = (t.courier().await, Replica::start(&t.courier().await).await);
    let user = User::saying(
        ElicitationAction::Accept,
        Some(json!({"name": "Ann", "more": {"list": [1, 2.5, null]}})),
    );
    let client = user.connect(&server.url).await;
    let session = session(&server).await;
    for _ in 0..2 {
        let Outcome::Accepted(content) = ask(&worker, &session, "Who?").await else { panic!("not accepted") };
        assert_eq!(content.value(), json!({"name": "Ann", "more": {"list": [1, 2.5, null]}}));
    }
    user.say.send_replace(Some((ElicitationAction::Decline, None)));
    assert_eq!(ask(&worker, &session, "Sure?").await, Outcome::Declined);
    user.say.send_replace(Some((ElicitationAction::Cancel, None)));
    assert_eq!(ask(&worker, &session, "Sure?").await, Outcome::Cancelled);
    assert_eq!(user.asked.lock().expect("not poisoned").len(), 4);
    client.cancel().await.expect("it ends");
    server.wait_count(0).await;
    server.shutdown().await;
    t.finish().await;
}

/// A client that cannot be asked gives `Cancelled`, one that ends its session `SessionGone`, both at once.
#[tokio::test]
async fn a_client_that_cannot_be_asked_or_leaves_while_asked_ends_the_question_at_once() {
    let t = Fixture::new("mcp_unable").await;
    let (worker, server) = (t.courier().await, Replica::start(&t.courier().await).await);
    let unable = User { able: false, ..User::silent() };
    let client = unable.connect(&server.url).await;
    let began = Instant::now();
    assert_eq!(ask(&worker, &session(&server).await, "Who?").await, Outcome::Cancelled);
    client.cancel().await.expect("it ends");
    server.wait_count(0).await;

    let user = User::silent();
    let client = user.connect(&server.url).await;
    let session = session(&server).await;
    let asking = tokio::spawn({
        let (worker, session) = (worker.clone(), session.clone());
        async move { ask(&worker, &session, "Who?").await }
    });
    user.wait_asked(1).await;
    client.cancel().await.expect("it ends");
    assert_eq!(asking.await.expect("no panic"), Outcome::SessionGone);
    assert!(began.elapsed() < Duration::from_secs(20), "not after the timeout of minutes");
    server.wait_count(0).await;
    server.shutdown().await;
    t.finish().await;
}

/// The server dies while the user thinks: the client comes back on another replica and is asked there once more; the
/// worker hears one answer.
#[tokio::test]
async fn when_the_server_dies_while_asked_the_client_is_asked_once_more_on_another_replica() {
    let t = Fixture::new("mcp_asked_again").await;
    let worker = t.courier().await;
    let process = Process::start(t.builder(), t.server.url()).await;
    let courier = process.courier.clone();
    let doomed =
        process.runtime.spawn(async move { Replica::start(&courier).await }).await.expect("it starts");
    let survivor = Replica::start(&t.courier().await).await;
    let balancer = Balancer::start(&[&doomed]).await;
    let user = User::silent();
    let client = user.connect(&balancer.url).await;
    let session = session(&doomed).await;
    let asking = tokio::spawn({
        let (worker, session) = (worker.clone(), session.clone());
        async move { ask(&worker, &session, "Who?").await }
    });
    user.wait_asked(1).await;
    balancer.set_targets(&[&survivor]);
    drop(doomed);
    process.crash().await;
    user.wait_asked(2).await;
    user.say.send_replace(Some((ElicitationAction::Accept, Some(json!({"name": "Ann"})))));
    let outcome = asking.await.expect("no panic");
    assert!(matches!(outcome, Outcome::Accepted(_)), "{outcome:?}");
    client.cancel().await.expect("it ends");
    survivor.wait_count(0).await;
    survivor.shutdown().await;
    t.finish().await;
}

/// The worker dies while the user thinks: a new one waits for the same request id.
#[tokio::test]
async fn when_the_worker_dies_while_waiting_another_one_hears_the_answer() {
    let t = Fixture::new("mcp_worker_dies").await;
    let server = Replica::start(&t.courier().await).await;
    let user = User::silent();
    let client = user.connect(&server.url).await;
    let session = session(&server).await;
    let process = Process::start(t.builder(), t.server.url()).await;
    let (courier, id) = (process.courier.clone(), RequestId::new("r-7").expect("valid"));
    process.runtime.spawn({
        let (session, id) = (session.clone(), id.clone());
        async move { courier.relay().ask(Ask::new(&session, form("Who?")).id(id)).await }
    });
    user.wait_asked(1).await;
    process.crash().await;
    let worker = t.courier().await;
    user.say.send_replace(Some((ElicitationAction::Accept, Some(json!({"name": "Ann"})))));
    let outcome = worker.relay().await_answer(&session, &id).await.expect("an outcome");
    assert!(matches!(outcome, Outcome::Accepted(_)), "{outcome:?}");
    assert_eq!(user.asked.lock().expect("not poisoned").len(), 1);
    client.cancel().await.expect("it ends");
    server.wait_count(0).await;
    server.shutdown().await;
    t.finish().await;
}

/// An answer that comes in at another replica than the one that asked is handed to that one.
#[tokio::test]
async fn an_answer_that_comes_in_at_another_replica_counts() {
    let t = Fixture::new("mcp_elsewhere").await;
    let worker = t.courier().await;
    let (a, b) = (Replica::start(&t.courier().await).await, Replica::start(&t.courier().await).await);
    let client = Plain::initialize(&a.url).await;
    let mut events = client.get(&a.url, None).await;
    a.wait_count(1).await;
    for n in 0..3 {
        let asking = tokio::spawn({
            let (worker, session) = (worker.clone(), client.id());
            async move { ask(&worker, &session, "Who?").await }
        });
        let question = events.next().await.expect("a question").message;
        assert_eq!(question["method"], "elicitation/create");
        let name = format!("Ann {n}");
        let result = json!({"action": "accept", "content": {"name": name}});
        let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": result});
        assert_eq!(client.post(&b.url, &answer).await.0, 202);
        let Outcome::Accepted(content) = asking.await.expect("no panic") else { panic!("not accepted") };
        assert_eq!(content.value()["name"], name);
    }
    client.delete(&b.url).await;
    a.wait_count(0).await;
    b.wait_count(0).await;
    a.shutdown().await;
    b.shutdown().await;
    t.finish().await;
}
