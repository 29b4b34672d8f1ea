//! A question as a worker poses it.

use std::time::Duration;

use super::Request;
use crate::{RequestId, SessionId};

/// The task in whose name is asked, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskRef {
    /// The task's id.
    pub id: String,
    /// Whose task it is: only an answer of the same scope counts. `None` for an anonymous caller.
    pub scope: Option<String>,
    pub(crate) created_at: Option<String>,
    pub(crate) ttl_ms: Option<u64>,
}

impl TaskRef {
    /// A task of an anonymous caller.
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), scope: None, created_at: None, ttl_ms: None }
    }

    /// A task of this caller. An empty scope is none.
    #[must_use]
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.scope = Some(scope.into()).filter(|scope| !scope.is_empty());
        self
    }

    /// When the task was created, as RFC 3339, for the notification; without it the time of the question.
    #[must_use]
    pub fn created_at(mut self, at: impl Into<String>) -> Self {
        self.created_at = Some(at.into());
        self
    }

    /// The task's time to live in milliseconds, for the notification; without it `null`.
    #[must_use]
    pub fn ttl_ms(mut self, ttl: u64) -> Self {
        self.ttl_ms = Some(ttl);
        self
    }
}

/// A question to the client of a session.
#[derive(Clone, Debug)]
#[must_use = "a question does nothing until it is given to `Relay::ask`"]
pub struct Ask {
    pub(crate) session: SessionId,
    pub(crate) request: Request,
    pub(crate) id: Option<RequestId>,
    pub(crate) task: Option<TaskRef>,
    pub(crate) timeout: Duration,
    pub(crate) grace: Option<Duration>,
    pub(crate) keep: Duration,
}

impl Ask {
    /// With ten minutes to answer.
    pub fn new(session: &SessionId, request: Request) -> Self {
        Self {
            session: session.clone(),
            request,
            id: None,
            task: None,
            timeout: Duration::from_secs(600),
            grace: None,
            keep: Duration::from_secs(3600),
        }
    }

    /// The caller's id. Asking again with it, the same thing of the same session, asks nothing twice: it waits for the
    /// answer of the first. Without one the question gets an id of its own.
    pub fn id(mut self, id: RequestId) -> Self {
        self.id = Some(id);
        self
    }

    /// In the name of a task: the client is told of it before it is asked, and only an answer of the task's scope counts.
    pub fn task(mut self, task: TaskRef) -> Self {
        self.task = Some(task);
        self
    }

    /// How long an answer counts, from the moment that the question is stored.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long nobody may serve the session before the worker hears that it is gone; default
    /// [`Builder::node_grace`](crate::Builder::node_grace).
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// How long the outcome is kept for a worker that waits again; default one hour.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }
}
