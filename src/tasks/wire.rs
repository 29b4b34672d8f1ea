//! The shapes of SEP-2663 (`io.modelcontextprotocol/tasks`), as they go over the wire.
//!
//! Results, errors, requests and answers are JSON that nobody here looks into: they come out byte for byte as they went
//! in.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TaskStatus {
    /// A leg runs, or waits for a worker.
    Working,
    /// Requests wait for the client's answers.
    InputRequired,
    /// There is a result.
    Completed,
    /// It ended in an error of the protocol.
    Failed,
    /// The client had asked for it.
    Cancelled,
}

impl TaskStatus {
    /// The end: it never changes again.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    pub(super) fn stored(word: &str) -> Option<Self> {
        Some(match word {
            "working" => Self::Working,
            "input_required" => Self::InputRequired,
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            "cancelled" => Self::Cancelled,
            _ => return None,
        })
    }
}

/// A task with what belongs to its status: the answer to `tasks/get`, and the params of `notifications/tasks`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DetailedTask {
    /// The id.
    pub task_id: String,
    /// Where it stands.
    pub status: TaskStatus,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_message: Option<String>,
    /// ISO 8601, UTC.
    pub created_at: String,
    /// ISO 8601, UTC.
    pub last_updated_at: String,
    /// From the creation to the time when the task vanishes, as of now. Grows as long as the task is extended.
    pub ttl_ms: u64,
    /// Suggested pause between polls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll_interval_ms: Option<u64>,
    /// With `input_required`: what waits for an answer, by key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_requests: Option<BTreeMap<String, Box<RawValue>>>,
    /// With `completed`: the result of the original request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    /// With `failed`: a JSON-RPC error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Box<RawValue>>,
    /// Grows by one with each change. Not on the wire.
    #[serde(skip)]
    pub revision: u64,
}

/// The result in place of the original request's: a task was made. `resultType` is `task`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateTaskResult<'a> {
    result_type: &'static str,
    #[serde(flatten)]
    task: &'a DetailedTask,
}

/// The result of `tasks/get`. `resultType` is `complete`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GetTaskResult<'a> {
    result_type: &'static str,
    #[serde(flatten)]
    task: &'a DetailedTask,
}

/// The result of `tasks/update` and `tasks/cancel`: an acknowledgement. `resultType` is `complete`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskAck {
    result_type: &'static str,
}

impl Default for TaskAck {
    fn default() -> Self {
        Self { result_type: "complete" }
    }
}

impl DetailedTask {
    /// As the result of the request that made the task.
    pub fn as_create_result(&self) -> CreateTaskResult<'_> {
        CreateTaskResult { result_type: "task", task: self }
    }

    /// As the result of `tasks/get`.
    pub fn as_get_result(&self) -> GetTaskResult<'_> {
        GetTaskResult { result_type: "complete", task: self }
    }

    /// As `notifications/tasks`.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when a payload is no JSON object.
    pub fn as_notification(&self) -> crate::Result<crate::Notification> {
        let invalid = |e: serde_json::Error| crate::Error::invalid("task", e.to_string());
        // By way of text: a raw value is no value of the other kind.
        let text = serde_json::to_string(self).map_err(invalid)?;
        let params = serde_json::from_str(&text).map_err(invalid)?;
        Ok(crate::Notification::new("notifications/tasks").params(params))
    }
}

/// The error in a failed task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RpcError<'a> {
    pub(super) code: i64,
    pub(super) message: std::borrow::Cow<'a, str>,
}

/// Unix milliseconds as ISO 8601 in UTC.
pub(super) fn iso8601(ms: u64) -> String {
    let (days, rest) = (ms / 86_400_000, ms % 86_400_000);
    // Days since 1 March of year 0, in eras of 400 years (Howard Hinnant's civil_from_days).
    let z = days + 719_468;
    let era = z / 146_097;
    let of_era = z % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (h, m, s) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{:03}Z", rest % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.into()).expect("JSON")
    }

    fn task(status: TaskStatus) -> DetailedTask {
        DetailedTask {
            task_id: "t".into(),
            status,
            status_message: None,
            created_at: iso8601(0),
            last_updated_at: iso8601(1),
            ttl_ms: 1000,
            poll_interval_ms: Some(5),
            input_requests: None,
            result: None,
            error: None,
            revision: 7,
        }
    }

    #[test]
    fn times_are_iso_8601() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (1_735_689_600_001, "2025-01-01T00:00:00.001Z"),
            (4_102_444_799_000, "2099-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(iso8601(ms), text);
        }
    }

    #[test]
    fn the_shapes_are_those_of_the_specification() {
        let made = task(TaskStatus::Working);
        assert_eq!(
            serde_json::to_string(&made.as_create_result()).expect("JSON"),
            r#"{"resultType":"task","taskId":"t","status":"working","createdAt":"1970-01-01T00:00:00.000Z","lastUpdatedAt":"1970-01-01T00:00:00.001Z","ttlMs":1000,"pollIntervalMs":5}"#
        );
        let mut done = task(TaskStatus::Completed);
        // Numbers and empty arrays keep their form.
        done.result = Some(raw(r#"{"content":[],"n":12345678901234567890.0}"#));
        let text = serde_json::to_string(&done.as_get_result()).expect("JSON");
        assert!(text.starts_with(r#"{"resultType":"complete","taskId":"t","status":"completed""#), "{text}");
        assert!(text.ends_with(r#""result":{"content":[],"n":12345678901234567890.0}}"#), "{text}");
        assert_eq!(serde_json::to_string(&TaskAck::default()).expect("JSON"), r#"{"resultType":"complete"}"#);
        let mut asking = task(TaskStatus::InputRequired);
        asking.input_requests = Some([("k".to_owned(), raw(r#"{"method":"roots/list"}"#))].into());
        let notification = asking.as_notification().expect("an object");
        assert_eq!(notification.method, "notifications/tasks");
        let params = notification.params.expect("params");
        assert_eq!(params["inputRequests"]["k"]["method"], "roots/list");
        assert!(!params.contains_key("resultType") && !params.contains_key("revision"));
        let back: DetailedTask = serde_json::from_str(&text).expect("read back");
        assert_eq!(back.status, TaskStatus::Completed);
    }
}
