//! What a tool learns of the task that it runs in.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rmcp::handler::server::common::FromContextPart;
use rmcp::handler::server::tool::ToolCallContext;
use rmcp::model::{ClientCapabilities, InputRequest};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde_json::Value;

use super::convert;
use crate::Error;
use crate::tasks::{ContextSnapshot, Scope, TaskContext, TaskExit};

/// The task that a tool runs in, from its [`RequestContext`]. It has what rmcp's `TaskContext` has.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TaskLeg {
    /// Who owns the task.
    pub scope: Scope,
    /// What was kept of the request that made the task.
    pub context: Arc<ContextSnapshot>,
    /// 0 for the first leg, one more after each time the tool asked.
    pub number: u64,
    /// 1 for the first attempt at this leg.
    pub attempt: u32,
    pub(super) task: TaskContext,
    pub(super) client: Arc<ClientCapabilities>,
    /// Why waiting ended without an answer, if it did.
    pub(super) exit: Arc<OnceLock<TaskExit>>,
}

impl TaskLeg {
    /// The task that the tool runs in; `None` in a request that is answered as ever.
    pub fn of(context: &RequestContext<RoleServer>) -> Option<&Self> {
        context.extensions.get()
    }

    /// The task's id.
    pub fn task_id(&self) -> &str {
        self.task.task_id()
    }

    /// Sets the task's status message, as [`TaskContext::set_status_message`].
    pub fn set_status_message(&self, message: impl Into<String>) {
        self.task.set_status_message(message);
    }

    /// Whether the client asked to cancel the task.
    pub fn is_cancel_requested(&self) -> bool {
        self.task.is_cancel_requested()
    }

    /// Until the client asks to cancel the task, as `context.ct` of the tool. A tool that returns an error then leaves the
    /// task cancelled; one that finishes all the same completes it.
    pub async fn cancelled(&self) {
        self.task.cancelled().await;
    }

    /// Until the worker is told to stop, as [`TaskContext::shutting_down`].
    pub async fn shutting_down(&self) {
        self.task.shutting_down().await;
    }

    /// What follows is the task, for a tool named with
    /// [`DurableTasks::tool_that_begins`](super::DurableTasks::tool_that_begins). To be used with `?`: where a task has to be
    /// made first this is an error, which never reaches the client. In the task, and where there is none, it does nothing.
    /// [`InTask`] does the same as an argument.
    ///
    /// # Errors
    /// To be returned as it is.
    pub fn begin(context: &RequestContext<RoleServer>) -> Result<(), ErrorData> {
        match context.extensions.get::<Gate>() {
            Some(gate) if Self::of(context).is_none() => {
                gate.0.store(true, Ordering::Release);
                Err(ErrorData::internal_error("the tool goes on in a task", None))
            }
            _ => Ok(()),
        }
    }

    /// Puts a request to the client and waits for its answer in place, as
    /// [`TaskContext::request_input`], for a tool that was written for rmcp's `TaskContext`. Returning an
    /// `InputRequiredResult` keeps no worker waiting.
    ///
    /// # Errors
    /// [`TaskExit`] says why there will be no answer; [`TaskExit::Error`] when the client did not declare that it can answer
    /// requests of this kind. To be passed on with `?`: when the tool returns an error after this, the task goes on
    /// elsewhere, or is cancelled, as the exit says.
    ///
    /// # Cancel safety
    /// A dropped call leaves the request open; the answer is there for the next call.
    pub async fn request_input(&self, key: &str, request: InputRequest) -> Result<Value, TaskExit> {
        if let Some((name, false)) = convert::declared(&request, &self.client) {
            return Err(Error::invalid("input request", format!("the client did not declare {name}")).into());
        }
        let answer = self.task.request_input(key, &request).await.inspect_err(|exit| {
            let _ = self.exit.set(exit.clone());
        })?;
        serde_json::from_str(answer.get()).map_err(|e| Error::invalid("answer", e.to_string()).into())
    }
}

/// For tools that pass an exit on.
impl From<TaskExit> for ErrorData {
    fn from(exit: TaskExit) -> Self {
        ErrorData::internal_error(exit.to_string(), None)
    }
}

/// As the last argument of a `#[tool]` function: the task that it runs in, if any.
///
/// For a tool named with [`DurableTasks::tool_that_begins`](super::DurableTasks::tool_that_begins) the task begins here:
/// the arguments before it were read, and refused if they are not good, in the request; the function's body runs in the
/// task.
#[derive(Clone, Debug)]
#[allow(clippy::exhaustive_structs, reason = "to be taken apart in an argument")]
pub struct InTask(pub Option<TaskLeg>);

impl<S> FromContextPart<ToolCallContext<'_, S>> for InTask {
    fn from_context_part(context: &mut ToolCallContext<'_, S>) -> Result<Self, ErrorData> {
        TaskLeg::begin(&context.request_context)?;
        Ok(Self(TaskLeg::of(&context.request_context).cloned()))
    }
}

/// Set where a tool came to the beginning of its task.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate(Arc<AtomicBool>);

impl Gate {
    pub(super) fn reached(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
