//! What a notification says of a task, in both forms that MCP has had.

use serde_json::{Map, Value};

/// The member of `_meta` that names the task a message belongs to (2025-11-25).
pub const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";

/// State of a task, with what belongs to it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TaskState {
    /// It runs, or waits to run.
    Working,
    /// It waits for answers. The requests by key, as `tasks/get` shows them; empty where they are not told.
    InputRequired(Map<String, Value>),
    /// It ended, with the result of the request that made it; a tool's own error is one of these.
    Completed(Map<String, Value>),
    /// It ended by a JSON-RPC error: `{"code":…,"message":…}`.
    Failed(Map<String, Value>),
    /// It was cancelled.
    Cancelled,
}

impl TaskState {
    /// As both forms spell it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired(_) => "input_required",
            Self::Completed(_) => "completed",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A task as [`Notification::task_status`](crate::Notification::task_status) and
/// [`Notification::tasks`](crate::Notification::tasks) tell of it.
///
/// ```
/// use std::time::Duration;
/// use mcp_courier::{Notification, TaskNote, TaskState};
///
/// let task = TaskNote::new("t-1", TaskState::Working, "2026-12-01T10:00:00Z", "2026-12-01T10:00:05Z")
///     .message("7 of 10 files")
///     .ttl(Duration::from_secs(3600));
/// let sent = serde_json::to_value(Notification::task_status(&task)).expect("JSON");
/// assert_eq!(sent["params"]["ttl"], 3_600_000);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct TaskNote {
    pub(super) task_id: String,
    state: TaskState,
    message: Option<String>,
    created_at: String,
    last_updated_at: String,
    ttl_ms: Option<u64>,
    poll_interval_ms: Option<u64>,
}

impl TaskNote {
    /// A task without a limit of life. The times are ISO 8601, as in `2026-12-01T10:00:00Z`.
    pub fn new(
        task_id: impl Into<String>,
        state: TaskState,
        created_at: impl Into<String>,
        last_updated_at: impl Into<String>,
    ) -> Self {
        Self {
            task_id: task_id.into(),
            state,
            message: None,
            created_at: created_at.into(),
            last_updated_at: last_updated_at.into(),
            ttl_ms: None,
            poll_interval_ms: None,
        }
    }

    /// What people read about the state.
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// How long the task is kept.
    pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
        self.ttl_ms = Some(millis(ttl));
        self
    }

    /// How often a client should ask.
    pub fn poll_interval(mut self, interval: std::time::Duration) -> Self {
        self.poll_interval_ms = Some(millis(interval));
        self
    }

    /// What both forms have. The life must be there, `null` for none.
    pub(super) fn members(&self, ttl: &str, poll_interval: &str) -> Map<String, Value> {
        let mut members = Map::new();
        members.insert("taskId".into(), self.task_id.as_str().into());
        members.insert("status".into(), self.state.as_str().into());
        if let Some(message) = &self.message {
            members.insert("statusMessage".into(), message.as_str().into());
        }
        members.insert("createdAt".into(), self.created_at.as_str().into());
        members.insert("lastUpdatedAt".into(), self.last_updated_at.as_str().into());
        members.insert(ttl.into(), self.ttl_ms.into());
        if let Some(interval) = self.poll_interval_ms {
            members.insert(poll_interval.into(), interval.into());
        }
        members
    }

    /// With what SEP-2663 inlines for the state.
    pub(super) fn detailed_members(&self) -> Map<String, Value> {
        let mut members = self.members("ttlMs", "pollIntervalMs");
        let more = match &self.state {
            TaskState::InputRequired(requests) => Some(("inputRequests", requests)),
            TaskState::Completed(result) => Some(("result", result)),
            TaskState::Failed(error) => Some(("error", error)),
            TaskState::Working | TaskState::Cancelled => None,
        };
        if let Some((name, value)) = more {
            members.insert(name.into(), Value::Object(value.clone()));
        }
        members
    }
}

fn millis(d: std::time::Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Notification;
    use serde_json::json;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().expect("an object").clone()
    }

    fn note(state: TaskState) -> TaskNote {
        TaskNote::new("t", state, "2026-12-01T10:00:00Z", "2026-12-01T10:00:01Z")
    }

    #[test]
    fn the_status_of_2025_11_25_has_ttl_and_names_its_task_in_the_metadata() {
        let told = note(TaskState::InputRequired(object(json!({"k": {}}))))
            .message("which file?")
            .poll_interval(std::time::Duration::from_millis(500));
        assert_eq!(
            serde_json::to_value(Notification::task_status(&told)).expect("JSON"),
            json!({"method": "notifications/tasks/status", "params": {
                "taskId": "t", "status": "input_required", "statusMessage": "which file?",
                "createdAt": "2026-12-01T10:00:00Z", "lastUpdatedAt": "2026-12-01T10:00:01Z",
                "ttl": null, "pollInterval": 500,
                "_meta": {"io.modelcontextprotocol/related-task": {"taskId": "t"}}}})
        );
    }

    #[test]
    fn the_extension_inlines_what_the_state_has_and_no_related_task() {
        let requests = json!({"k": {"method": "elicitation/create", "params": {}}});
        for (state, name, value) in [
            (TaskState::InputRequired(object(requests.clone())), "inputRequests", requests),
            (TaskState::Completed(object(json!({"content": []}))), "result", json!({"content": []})),
            (
                TaskState::Failed(object(json!({"code": -32603, "message": "x"}))),
                "error",
                json!({"code": -32603, "message": "x"}),
            ),
        ] {
            let sent = serde_json::to_value(Notification::tasks(&note(state))).expect("JSON");
            assert_eq!(sent["method"], "notifications/tasks");
            assert_eq!(sent["params"][name], value);
            assert_eq!(sent["params"].get("ttlMs"), Some(&Value::Null));
            assert!(sent["params"].get("_meta").is_none() && sent["params"].get("ttl").is_none());
        }
        let sent = serde_json::to_value(Notification::tasks(&note(TaskState::Cancelled))).expect("JSON");
        assert_eq!(sent["params"].as_object().expect("params").len(), 5);
    }
}
