//! What a worker runs: a leg of a task, and how it ends.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use super::context::raw;
use super::leg_context::{TaskContext, TaskExit};
use super::wire::RpcError;
use super::{ContextSnapshot, Scope, TaskId};
use crate::Result;

/// One run of a task's work: from its creation, or from the client's answers, to a result or to the next questions.
///
/// At least once: a leg whose worker died, or lost its lease, is run again with the same input.
#[derive(Debug)]
#[non_exhaustive]
pub struct Leg {
    /// The task.
    pub id: TaskId,
    /// Who owns it.
    pub scope: Scope,
    /// What to run, as it was given to [`NewTask::new`](super::NewTask::new).
    pub call: Bytes,
    /// Facts of the request that made the task.
    pub context: ContextSnapshot,
    /// 0 for the first leg, one more after each time it asked.
    pub number: u64,
    /// 1 for the first attempt at this leg.
    pub attempt: u32,
    /// What the leg before left for this one.
    pub state: Option<Bytes>,
    /// The client's answers to what the leg before asked, by the names it gave.
    pub answers: BTreeMap<String, Box<RawValue>>,
    /// To ask, to tell, and to hear of cancelling while the leg runs.
    pub task: TaskContext,
}

/// How a leg ends.
#[derive(Debug)]
#[non_exhaustive]
pub enum LegOutcome {
    /// The task is `completed` with this result. A tool's own error (`isError`) is a result too.
    Completed(Box<RawValue>),
    /// The task is `failed` with this JSON-RPC error.
    Failed(Box<RawValue>),
    /// The task is `input_required`; the next leg runs when all requests are answered. No worker waits for that.
    InputRequired(InputRequired),
    /// The task is `cancelled`, as the client wanted.
    Cancelled,
    /// Try this leg again after a pause; the last attempt's failure is the task's.
    Retry {
        /// Why, for people.
        why: String,
        /// The pause; the worker's backoff when there is none.
        after: Option<Duration>,
    },
    /// Let another worker run this leg, now. Costs no attempt.
    GiveBack,
}

/// What a leg asks of the client before its task can go on.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct InputRequired {
    /// Requests by name. The client sees each under a key of its own that is new in this task.
    pub requests: BTreeMap<String, Box<RawValue>>,
    /// For the next leg. It never leaves the server.
    pub state: Option<Bytes>,
    /// Shown while the task waits.
    pub message: Option<String>,
}

impl InputRequired {
    /// Nothing yet. Without any request the next leg runs after the worker's backoff.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a request, as in `{"method":"elicitation/create","params":{…}}`.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when it cannot be written as JSON.
    pub fn request(mut self, name: impl Into<String>, request: &impl Serialize) -> Result<Self> {
        self.requests.insert(name.into(), raw("input request", request)?);
        Ok(self)
    }

    /// What the next leg has to know.
    #[must_use]
    pub fn state(mut self, state: impl Into<Bytes>) -> Self {
        self.state = Some(state.into());
        self
    }

    /// The status message while the task waits.
    #[must_use]
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }
}

impl LegOutcome {
    /// A result. One that cannot be written as JSON makes the task fail.
    pub fn completed(result: &impl Serialize) -> Self {
        raw("task result", result).map_or_else(|e| Self::error(-32603, &e.to_string()), Self::Completed)
    }

    /// A JSON-RPC error.
    pub fn error(code: i64, message: &str) -> Self {
        Self::Failed(rpc_error(code, message))
    }

    /// A failure that may pass.
    pub fn retry(why: impl std::fmt::Display) -> Self {
        Self::Retry { why: why.to_string(), after: None }
    }
}

/// The outcome that goes with why an `await` on the [`TaskContext`] ended.
impl From<TaskExit> for LegOutcome {
    fn from(exit: TaskExit) -> Self {
        match exit {
            TaskExit::Cancelled => Self::Cancelled,
            // Nobody hears it any more in these two cases.
            TaskExit::ShuttingDown | TaskExit::Expired | TaskExit::Superseded => Self::GiveBack,
            TaskExit::Error(e) => Self::retry(e),
        }
    }
}

pub(super) fn rpc_error(code: i64, message: &str) -> Box<RawValue> {
    let error = RpcError { code, message: message.into() };
    serde_json::value::to_raw_value(&error).expect("a number and a text are JSON")
}

/// Runs legs. Every `Fn(Leg) -> Future<Output = LegOutcome>` is a handler.
///
/// It runs on threads of the worker's own: one that blocks holds up other legs at most, and never the renewal of leases.
/// A panic is a failed attempt. The future is dropped when its leg is lost: the task expired, or somebody else has it.
pub trait TaskHandler: Send + Sync + 'static {
    /// Runs one leg.
    fn run(&self, leg: Leg) -> impl Future<Output = LegOutcome> + Send;
}

impl<F, Fut> TaskHandler for F
where
    F: Fn(Leg) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = LegOutcome> + Send,
{
    fn run(&self, leg: Leg) -> impl Future<Output = LegOutcome> + Send {
        self(leg)
    }
}

impl<H: TaskHandler> TaskHandler for Arc<H> {
    fn run(&self, leg: Leg) -> impl Future<Output = LegOutcome> + Send {
        (**self).run(leg)
    }
}

type BoxedRun<'a> = Pin<Box<dyn Future<Output = LegOutcome> + Send + 'a>>;

/// The same trait, usable behind a pointer.
pub(super) trait AnyHandler: Send + Sync {
    fn run_boxed(&self, leg: Leg) -> BoxedRun<'_>;
}

impl<H: TaskHandler> AnyHandler for H {
    fn run_boxed(&self, leg: Leg) -> BoxedRun<'_> {
        Box::pin(self.run(leg))
    }
}

/// Runs a leg; a panic is a failed attempt, also one before the first await.
pub(super) async fn without_panic(handler: &dyn AnyHandler, leg: Leg) -> LegOutcome {
    let panicked = || LegOutcome::retry("the handler panicked");
    let started = std::panic::catch_unwind(AssertUnwindSafe(|| handler.run_boxed(leg)));
    let Ok(mut running) = started else { return panicked() };
    std::future::poll_fn(move |cx| {
        std::panic::catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(cx)))
            .unwrap_or_else(|_| std::task::Poll::Ready(panicked()))
    })
    .await
}
