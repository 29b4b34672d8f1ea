//! Tools of an rmcp server that run as durable tasks (SEP-2663).
//!
//! [`DurableTasks`] wraps a handler: it answers `tools/call` with a task where the table of tools and the client's request
//! say so, and `tasks/get`, `tasks/update`, `tasks/cancel` for tasks made at any replica. A worker runs the same handler, in
//! the server's process or in another one.

mod calls;
mod convert;
mod forward;
mod leg;
mod running;
mod scope;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::de::DeserializeOwned;

pub use self::leg::TaskLeg;
pub use self::running::ToolLegs;
pub use self::scope::VerifiedCaller;
use crate::tasks::{Scope, Tasks, Worker, WorkerBuilder, WorkerEnd};
use crate::{CancellationToken, Courier, Result};

/// Whether calls of a tool become tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskMode {
    /// Never: the call is answered by the request that made it.
    #[default]
    Forbidden,
    /// For clients that declare the tasks extension in their request; others get the answer as ever.
    Optional,
    /// Always: a request that does not declare the extension is refused with -32021 before anything is done.
    Required,
}

type ScopeOf = dyn Fn(&RequestContext<RoleServer>) -> std::result::Result<Scope, ErrorData> + Send + Sync;
type Check =
    dyn Fn(&rmcp::model::JsonObject) -> std::result::Result<(), ErrorData> + Send + Sync;

/// One line of the table of tools.
#[derive(Clone)]
struct Tool {
    mode: TaskMode,
    /// The handler begins in the request, and says itself where the task begins.
    begins: bool,
    check: Option<Arc<Check>>,
}

#[derive(Clone)]
struct Shared {
    tasks: Tasks,
    tools: HashMap<String, Tool>,
    scope_of: Arc<ScopeOf>,
    headers: Vec<String>,
}

/// A server's handler whose tools run as durable tasks.
///
/// Every method of rmcp's [`ServerHandler`] is passed on to the wrapped handler, except those that tasks are about. Clones
/// share handler and settings, so a factory of rmcp's Streamable HTTP service may clone; a server that makes a handler for
/// each session wraps each with [`with_handler`](Self::with_handler).
///
/// A call becomes a task only at protocol 2026-07-28 or later, and only when its own `_meta` declares
/// `io.modelcontextprotocol/tasks`. The extension is advertised when a tool may become a task.
///
/// A tool that runs as a task gets the request as the client sent it: arguments, capabilities, protocol version, and in its
/// [`RequestContext`] a [`TaskLeg`]. `context.ct` is cancelled when the client cancels the task, and when the worker must
/// stop; progress becomes the status message. There is no HTTP request any more: what a tool needs of it has to be kept with
/// [`keep_header`](Self::keep_header). When a tool returns an `InputRequiredResult` the task waits, without a worker, and the
/// tool is called again with the answers, wherever there is a worker then. It runs at least once, as every leg.
pub struct DurableTasks<H> {
    handler: Arc<H>,
    shared: Arc<Shared>,
}

impl<H> Clone for DurableTasks<H> {
    fn clone(&self) -> Self {
        Self { handler: self.handler.clone(), shared: self.shared.clone() }
    }
}

impl<H> std::fmt::Debug for DurableTasks<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tools: HashMap<_, _> = self.shared.tools.iter().map(|(name, tool)| (name, tool.mode)).collect();
        f.debug_struct("DurableTasks")
            .field("tasks", &self.shared.tasks)
            .field("tools", &tools)
            .finish_non_exhaustive()
    }
}

impl<H: ServerHandler> DurableTasks<H> {
    /// Wraps a handler. No tool becomes a task until [`tool`](Self::tool) says so.
    pub fn new(handler: H, courier: &Courier) -> Self {
        let shared = Shared {
            tasks: courier.tasks(),
            tools: HashMap::new(),
            scope_of: Arc::new(scope::default),
            headers: Vec::new(),
        };
        Self { handler: Arc::new(handler), shared: Arc::new(shared) }
    }

    /// Another handler of the same server, with the same settings.
    pub fn with_handler<G: ServerHandler>(&self, handler: G) -> DurableTasks<G> {
        DurableTasks { handler: Arc::new(handler), shared: self.shared.clone() }
    }

    /// The wrapped handler.
    pub fn handler(&self) -> &H {
        &self.handler
    }

    /// Where the tasks are kept: their group, time to live, encryption. All replicas and workers of a server need the same.
    #[must_use]
    pub fn tasks(mut self, tasks: Tasks) -> Self {
        self.change().tasks = tasks;
        self
    }

    /// Whether calls of a tool become tasks; those not named never do.
    #[must_use]
    pub fn tool(self, name: impl Into<String>, mode: TaskMode) -> Self {
        self.put(name, Tool { mode, begins: false, check: None })
    }

    /// The same for a tool whose arguments are a `P`: a call with others is refused before a task is made, with the error
    /// that rmcp's `Parameters<P>` gives.
    #[must_use]
    pub fn tool_of<P: DeserializeOwned + 'static>(self, name: impl Into<String>, mode: TaskMode) -> Self {
        let check: Arc<Check> = Arc::new(convert::check::<P>);
        self.put(name, Tool { mode, begins: false, check: Some(check) })
    }

    /// The same for a tool that says itself where its task begins, by [`TaskLeg::begin`]. Until then it runs in the request,
    /// and may refuse, or ask with an `InputRequiredResult`; what follows is a task. The worker calls the tool from its
    /// start, with the same request.
    #[must_use]
    pub fn tool_that_begins(self, name: impl Into<String>, mode: TaskMode) -> Self {
        self.put(name, Tool { mode, begins: true, check: None })
    }

    /// Who owns a task that a request makes, and which tasks a request can see. The default is what a layer in front of the
    /// server said with [`VerifiedCaller`], else [`Scope::anonymous`]. An error is the answer to the request.
    #[must_use]
    pub fn scope_by(
        mut self,
        scope_of: impl Fn(&RequestContext<RoleServer>) -> std::result::Result<Scope, ErrorData>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.change().scope_of = Arc::new(scope_of);
        self
    }

    /// Keeps a header of the HTTP request with the task, for [`TaskLeg::context`]. Needs [`Tasks`] with keys, or
    /// [`Tasks::headers_in_clear`].
    #[must_use]
    pub fn keep_header(mut self, name: impl AsRef<str>) -> Self {
        self.change().headers.push(name.as_ref().to_ascii_lowercase());
        self
    }

    /// What runs legs of these tasks, for a [`WorkerBuilder`] of one's own.
    pub fn legs(&self) -> ToolLegs<H> {
        ToolLegs::new(self.handler.clone())
    }

    /// Settings of a worker for these tasks, to be started with [`legs`](Self::legs).
    pub fn worker(&self) -> WorkerBuilder {
        self.shared.tasks.worker()
    }

    /// Starts a worker in this process, beside the server.
    ///
    /// # Errors
    /// As [`WorkerBuilder::start`].
    pub async fn start_worker(&self) -> Result<Worker> {
        self.worker().start(self.legs()).await
    }

    /// Runs a worker until `cancel`: the main part of a worker's process, which needs no server.
    ///
    /// # Errors
    /// As [`WorkerBuilder::start`].
    ///
    /// # Cancel safety
    /// As [`WorkerBuilder::run`].
    pub async fn run_worker(&self, cancel: CancellationToken, grace: Duration) -> Result<WorkerEnd> {
        self.worker().run(self.legs(), cancel, grace).await
    }

    fn put(mut self, name: impl Into<String>, tool: Tool) -> Self {
        self.change().tools.insert(name.into(), tool);
        self
    }

    fn change(&mut self) -> &mut Shared {
        Arc::make_mut(&mut self.shared)
    }

    /// Whether any tool may become a task.
    fn enabled(&self) -> bool {
        self.shared.tools.values().any(|tool| tool.mode != TaskMode::Forbidden)
    }
}
