//! Thousands of questions wait at the price of two connections.

use std::time::{Duration, Instant};

use mcp_courier::relay::{Answer, Question};
use mcp_courier::{CancellationToken, Courier};
use serde_json::json;

use super::{accepted, ask, asking, outcome};
use crate::support::fixture::{Recorder, session};
use crate::support::private::{Options, private_or_skip};
use crate::support::wait::wait_until;

/// 1,000 questions of one worker process to 100 sessions, all open at once, all answered; two connections on each side at
/// every moment, on a server that has few to give.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_questions_of_one_process_wait_on_two_connections() {
    const QUESTIONS: usize = 1000;
    const SESSIONS: usize = 100;
    let few = Options { extra: &["--maxclients", "64"], ..Options::default() };
    let Some(server) = private_or_skip("a_thousand", few).await else { return };
    let raw = server.raw().await;
    let open = || {
        let mut raw = raw.clone();
        async move {
            let list: String =
                redis::cmd("CLIENT").arg("LIST").query_async(&mut raw).await.expect("CLIENT LIST");
            list.lines().count() - 1
        }
    };
    let (worker, owner) = (
        Courier::connect(server.url()).await.expect("connected"),
        Courier::connect(server.url()).await.expect("connected"),
    );
    let go = CancellationToken::new();
    let gate = go.clone();
    let client = move |question: Question| {
        let gate = gate.clone();
        async move {
            gate.cancelled().await;
            Ok(Answer::accept(json!({"name": question.request.message()})))
        }
    };
    for n in 0..SESSIONS {
        let sink = owner.relay().attach(Recorder::new(), client.clone());
        owner.subscribers().ensure_running(&session(&format!("s{n}")), sink).await.expect("claimed");
    }
    let mut waiting = Vec::new();
    for n in 0..QUESTIONS {
        let question = ask(&session(&format!("s{}", n % SESSIONS)), &format!("question {n}"));
        waiting.push(asking(&worker, question.timeout(Duration::from_secs(600))).await);
    }
    wait_until("all wait", Duration::from_secs(20), || async {
        match worker.relay().waiting() {
            QUESTIONS => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
    assert_eq!(open().await, 4, "two for the worker, two for the owner");
    let started = Instant::now();
    go.cancel();
    for (n, one) in waiting.into_iter().enumerate() {
        assert_eq!(accepted(&outcome(one).await), json!({"name": format!("question {n}")}));
    }
    println!("{QUESTIONS} answers heard in {:?}", started.elapsed());
    assert_eq!((open().await, worker.relay().waiting()), (4, 0));
    assert_eq!((worker.metrics().asked, owner.metrics().answered), (QUESTIONS as u64, QUESTIONS as u64));
    owner.shutdown(Duration::from_secs(10)).await;
}
