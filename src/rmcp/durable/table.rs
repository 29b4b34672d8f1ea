//! The table of tools: which of them become tasks, and when.

use std::collections::BTreeMap;
use std::sync::Arc;

use rmcp::model::JsonObject;
use serde::de::DeserializeOwned;

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

type Fits = dyn Fn(JsonObject) -> bool + Send + Sync;

/// One line of the table.
#[derive(Clone)]
pub(super) struct Tool {
    pub(super) mode: TaskMode,
    pub(super) arguments: Arguments,
}

/// How a call's arguments are known to be good before there is a task.
#[derive(Clone)]
pub(super) enum Arguments {
    Typed(Arc<Fits>),
    /// The handler begins in the request, and says itself where the task begins.
    ByTheTool,
}

impl Arguments {
    /// Those that rmcp's `Parameters<P>` takes.
    pub(super) fn of<P: DeserializeOwned + 'static>() -> Self {
        Self::Typed(Arc::new(|arguments| serde_json::from_value::<P>(arguments.into()).is_ok()))
    }
}

pub(super) type Table = BTreeMap<String, Tool>;
