//! A message in FastMCP's form and in ours.
//!
//! FastMCP's envelope is `{"notification":{"method","params","_meta"},"attempt","enqueued_at"}`, with `_meta` beside the
//! params. Ours is the notification, with `_meta` in the params as MCP has it.

use serde_json::{Map, Value, json};

use crate::{Notification, RELATED_TASK};

/// The only method that FastMCP 3's subscriber takes.
const STATUS: &str = "notifications/tasks/status";

/// Our body. What is not FastMCP's envelope is handed on as it is: nothing is lost, and the sink says what it thinks.
pub(super) fn to_courier(text: &[u8]) -> Vec<u8> {
    unwrapped(text).unwrap_or_else(|| text.to_vec())
}

fn unwrapped(text: &[u8]) -> Option<Vec<u8>> {
    let mut envelope: Map<String, Value> = serde_json::from_slice(text).ok()?;
    let Value::Object(mut notification) = envelope.remove("notification")? else { return None };
    notification.entry("method").or_insert_with(|| STATUS.into());
    if let Some(Value::Object(beside)) = notification.get("_meta") {
        let beside = beside.clone();
        let params = notification.entry("params").or_insert_with(|| json!({}));
        let meta = params.as_object_mut()?.entry("_meta").or_insert_with(|| json!({}));
        meta.as_object_mut()?.extend(beside);
        notification.remove("_meta");
    }
    serde_json::to_vec(&notification).ok()
}

/// FastMCP's envelope; or why its subscriber would drop the message.
pub(super) fn to_fastmcp(notification: &Notification, enqueued_ms: u64) -> Result<Vec<u8>, String> {
    if notification.method != STATUS {
        return Err(format!("FastMCP 3 takes {STATUS} and no {}", notification.method));
    }
    let mut params = notification.params.clone().unwrap_or_default();
    let mut meta = match params.remove("_meta") {
        Some(Value::Object(meta)) => meta,
        _ => Map::new(),
    };
    // A _meta that stood beside the params, as FastMCP's own has it.
    if let Some(Value::Object(beside)) = notification.beside().get("_meta") {
        meta.extend(beside.clone());
    }
    for name in ["taskId", "status"] {
        if !params.get(name).is_some_and(Value::is_string) {
            return Err(format!("FastMCP 3 takes no status without a {name}"));
        }
    }
    // Its model wants these; without them it drops what it got.
    let at = iso(enqueued_ms);
    for name in ["createdAt", "lastUpdatedAt"] {
        params.entry(name).or_insert_with(|| at.as_str().into());
    }
    params.entry("ttl").or_insert(Value::Null);
    // Without a scope it does not ask the question: null is the anonymous one.
    if let Some(Value::Object(related)) = meta.get_mut(RELATED_TASK)
        && related.contains_key("elicitation")
    {
        related.entry("task_scope").or_insert(Value::Null);
    }
    let mut told = json!({"method": STATUS, "params": params});
    if !meta.is_empty() {
        told["_meta"] = Value::Object(meta);
    }
    let envelope = json!({"notification": told, "attempt": 0, "enqueued_at": at});
    serde_json::to_vec(&envelope).map_err(|e| e.to_string())
}

/// `2026-12-01T10:00:00.123+00:00`, as Python writes it.
fn iso(unix_ms: u64) -> String {
    let (days, in_day) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    // Days since 0000-03-01, in eras of 400 years; the leap day is the last of its year then.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year_of_era = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let (h, m, s, ms) = (in_day / 3_600_000, in_day / 60_000 % 60, in_day / 1000 % 60, in_day % 1000);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{ms:03}+00:00")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).expect("JSON")
    }

    #[test]
    fn the_calendar_is_right_at_its_edges() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000+00:00"),
            (951_782_400_000, "2000-02-29T00:00:00.000+00:00"),
            (951_868_800_000, "2000-03-01T00:00:00.000+00:00"),
            (1_735_689_599_999, "2024-12-31T23:59:59.999+00:00"),
            (1_709_164_800_000, "2024-02-29T00:00:00.000+00:00"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000+00:00"),
        ] {
            assert_eq!(iso(ms), text);
        }
    }

    #[test]
    fn metadata_moves_into_the_params_and_back() {
        let theirs = json!({"notification": {"method": STATUS,
            "params": {"taskId": "t", "status": "input_required", "createdAt": "c", "lastUpdatedAt": "l", "ttl": 5,
                       "_meta": {"own": 1}},
            "_meta": {RELATED_TASK: {"taskId": "t", "task_scope": "a|b", "elicitation": {"requestId": "r"}}}},
            "attempt": 2, "enqueued_at": "x", "last_error": "y"});
        let ours = to_courier(theirs.to_string().as_bytes());
        let parsed = Notification::from_json(&ours).expect("a notification");
        assert!(parsed.beside().is_empty());
        assert_eq!(parsed.meta_value("own"), Some(&json!(1)));
        assert_eq!(parsed.meta_value(RELATED_TASK).expect("there")["task_scope"], "a|b");

        let back = value(&to_fastmcp(&parsed, 0).expect("taken"));
        assert_eq!(back["attempt"], 0);
        assert_eq!(
            back["notification"]["_meta"][RELATED_TASK],
            theirs["notification"]["_meta"][RELATED_TASK]
        );
        assert!(back["notification"]["params"].get("_meta").is_none());
        assert_eq!(back["notification"]["params"]["createdAt"], "c");
    }

    #[test]
    fn what_fastmcp_needs_is_added_and_what_it_drops_is_refused() {
        let bare = Notification::new(STATUS)
            .param("taskId", "t")
            .param("status", "input_required")
            .meta(RELATED_TASK, json!({"elicitation": {}}));
        let sent = value(&to_fastmcp(&bare, 951_782_400_000).expect("taken"));
        let told = &sent["notification"];
        assert_eq!(told["params"]["createdAt"], "2000-02-29T00:00:00.000+00:00");
        assert_eq!(told["params"].get("ttl"), Some(&Value::Null));
        assert_eq!(told["_meta"][RELATED_TASK].get("task_scope"), Some(&Value::Null));
        for bad in [Notification::progress("t", 1.0), Notification::new(STATUS).param("status", "working")] {
            assert!(to_fastmcp(&bad, 0).is_err());
        }
    }

    #[test]
    fn what_is_no_envelope_is_handed_on_byte_for_byte() {
        for text in [
            &b"no JSON"[..],
            b"\xff",
            b"{}",
            b"[1]",
            br#"{"notification": 1}"#,
            br#"{"notification":{"_meta":{},"params":1}}"#,
        ] {
            assert_eq!(to_courier(text), text);
        }
        assert_eq!(value(&to_courier(br#"{"notification": {}}"#)), json!({"method": STATUS}));
    }
}
