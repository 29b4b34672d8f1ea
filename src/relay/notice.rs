//! The notification that announces a question.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::{Ask, RequestKind};
use crate::{Notification, RequestId};

/// Ids of messages that announce a question begin so; the request id follows.
const MESSAGE_ID: &str = "ask:";
/// Where MCP says which task a message belongs to.
const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";

/// The id of the message that announces a question.
pub(super) fn message_id(id: &RequestId) -> String {
    format!("{MESSAGE_ID}{id}", id = id.as_str())
}

/// The question that a message announces, if its id looks like that.
pub(super) fn announced(message_id: &str) -> Option<RequestId> {
    RequestId::new(message_id.strip_prefix(MESSAGE_ID)?).ok()
}

/// For a question in the name of a task: its status, `input_required`. For another one a notification of our own, which
/// the relay does not pass on to the client.
pub(super) fn notification(ask: &Ask, id: &RequestId, now: SystemTime) -> Notification {
    let request = &ask.request;
    let mut asked = Map::new();
    asked.insert("requestId".into(), json!(id.as_str()));
    let member = match request.kind {
        RequestKind::Elicitation => {
            for member in ["message", "requestedSchema", "url", "elicitationId"] {
                if let Some(value) = request.params.get(member) {
                    asked.insert(member.into(), value.clone());
                }
            }
            "elicitation"
        }
        RequestKind::Sampling => "sampling",
        RequestKind::Roots => "roots",
    };
    let Some(task) = &ask.task else {
        return Notification::new("notifications/mcp-courier/question").param(member, Value::Object(asked));
    };
    let message = match request.message() {
        "" => request.kind.method(),
        message => message,
    };
    let related = json!({
        "taskId": task.id,
        "status": "input_required",
        "statusMessage": message,
        "task_scope": task.scope,
        member: asked,
    });
    let now = rfc3339(now);
    let created = task.created_at.clone().unwrap_or_else(|| now.clone());
    Notification::new("notifications/tasks/status")
        .param("taskId", task.id.as_str())
        .param("status", "input_required")
        .param("statusMessage", message)
        .param("createdAt", created)
        .param("lastUpdatedAt", now)
        .param("ttl", task.ttl_ms.map_or(Value::Null, Value::from))
        .meta(RELATED_TASK, related)
}

/// UTC, with milliseconds.
fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (mut year, mut day) = (1970, days);
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if day < length {
            break;
        }
        day -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let millis = since.subsec_millis();
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z", day + 1)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SessionId;
    use crate::relay::{Request, TaskRef};
    use std::time::Duration;

    #[test]
    fn times_are_written_as_rfc_3339() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_735_689_599_001, "2024-12-31T23:59:59.001Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn the_notice_of_a_task_carries_id_status_request_message_schema_and_scope() {
        let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
        let ask = Ask::new(&SessionId::new("s").expect("valid"), Request::form("Your name?", schema.clone()))
            .task(TaskRef::new("t1").scope("alice"));
        let id = RequestId::new("r 1").expect("valid");
        let notice = notification(&ask, &id, UNIX_EPOCH);
        assert_eq!(notice.method, "notifications/tasks/status");
        let params = notice.params.expect("params");
        assert_eq!((&params["taskId"], &params["status"]), (&json!("t1"), &json!("input_required")));
        assert_eq!((&params["ttl"], &params["createdAt"]), (&Value::Null, &params["lastUpdatedAt"]));
        let related = &params["_meta"][RELATED_TASK];
        assert_eq!(related["task_scope"], json!("alice"));
        assert_eq!(
            related["elicitation"],
            json!({"requestId": "r 1", "message": "Your name?", "requestedSchema": schema})
        );
        assert_eq!(announced(&message_id(&id)), Some(id));
        assert_eq!(announced("other"), None);
    }
}
