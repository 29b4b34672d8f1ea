//! Between bytes and rmcp's types, without loss: what rmcp does not know passes through as it came.

use std::time::Duration;

use rmcp::model::{
    ClientJsonRpcMessage, CustomNotification, CustomRequest, CustomResult, JsonRpcMessage, NumberOrString,
    RequestId, ServerJsonRpcMessage, ServerNotification, ServerRequest, ServerResult,
};
use rmcp::transport::common::server_side_http::ServerSseMessage;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The body of a message as a notification for rmcp.
///
/// Most are passed on as rmcp's custom notifications, whose members it does not touch. Progress is typed, since rmcp sends
/// it on the stream of the request that it belongs to. One without params gets empty ones, where rmcp knows no better.
pub(super) fn notification(body: &[u8]) -> Result<ServerNotification, String> {
    #[derive(Deserialize)]
    struct Raw {
        method: String,
        #[serde(default)]
        params: Option<Map<String, Value>>,
        #[serde(default)]
        id: Option<Value>,
    }
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err("it is no JSON object".into());
    }
    let raw: Raw = serde_json::from_slice(body).map_err(|e| e.to_string())?;
    if raw.id.is_some() {
        return Err("it has an id: it is a request and no notification".into());
    }
    Ok(typed_or_custom(raw.method, raw.params.map(Value::Object)))
}

/// Typed where rmcp's custom notification would not do, and only when nothing is lost by it: it cannot be without params.
fn typed_or_custom(method: String, params: Option<Value>) -> ServerNotification {
    fn lossless<T: DeserializeOwned + Serialize>(method: &str, params: Option<&Value>) -> Option<T> {
        let mut plain = serde_json::json!({ "method": method });
        if let Some(params) = params {
            plain["params"] = params.clone();
        }
        let typed: T = serde_json::from_value(plain.clone()).ok()?;
        serde_json::to_value(&typed).is_ok_and(|again| again == plain).then_some(typed)
    }
    let known = match &*method {
        "notifications/progress" => {
            lossless(&method, params.as_ref()).map(ServerNotification::ProgressNotification)
        }
        "notifications/tools/list_changed" => {
            lossless(&method, params.as_ref()).map(ServerNotification::ToolListChangedNotification)
        }
        "notifications/prompts/list_changed" => {
            lossless(&method, params.as_ref()).map(ServerNotification::PromptListChangedNotification)
        }
        "notifications/resources/list_changed" => {
            lossless(&method, params.as_ref()).map(ServerNotification::ResourceListChangedNotification)
        }
        _ => None,
    };
    known.unwrap_or_else(|| {
        // Null is no params.
        let params = params.unwrap_or_else(|| Value::Object(Map::new()));
        ServerNotification::CustomNotification(CustomNotification::new(method, Some(params)))
    })
}

/// A stored event: `1 <retry_ms>`, a newline, the message as JSON. Both parts may be empty.
pub(super) fn encode_event(event: &ServerSseMessage) -> Result<Vec<u8>, serde_json::Error> {
    let retry = event.retry.map(|retry| retry.as_millis().to_string()).unwrap_or_default();
    let mut bytes = format!("1 {retry}\n").into_bytes();
    if let Some(message) = &event.message {
        serde_json::to_writer(&mut bytes, &**message)?;
    }
    Ok(bytes)
}

/// The event of these bytes, or why there is none.
pub(super) fn decode_event(id: String, bytes: &[u8]) -> Result<ServerSseMessage, String> {
    let line = bytes.iter().position(|&b| b == b'\n').ok_or("no first line")?;
    let retry = bytes[..line].strip_prefix(b"1 ").ok_or("a format that is not understood")?;
    let retry = std::str::from_utf8(retry).map_err(|e| e.to_string())?;
    let json = &bytes[line + 1..];
    let mut event = ServerSseMessage::default();
    event.event_id = Some(id);
    event.retry = match retry {
        "" => None,
        ms => Some(Duration::from_millis(ms.parse().map_err(|_| "retry is no number")?)),
    };
    event.message = if json.is_empty() { None } else { Some(std::sync::Arc::new(message(json)?)) };
    Ok(event)
}

/// A message as it was sent. Never through rmcp's own reading, which tells results apart by their members and would drop
/// those that it does not know.
fn message(json: &[u8]) -> Result<ServerJsonRpcMessage, String> {
    #[derive(Deserialize)]
    struct Raw {
        id: Option<RequestId>,
        method: Option<String>,
        params: Option<Value>,
        result: Option<Value>,
        error: Option<rmcp::model::ErrorData>,
    }
    let raw: Raw = serde_json::from_slice(json).map_err(|e| e.to_string())?;
    Ok(match (raw.method, raw.id, raw.result, raw.error) {
        (Some(method), Some(id), ..) => {
            JsonRpcMessage::request(ServerRequest::CustomRequest(CustomRequest::new(method, raw.params)), id)
        }
        (Some(method), None, ..) => JsonRpcMessage::notification(typed_or_custom(method, raw.params)),
        (None, Some(id), Some(result), _) => {
            JsonRpcMessage::response(ServerResult::CustomResult(CustomResult::new(result)), id)
        }
        (None, id, None, Some(error)) => JsonRpcMessage::error(error, id),
        _ => return Err("no JSON-RPC message".into()),
    })
}

/// Whether this message ends the stream of a request.
pub(super) fn is_final(event: &ServerSseMessage) -> bool {
    matches!(event.message.as_deref(), Some(JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_)))
}

/// Requests to a client carry the name of the replica that asks, `<hub>:<number>`, so that the answer finds its way
/// back wherever it comes in, and so that two replicas never use one id.
pub(super) fn name_requests(hub: &str, message: &mut ServerJsonRpcMessage) {
    match message {
        JsonRpcMessage::Request(request) => request.id = named(hub, &request.id),
        JsonRpcMessage::Notification(notification) => {
            if let ServerNotification::CancelledNotification(cancelled) = &mut notification.notification
                && let Some(id) = &mut cancelled.params.request_id
            {
                *id = named(hub, id);
            }
        }
        JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => {}
    }
}

fn named(hub: &str, id: &RequestId) -> RequestId {
    match id {
        NumberOrString::Number(number) => NumberOrString::String(format!("{hub}:{number}").into()),
        already => already.clone(),
    }
}

/// Whose request a client answers: the hub's name. The message then has the id that the replica itself gave.
pub(super) fn take_name(message: &mut ClientJsonRpcMessage) -> Option<String> {
    let id = match message {
        JsonRpcMessage::Response(response) => &mut response.id,
        JsonRpcMessage::Error(error) => error.id.as_mut()?,
        _ => return None,
    };
    let NumberOrString::String(text) = &*id else { return None };
    let (hub, number) = text.rsplit_once(':')?;
    let (hub, number) = (hub.to_owned(), number.parse().ok()?);
    *id = NumberOrString::Number(number);
    Some(hub)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What a client would read.
    fn sent(body: &Value) -> Value {
        let notification = notification(body.to_string().as_bytes()).expect("a notification");
        serde_json::to_value(JsonRpcMessage::<ServerRequest, ServerResult, _>::notification(notification))
            .expect("JSON")
    }

    #[test]
    fn unknown_methods_and_members_pass_through_unchanged() {
        for body in [
            json!({"method": "notifications/tools/list_changed"}),
            json!({"method": "notifications/message", "params": {"level": "odd", "data": [], "x": 1.5}}),
            json!({"method": "notifications/tasks/status", "params": {"_meta": {"io.x/y": {"a": []}}, "taskId": "t"}}),
            json!({"method": "notifications/progress", "params": {"progressToken": 1, "progress": 2.0, "x": {}}}),
            json!({"method": "notifications/progress", "params": {"progressToken": "p", "progress": 0.5, "_meta": {"a": 1}}}),
            json!({"method": "x/unheard-of", "params": {"": null}}),
        ] {
            let mut expected = body.clone();
            expected["jsonrpc"] = json!("2.0");
            assert_eq!(sent(&body), expected);
        }
        let typed = notification(
            br#"{"method":"notifications/progress","params":{"progressToken":1,"progress":2.0}}"#,
        );
        assert!(matches!(typed, Ok(ServerNotification::ProgressNotification(_))));
    }

    #[test]
    fn what_is_no_notification_is_refused_with_a_reason() {
        for body in [
            "",
            "[]",
            r#"["m"]"#,
            "{}",
            r#"{"method":1}"#,
            r#"{"method":"m","id":1}"#,
            r#"{"method":"m","params":[1]}"#,
        ] {
            assert!(notification(body.as_bytes()).is_err(), "{body}");
        }
    }

    #[test]
    fn an_event_comes_out_of_its_bytes_as_it_went_in() {
        for message in [
            json!({"jsonrpc": "2.0", "id": 7, "result": {"content": [], "odd": {"tools": []}, "protocolVersion": "x"}}),
            json!({"jsonrpc": "2.0", "id": "h:1", "method": "elicitation/create", "params": {"_meta": {"progressToken": 0}, "m": 1}}),
            json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}),
            json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "m", "data": [1]}}),
        ] {
            let stored = format!("1 3000\n{message}");
            let event = decode_event("e/1".into(), stored.as_bytes()).expect("an event");
            assert_eq!(event.retry, Some(Duration::from_secs(3)));
            let again = encode_event(&event).expect("JSON");
            let json: Value = serde_json::from_slice(&again[7..]).expect("JSON");
            assert_eq!(json, message);
        }
        let priming = decode_event("e/1".into(), b"1 3000\n").expect("an event");
        assert!(priming.message.is_none());
        for broken in [&b""[..], b"2 3000\n{}", b"1 x\n", b"1 \nnothing", b"1 \n{}"] {
            assert!(decode_event("e/1".into(), broken).is_err(), "{}", broken.escape_ascii());
        }
    }

    #[test]
    fn an_answer_finds_the_replica_that_asked() {
        let mut request: ServerJsonRpcMessage =
            message(br#"{"jsonrpc":"2.0","id":3,"method":"roots/list"}"#).expect("a request");
        name_requests("node.1", &mut request);
        assert_eq!(serde_json::to_value(&request).expect("JSON")["id"], "node.1:3");
        let answer = json!({"jsonrpc": "2.0", "id": "node.1:3", "result": {"roots": []}});
        let mut answer: ClientJsonRpcMessage = serde_json::from_value(answer).expect("an answer");
        assert_eq!(take_name(&mut answer).as_deref(), Some("node.1"));
        assert_eq!(serde_json::to_value(&answer).expect("JSON")["id"], 3);
        assert_eq!(take_name(&mut answer), None, "an id of somebody else's making is left alone");
    }
}
