//! The seam between the relay and an MCP implementation: who asks the client.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::{Answer, Capabilities, Request, TaskRef};
use crate::{RequestId, SessionId};

/// A question on its way to the client.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Question {
    /// The session whose client is asked.
    pub session: SessionId,
    /// Names the question within its session. The same when it is asked again.
    pub id: RequestId,
    /// The task that asks, if one does.
    pub task: Option<TaskRef>,
    /// What is asked.
    pub request: Request,
    /// How long an answer will count, from now.
    pub left: Duration,
    /// What was wrong with the client's last answer: set when the question is asked again for that reason.
    pub complaint: Option<String>,
}

/// Why a client gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// It cannot be asked such a thing: the worker gets `Cancelled`.
    #[error("the client cannot be asked this")]
    Unsupported,
    /// The client is gone for good: the worker gets `SessionGone`. Do not say this of a client that may come back to
    /// another replica: let the future stay pending, or end the subscription.
    #[error("the client is gone")]
    Gone,
    /// The client failed: the worker gets `Cancelled`.
    #[error("the client failed: {0}")]
    Failed(String),
}

/// Asks one client. The future is dropped when the answer is not wanted any more: the question was withdrawn or
/// answered elsewhere, its time is over, or another process took the session.
pub trait Asker: Send + Sync + 'static {
    /// What the client can be asked. What it cannot is answered for it, with `Cancelled`, and at once.
    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    /// Asks the client and waits for its answer. May be called for several questions at a time.
    fn ask(&self, question: Question) -> impl Future<Output = Result<Answer, AskError>> + Send;
}

impl<A: Asker> Asker for Arc<A> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn ask(&self, question: Question) -> impl Future<Output = Result<Answer, AskError>> + Send {
        (**self).ask(question)
    }
}

impl<F, Fut> Asker for F
where
    F: Fn(Question) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Answer, AskError>> + Send,
{
    fn ask(&self, question: Question) -> impl Future<Output = Result<Answer, AskError>> + Send {
        self(question)
    }
}
