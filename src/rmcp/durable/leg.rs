//! What a tool learns of the task that it runs in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};

use crate::tasks::{ContextSnapshot, Scope, TaskContext};

/// The task that a tool runs in, from its [`RequestContext`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TaskLeg {
    /// To ask in the middle, to tell how it goes, to hear of cancelling.
    pub task: TaskContext,
    /// Who owns the task.
    pub scope: Scope,
    /// What was kept of the request that made the task.
    pub context: Arc<ContextSnapshot>,
    /// 0 for the first leg, one more after each time the tool asked.
    pub number: u64,
    /// 1 for the first attempt at this leg.
    pub attempt: u32,
}

impl TaskLeg {
    /// The task that the tool runs in; `None` in a request that is answered as ever.
    pub fn of(context: &RequestContext<RoleServer>) -> Option<&Self> {
        context.extensions.get()
    }

    /// What follows is the task, for a tool named with
    /// [`DurableTasks::tool_that_begins`](super::DurableTasks::tool_that_begins). To be used with `?`: where a task has to be
    /// made first this is an error, which never reaches the client. In the task, and where there is none, it does nothing.
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
}

/// Set where a tool came to the beginning of its task.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate(Arc<AtomicBool>);

impl Gate {
    pub(super) fn reached(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
