//! Tools of an rmcp server that run as durable tasks (SEP-2663).
//!
//! [`DurableTasks`] wraps a handler: it answers `tools/call` with a task where the table of tools and the client's request
//! say so, and `tasks/get`, `tasks/update`, `tasks/cancel` for tasks made at any replica. A worker runs the same handler, in
//! the server's process or in another one. [`TaskHttp`] stands in front of rmcp's HTTP service, for what rmcp itself cannot
//! do: `notifications/tasks`.

mod calls;
mod convert;
mod forward;
mod http;
mod leg;
mod listen;
mod once;
mod running;
mod scope;
mod siblings;
mod table;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rmcp::model::ProtocolVersion;
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::de::DeserializeOwned;

pub use self::http::{TaskBody, TaskHttp};
pub use self::leg::{InTask, TaskLeg};
pub use self::running::ToolLegs;
pub use self::scope::VerifiedCaller;
use self::siblings::Sibling;
pub use self::table::TaskMode;
use self::table::{Arguments, Table, Tool};
use crate::tasks::{Scope, Tasks, Worker, WorkerBuilder, WorkerEnd};
use crate::{CancellationToken, Courier, Error, Result};

type ScopeOf = dyn Fn(&RequestContext<RoleServer>) -> std::result::Result<Scope, ErrorData> + Send + Sync;

#[derive(Clone)]
struct Shared {
    courier: Courier,
    tasks: Tasks,
    tools: Table,
    scope_of: Arc<ScopeOf>,
    headers: Vec<String>,
    /// The server's name, where it cannot be a group's.
    nameless: Option<String>,
    sibling: OnceLock<Arc<Sibling>>,
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
/// [`RequestContext`] a [`TaskLeg`]. `context.ct` is cancelled when the client cancels the task; progress becomes the status
/// message, other notifications of the tool go nowhere. There is no HTTP request any more: what a tool needs of it has to be
/// kept with [`keep_header`](Self::keep_header). When a tool returns an `InputRequiredResult` the task waits, without a
/// worker, and the tool is called again with the answers, wherever there is a worker then. It runs at least once, as every
/// leg.
///
/// All replicas and workers of a server need the same table, group and keys.
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
        let tools: BTreeMap<_, _> = self.shared.tools.iter().map(|(name, tool)| (name, tool.mode)).collect();
        f.debug_struct("DurableTasks")
            .field("tasks", &self.shared.tasks)
            .field("tools", &tools)
            .finish_non_exhaustive()
    }
}

/// Settings.
impl<H: ServerHandler> DurableTasks<H> {
    /// Wraps a handler. No tool becomes a task until [`tool`](Self::tool) says so.
    ///
    /// The tasks are those of the group that has the server's name, as its `get_info` says it.
    pub fn new(handler: H, courier: &Courier) -> Self {
        let name = handler.get_info().server_info.name;
        let group = courier.tasks().group(&name);
        let shared = Shared {
            courier: courier.clone(),
            nameless: group.is_err().then_some(name),
            tasks: group.unwrap_or_else(|_| courier.tasks()),
            tools: Table::new(),
            scope_of: Arc::new(scope::default),
            headers: Vec::new(),
            sibling: OnceLock::new(),
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

    /// Whether calls of a tool become tasks, and the type that it reads its arguments into; `JsonObject` for one that takes
    /// any. A call whose arguments are not of this type makes no task: the handler gets it, and refuses it as it would any.
    /// Tools that are not named never become tasks.
    #[must_use]
    pub fn tool<P: DeserializeOwned + 'static>(self, name: impl Into<String>, mode: TaskMode) -> Self {
        self.put(name, Tool { mode, arguments: Arguments::of::<P>() })
    }

    /// The same for a tool that says itself where its task begins, by [`InTask`] among its arguments or by
    /// [`TaskLeg::begin`]. Until then it runs in the request, and may refuse, or ask with an `InputRequiredResult`; what
    /// follows is a task. The worker calls the tool from its start, with the same request. A tool that ends before its
    /// task begins has answered the request.
    #[must_use]
    pub fn tool_that_begins(self, name: impl Into<String>, mode: TaskMode) -> Self {
        self.put(name, Tool { mode, arguments: Arguments::ByTheTool })
    }

    /// The group of the tasks, where the server's name is no good one: servers that share a Redis and a prefix must not share
    /// a group.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty name or one of more than 64 bytes.
    pub fn group(mut self, name: &str) -> Result<Self> {
        let tasks = self.shared.tasks.clone().group(name)?;
        let shared = self.change();
        (shared.tasks, shared.nameless) = (tasks, None);
        Ok(self)
    }

    /// Settings of the tasks: time to live, pause between polls, encryption.
    #[must_use]
    pub fn settings(mut self, change: impl FnOnce(Tasks) -> Tasks) -> Self {
        let tasks = change(self.shared.tasks.clone());
        self.change().tasks = tasks;
        self
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

    fn put(mut self, name: impl Into<String>, tool: Tool) -> Self {
        self.change().tools.insert(name.into(), tool);
        self
    }

    fn change(&mut self) -> &mut Shared {
        let shared = Arc::make_mut(&mut self.shared);
        // It may be another server now.
        shared.sibling = OnceLock::new();
        shared
    }
}

/// Running.
impl<H: ServerHandler> DurableTasks<H> {
    /// Whether the settings fit the server: to be called at the start of a process that serves and has no worker. Those
    /// below call it. A server that has not called it does with its first `server/discover` or `initialize`, which fails.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a tool is named that the handler does not have; when a tool may become a task but the server
    /// does not speak 2026-07-28, which has the extension; when the server's name is no group; when headers are kept where everybody could read them; when
    /// another server in this process has the same group of tasks and other tools.
    pub fn check(&self) -> Result<()> {
        if self.shared.sibling.get().is_some() || !self.enabled() {
            return Ok(());
        }
        let invalid = |why: String| Err(Error::invalid("durable tasks", why));
        let named = || self.shared.tools.iter().filter(|(_, tool)| tool.mode != TaskMode::Forbidden);
        let versions = self.handler.supported_protocol_versions();
        if !versions.iter().any(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str()) {
            let tools = named().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
            return invalid(format!(
                "{tools} cannot become tasks: the server does not support protocol 2026-07-28, which has the extension"
            ));
        }
        let (known, unknown): (Vec<_>, Vec<_>) =
            named().partition(|(name, _)| self.handler.get_tool(name).is_some());
        match unknown.first() {
            // A handler that does not tell by name knows none of them.
            Some((name, _)) if !known.is_empty() => {
                return invalid(format!("the handler has no tool {name}"));
            }
            _ => {}
        }
        if !self.shared.headers.is_empty() && !self.shared.tasks.may_keep_headers() {
            return invalid("headers are kept, which may be secrets: use `Tasks::encrypted`, or `Tasks::headers_in_clear`".into());
        }
        if let Some(name) = &self.shared.nameless {
            return invalid(format!(
                "the server's name `{name}` cannot be a group's: use `DurableTasks::group`"
            ));
        }
        let tools = self.shared.tools.keys().cloned().collect();
        let (node, group) =
            (self.shared.courier.core.node.to_string(), self.shared.tasks.group_name().to_owned());
        match Sibling::enter(node, group.clone(), tools) {
            Ok(sibling) => {
                let _ = self.shared.sibling.set(sibling);
                Ok(())
            }
            Err(others) => invalid(format!(
                "another server of this process has the group {group} too, with the tools {others}: give one of them \
                 another name, or use `DurableTasks::group`"
            )),
        }
    }

    /// Starts a worker in this process, beside the server.
    ///
    /// # Errors
    /// As [`check`](Self::check) and [`WorkerBuilder::start`].
    pub async fn start_worker(&self) -> Result<Worker> {
        self.check()?;
        self.worker().start(self.legs()).await
    }

    /// Runs a worker until `cancel`: the main part of a worker's process, which needs no server.
    ///
    /// # Errors
    /// As [`check`](Self::check) and [`WorkerBuilder::start`].
    ///
    /// # Cancel safety
    /// As [`WorkerBuilder::run`].
    pub async fn run_worker(&self, cancel: CancellationToken, grace: Duration) -> Result<WorkerEnd> {
        self.check()?;
        self.worker().run(self.legs(), cancel, grace).await
    }

    /// Settings of a worker for these tasks, to be started with [`legs`](Self::legs).
    pub fn worker(&self) -> WorkerBuilder {
        self.shared.tasks.worker()
    }

    /// What runs legs of these tasks, for a [`WorkerBuilder`] of one's own.
    pub fn legs(&self) -> ToolLegs<H> {
        ToolLegs::new(self.handler.clone())
    }

    /// The tasks, as the engine has them: for what a server wants to know of them by itself.
    pub fn tasks(&self) -> &Tasks {
        &self.shared.tasks
    }

    /// Whether any tool may become a task.
    fn enabled(&self) -> bool {
        self.shared.tools.values().any(|tool| tool.mode != TaskMode::Forbidden)
    }

    /// The check, for a client that comes to a server which did not make it.
    fn started(&self) -> std::result::Result<(), ErrorData> {
        self.check().map_err(|error| {
            tracing::error!(%error, "the server cannot be started like this");
            ErrorData::internal_error(error.to_string(), None)
        })
    }
}
