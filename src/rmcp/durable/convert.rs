//! Between the engine's types and rmcp's.

use rmcp::ErrorData;
use rmcp::model::{
    ClientCapabilities, CreateTaskResult, GetTaskResult, InputRequest, InputRequests, ServerCapabilities,
    TASKS_EXTENSION_ID,
};

use crate::Error;
use crate::tasks::DetailedTask;

/// The server has the extension.
pub(super) fn advertise(capabilities: &mut ServerCapabilities) {
    capabilities.extensions.get_or_insert_default().entry(TASKS_EXTENSION_ID.to_owned()).or_default();
}

/// The server has no such thing, whatever the wrapped handler says.
pub(super) fn conceal(capabilities: &mut ServerCapabilities) {
    if let Some(extensions) = &mut capabilities.extensions {
        extensions.remove(TASKS_EXTENSION_ID);
        if extensions.is_empty() {
            capabilities.extensions = None;
        }
    }
}

/// What the client gets to hear of an error. Details of the store stay here.
pub(super) fn error(error: Error) -> ErrorData {
    match error {
        Error::TaskNotFound => ErrorData::invalid_params("task not found", None),
        Error::TooLarge { .. } => ErrorData::invalid_params(error.to_string(), None),
        Error::Invalid { what: what @ "task update", why } => {
            ErrorData::invalid_params(format!("{what}: {why}"), None)
        }
        error => {
            tracing::warn!(%error, "a request about tasks failed");
            let message = match error {
                Error::TasksFull { .. } => "too many tasks are waiting; try again later",
                _ => "the task store cannot do this now; try again later",
            };
            ErrorData::internal_error(message, None)
        }
    }
}

pub(super) fn tasks_missing() -> ErrorData {
    ErrorData::missing_required_client_capability(ClientCapabilities::builder().enable_tasks().build())
}

pub(super) fn created(task: &DetailedTask) -> Result<CreateTaskResult, ErrorData> {
    detailed(task).map(|detailed| CreateTaskResult::new(detailed.task))
}

pub(super) fn got(task: &DetailedTask) -> Result<GetTaskResult, ErrorData> {
    detailed(task).map(GetTaskResult::new)
}

/// By way of text: both sides know the wire form.
pub(super) fn detailed(task: &DetailedTask) -> Result<rmcp::model::DetailedTask, ErrorData> {
    let wire = serde_json::to_string(task).and_then(|text| serde_json::from_str(&text));
    wire.map_err(|error| {
        tracing::error!(task = task.task_id, %error, "a stored task is none of rmcp's");
        ErrorData::internal_error("the stored task cannot be read", None)
    })
}

/// What a client would need to be able to do, to answer these, and did not declare.
pub(super) fn undeclared(
    requests: &InputRequests,
    client: &ClientCapabilities,
) -> Option<ClientCapabilities> {
    let mut needs = serde_json::Map::new();
    for request in requests.values() {
        let Some((name, declared)) = declared(request, client) else { continue };
        if !declared {
            needs.insert(name.to_owned(), serde_json::json!({}));
        }
    }
    if needs.is_empty() { None } else { Some(serde_json::from_value(needs.into()).unwrap_or_default()) }
}

/// The capability that answering a request takes, and whether the client has it; `None` for a kind that is not known here.
#[allow(deprecated, reason = "sampling and roots are deprecated, and still asked for")]
pub(super) fn declared(request: &InputRequest, client: &ClientCapabilities) -> Option<(&'static str, bool)> {
    Some(match request {
        InputRequest::Elicitation(_) => ("elicitation", client.elicitation.is_some()),
        InputRequest::CreateMessage(_) => ("sampling", client.sampling.is_some()),
        InputRequest::ListRoots(_) => ("roots", client.roots.is_some()),
        _ => return None,
    })
}
