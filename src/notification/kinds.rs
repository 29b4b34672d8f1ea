//! The notifications that MCP defines and a server sends, a function each.

use serde_json::{Map, Value};

use super::{Notification, RELATED_TASK, TaskNote};

const TOOLS_CHANGED: &str = "notifications/tools/list_changed";
const PROMPTS_CHANGED: &str = "notifications/prompts/list_changed";
const RESOURCES_CHANGED: &str = "notifications/resources/list_changed";
const RESOURCE_UPDATED: &str = "notifications/resources/updated";

/// Severity of a log message, as syslog (RFC 5424) has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LogLevel {
    /// Details for debugging.
    Debug,
    /// What happens in normal operation.
    Info,
    /// Normal, but worth noting.
    Notice,
    /// Something may go wrong.
    Warning,
    /// Something went wrong.
    Error,
    /// A component failed.
    Critical,
    /// Somebody has to act at once.
    Alert,
    /// The system is unusable.
    Emergency,
}

impl LogLevel {
    /// As MCP spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Alert => "alert",
            Self::Emergency => "emergency",
        }
    }
}

impl Notification {
    /// `notifications/message`: a log message; `data` is any JSON. A logger's name is set with
    /// `.param("logger", "jobs")`.
    pub fn message(level: LogLevel, data: impl Into<Value>) -> Self {
        Self::new("notifications/message").param("level", level.as_str()).param("data", data)
    }

    /// `notifications/progress`: how far a request is. The token is the one of the request's `_meta.progressToken`, text
    /// or integer. `total` and `message` are set with [`Notification::param`].
    pub fn progress(token: impl Into<Value>, progress: f64) -> Self {
        Self::new("notifications/progress")
            .param("progressToken", token)
            .param("progress", whole_if_whole(progress))
    }

    /// `notifications/cancelled`: the sender gives up on a request of its own, with a reason for people to read.
    pub fn cancelled(request_id: impl Into<Value>, reason: Option<&str>) -> Self {
        Self::new("notifications/cancelled").param("requestId", request_id).maybe("reason", reason)
    }

    /// `notifications/tools/list_changed`.
    pub fn tools_list_changed() -> Self {
        Self::new(TOOLS_CHANGED)
    }

    /// `notifications/prompts/list_changed`.
    pub fn prompts_list_changed() -> Self {
        Self::new(PROMPTS_CHANGED)
    }

    /// `notifications/resources/list_changed`.
    pub fn resources_list_changed() -> Self {
        Self::new(RESOURCES_CHANGED)
    }

    /// `notifications/resources/updated`: read the resource again.
    pub fn resource_updated(uri: &str) -> Self {
        Self::new(RESOURCE_UPDATED).param("uri", uri)
    }

    /// `notifications/elicitation/complete` (from 2025-11-25): the interaction behind an elicitation in URL mode is over.
    pub fn elicitation_complete(elicitation_id: &str) -> Self {
        Self::new("notifications/elicitation/complete").param("elicitationId", elicitation_id)
    }

    /// `notifications/tasks/status` of 2025-11-25: a task's state, with `ttl` and `pollInterval`. It also carries the
    /// `related-task` metadata by which clients of that revision tell whose notification it is.
    pub fn task_status(task: &TaskNote) -> Self {
        Self::new("notifications/tasks/status")
            .params(task.members("ttl", "pollInterval"))
            .related_task(&task.task_id)
    }

    /// `notifications/tasks` of the tasks extension (SEP-2663, from 2026-07-28): the whole of a task, with `ttlMs`,
    /// `pollIntervalMs`, and the result, error or input requests that its state has.
    pub fn tasks(task: &TaskNote) -> Self {
        Self::new("notifications/tasks").params(task.detailed_members())
    }

    /// Says which task a notification belongs to: `_meta["io.modelcontextprotocol/related-task"].taskId`. Other members
    /// that stand there already stay.
    #[must_use]
    pub fn related_task(self, task_id: &str) -> Self {
        let mut related = match self.meta_value(RELATED_TASK) {
            Some(Value::Object(related)) => related.clone(),
            _ => Map::new(),
        };
        related.insert("taskId".into(), task_id.into());
        self.meta(RELATED_TASK, related)
    }
}

/// `3`, not `3.0`: a number is a number in JSON, and not to every client.
fn whole_if_whole(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0 {
        // Exact: an integer below 2^53.
        Value::from(number as i64)
    } else {
        Value::from(number)
    }
}

/// Longest resource that is named in a coalescing key; a longer one is never coalesced.
const MAX_RESOURCE: usize = 200;

pub(super) fn coalescing_key(notification: &Notification) -> Option<String> {
    match notification.method.as_str() {
        method @ (TOOLS_CHANGED | PROMPTS_CHANGED | RESOURCES_CHANGED) => Some(method.to_owned()),
        method @ RESOURCE_UPDATED => {
            let uri = notification.params.as_ref()?.get("uri")?.as_str()?;
            (uri.len() <= MAX_RESOURCE).then(|| format!("{method} {uri}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn wire(n: &Notification) -> Value {
        serde_json::to_value(n).expect("JSON")
    }

    #[test]
    fn each_has_the_members_of_the_specification() {
        for (built, expected) in [
            (
                Notification::message(LogLevel::Warning, json!({"free": 3})).param("logger", "disk"),
                json!({"method": "notifications/message",
                       "params": {"level": "warning", "data": {"free": 3}, "logger": "disk"}}),
            ),
            (
                Notification::progress("t", 3.0).param("total", 10),
                json!({"method": "notifications/progress",
                       "params": {"progressToken": "t", "progress": 3, "total": 10}}),
            ),
            (
                Notification::progress(7, 0.25),
                json!({"method": "notifications/progress", "params": {"progressToken": 7, "progress": 0.25}}),
            ),
            (
                Notification::cancelled(12, Some("too slow")),
                json!({"method": "notifications/cancelled", "params": {"requestId": 12, "reason": "too slow"}}),
            ),
            (
                Notification::cancelled("a", None),
                json!({"method": "notifications/cancelled", "params": {"requestId": "a"}}),
            ),
            (Notification::tools_list_changed(), json!({"method": "notifications/tools/list_changed"})),
            (
                Notification::resource_updated("file:///a"),
                json!({"method": "notifications/resources/updated", "params": {"uri": "file:///a"}}),
            ),
            (
                Notification::elicitation_complete("e-1"),
                json!({"method": "notifications/elicitation/complete", "params": {"elicitationId": "e-1"}}),
            ),
        ] {
            assert_eq!(wire(&built), expected);
        }
    }

    #[test]
    fn a_related_task_keeps_what_stands_beside_it() {
        let n = Notification::new("x").meta(RELATED_TASK, json!({"status": "working"})).related_task("t-1");
        assert_eq!(n.meta_value(RELATED_TASK), Some(&json!({"taskId": "t-1", "status": "working"})));
    }

    #[test]
    fn only_hints_coalesce_and_each_resource_by_itself() {
        let key = |n: Notification| n.coalescing_key();
        assert_eq!(key(Notification::tools_list_changed()).as_deref(), Some(TOOLS_CHANGED));
        assert_ne!(key(Notification::resource_updated("a")), key(Notification::resource_updated("b")));
        assert_eq!(key(Notification::resource_updated(&"x".repeat(300))), None);
        assert_eq!(key(Notification::progress("t", 1.0)), None);
        assert_eq!(key(Notification::new(RESOURCE_UPDATED)), None);
    }
}
