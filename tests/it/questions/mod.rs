//! Questions to clients: what a worker hears, what a client is asked, and what counts.

mod answers;
mod basics;
mod crashes;
mod ends;
mod limits;
mod many;
mod races;
mod scripts;

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mcp_courier::relay::{
    Answer, Ask, AskError, Asked, Asker, Capabilities, Outcome, Question, Request, TaskRef,
};
use mcp_courier::{Courier, RequestId, Result, SessionId};
use serde_json::json;
use tokio::sync::watch;

use crate::support::wait::wait_until;

/// A client that writes down what it is asked, and answers when and what the test says.
#[derive(Clone)]
pub struct Client {
    asked: Arc<Mutex<Vec<Question>>>,
    dropped: Arc<Mutex<usize>>,
    say: watch::Sender<Option<Result<Answer, AskError>>>,
    can: Capabilities,
}

impl Client {
    /// Says nothing until it is told what to say.
    pub fn silent() -> Self {
        Self {
            asked: Arc::default(),
            dropped: Arc::default(),
            say: watch::Sender::new(None),
            can: Capabilities::ALL,
        }
    }

    /// Says this to every question.
    pub fn saying(answer: Result<Answer, AskError>) -> Self {
        let client = Self::silent();
        client.say(answer);
        client
    }

    pub fn able_to(mut self, can: Capabilities) -> Self {
        self.can = can;
        self
    }

    pub fn say(&self, answer: Result<Answer, AskError>) {
        self.say.send_replace(Some(answer));
    }

    pub fn asked(&self) -> Vec<Question> {
        self.asked.lock().expect("not poisoned").clone()
    }

    /// Questions that were taken back while the client thought about them.
    pub fn dropped(&self) -> usize {
        *self.dropped.lock().expect("not poisoned")
    }

    /// Until so many questions came.
    pub async fn wait_for(&self, count: usize) -> Vec<Question> {
        wait_until(&format!("{count} questions"), Duration::from_secs(15), || async {
            let asked = self.asked();
            if asked.len() >= count { Ok(asked) } else { Err(format!("{} so far", asked.len())) }
        })
        .await
    }
}

struct Thinking<'a>(&'a Client, bool);

impl Drop for Thinking<'_> {
    fn drop(&mut self) {
        if !self.1 {
            *self.0.dropped.lock().expect("not poisoned") += 1;
        }
    }
}

impl Asker for Client {
    fn capabilities(&self) -> Capabilities {
        self.can
    }

    async fn ask(&self, question: Question) -> Result<Answer, AskError> {
        self.asked.lock().expect("not poisoned").push(question);
        let mut thinking = Thinking(self, false);
        let mut say = self.say.subscribe();
        let answer = say.wait_for(Option::is_some).await.expect("the client lives").clone();
        thinking.1 = true;
        answer.expect("some")
    }
}

pub fn rid(id: &str) -> RequestId {
    RequestId::new(id).expect("a valid request id")
}

/// A question for a name.
pub fn form(message: &str) -> Request {
    Request::form(
        message,
        json!({"type": "object", "properties": {"name": {"type": "string", "minLength": 2}}, "required": ["name"]}),
    )
}

/// What fits [`form`].
pub fn ann() -> Answer {
    Answer::accept(json!({"name": "Ann"}))
}

pub fn accepted(outcome: &Outcome) -> serde_json::Value {
    match outcome {
        Outcome::Accepted(content) => content.value(),
        other => panic!("not accepted: {other:?}"),
    }
}

/// A question with an id, in the name of task `t`, for half a minute.
pub fn ask(session: &SessionId, id: &str) -> Ask {
    Ask::new(session, form(id)).id(rid(id)).task(TaskRef::new("t")).timeout(Duration::from_secs(30))
}

/// Asks, and waits in the background.
pub async fn asking(courier: &Courier, ask: Ask) -> tokio::task::JoinHandle<Result<Outcome>> {
    let asked: Asked = courier.relay().start(ask).await.expect("asked");
    tokio::spawn(async move { asked.wait().await })
}

/// What a wait in the background came to.
pub async fn outcome(waiting: tokio::task::JoinHandle<Result<Outcome>>) -> Outcome {
    soon(waiting).await.expect("no panic").expect("an outcome")
}

/// Within a time that no promise of this crate exceeds.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(15), future).await.expect("it comes soon")
}
