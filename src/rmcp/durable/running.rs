//! A leg of a task: the stored `tools/call` goes through rmcp's dispatcher to the handler once more.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, ClientJsonRpcMessage, InputRequiredResult,
    JsonObject, JsonRpcMessage, ProtocolVersion, RequestMetaObject, ServerConfig, ServerJsonRpcMessage,
    ServerNotification,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::convert;
use super::leg::TaskLeg;
use super::once::Once;
use crate::CancellationToken;
use crate::tasks::{InputRequired, Leg, LegOutcome, TaskContext, TaskExit, TaskHandler};

/// Runs the tool calls that tasks are made of, see [`DurableTasks::legs`](super::DurableTasks::legs).
#[derive(Debug)]
pub struct ToolLegs<H> {
    handler: Arc<H>,
}

impl<H> ToolLegs<H> {
    pub(super) fn new(handler: Arc<H>) -> Self {
        Self { handler }
    }
}

impl<H: ServerHandler> TaskHandler for ToolLegs<H> {
    async fn run(&self, leg: Leg) -> LegOutcome {
        match request(&leg) {
            Ok((message, client)) => call(self.handler.clone(), message, client, leg).await,
            Err(e) => LegOutcome::error(-32603, &format!("the stored call cannot be read: {e}")),
        }
    }
}

/// The request as the client would send it again with its answers, and what its sender can do.
fn request(leg: &Leg) -> serde_json::Result<(ClientJsonRpcMessage, ClientCapabilities)> {
    let mut params: JsonObject = serde_json::from_slice(&leg.call)?;
    if leg.number > 0 {
        match &leg.state {
            Some(state) => params.insert("requestState".into(), String::from_utf8_lossy(state).into()),
            None => params.remove("requestState"),
        };
        // Those that came before the task began stay.
        let answers = params.entry("inputResponses").or_insert_with(|| Value::Object(JsonObject::new()));
        for (name, answer) in &leg.answers {
            answers[name] = serde_json::from_str(answer.get())?;
        }
    }
    let meta = params.entry("_meta").or_insert_with(|| Value::Object(JsonObject::new()));
    if meta["progressToken"].is_null() {
        // Progress is shown as the status message, whether the client asked for it or not.
        meta["progressToken"] = "task".into();
    }
    let meta: RequestMetaObject = serde_json::from_value(meta.clone())?;
    let client = meta.client_capabilities().unwrap_or_default();
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    Ok((serde_json::from_value(message)?, client))
}

async fn call<H: ServerHandler>(
    handler: Arc<H>,
    mut message: ClientJsonRpcMessage,
    client: ClientCapabilities,
    leg: Leg,
) -> LegOutcome {
    let task = leg.task.clone();
    let (client, exit) = (Arc::new(client), Arc::<OnceLock<TaskExit>>::default());
    message.insert_extension(TaskLeg {
        task: task.clone(),
        scope: leg.scope,
        context: Arc::new(leg.context),
        number: leg.number,
        attempt: leg.attempt,
        client: client.clone(),
        exit: exit.clone(),
    });
    let (ended, end) = oneshot::channel();
    let (stop, dropped) = (CancellationToken::new(), CancellationToken::new());
    let tool = Tool { handler, stop: stop.clone(), dropped: dropped.clone(), ended: Mutex::new(Some(ended)) };
    // With this future the handler's goes, too.
    let _dropped = dropped.drop_guard();
    let mut once = Once::start(tool, message);
    let mut end = std::pin::pin!(end);
    // What is not from the handler itself: rmcp refused the request.
    let mut refused = None;
    let answer = loop {
        tokio::select! {
            biased;
            answer = &mut end => break answer,
            sent = once.next() => match sent {
                Some(JsonRpcMessage::Error(error)) => refused = Some(error.error),
                Some(message) => progress(&task, message),
                None => break end.await,
            },
            () = task.cancelled(), if !stop.is_cancelled() => stop.cancel(),
        }
    };
    match (answer, refused) {
        (Ok(answer), _) => outcome(answer, &task, &client, exit.get()),
        (Err(_), Some(error)) => failed(&error),
        (Err(_), None) => LegOutcome::retry("the tool panicked"),
    }
}

fn progress(task: &TaskContext, message: ServerJsonRpcMessage) {
    let JsonRpcMessage::Notification(notification) = message else { return };
    let ServerNotification::ProgressNotification(progress) = notification.notification else { return };
    let progress = progress.params;
    task.set_status_message(match (progress.message, progress.total) {
        (Some(message), _) => message,
        (None, Some(total)) => format!("{} of {total}", progress.progress),
        (None, None) => progress.progress.to_string(),
    });
}

fn outcome(
    answer: Result<CallToolResponse, ErrorData>,
    task: &TaskContext,
    client: &ClientCapabilities,
    exit: Option<&TaskExit>,
) -> LegOutcome {
    match answer {
        Ok(CallToolResponse::Complete(result)) => LegOutcome::completed(&result),
        Ok(CallToolResponse::InputRequired(asked)) => ask(asked, client),
        // A tool that stops for it may say so in any way.
        Err(_) if task.is_cancel_requested() => LegOutcome::Cancelled,
        Err(error) => match exit {
            None | Some(TaskExit::Error(_)) => failed(&error),
            Some(exit) => exit.clone().into(),
        },
        Ok(_) => LegOutcome::error(-32603, "the tool answered with a task of its own"),
    }
}

fn failed(error: &ErrorData) -> LegOutcome {
    match serde_json::value::to_raw_value(error) {
        Ok(error) => LegOutcome::Failed(error),
        Err(e) => LegOutcome::error(-32603, &e.to_string()),
    }
}

fn ask(asked: InputRequiredResult, client: &ClientCapabilities) -> LegOutcome {
    let requests = asked.input_requests.unwrap_or_default();
    if let Some(missing) = convert::undeclared(&requests, client) {
        return failed(&ErrorData::missing_required_client_capability(missing));
    }
    let mut input = InputRequired::new();
    if let Some(state) = asked.request_state {
        input = input.state(state);
    }
    for (name, request) in requests {
        input = match input.request(name, &request) {
            Ok(input) => input,
            Err(e) => return LegOutcome::error(-32603, &e.to_string()),
        };
    }
    LegOutcome::InputRequired(input)
}

/// The handler, for one call: its answer comes as it is, also after the task was cancelled.
struct Tool<H> {
    handler: Arc<H>,
    stop: CancellationToken,
    dropped: CancellationToken,
    ended: Mutex<Option<oneshot::Sender<Result<CallToolResponse, ErrorData>>>>,
}

impl<H: ServerHandler> ServerHandler for Tool<H> {
    fn get_info(&self) -> ServerConfig {
        self.handler.get_info()
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        self.handler.supported_protocol_versions()
    }

    async fn call_tool(
        &self,
        params: CallToolRequestParams,
        mut context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        // rmcp's own token ends with the connection, of which there is none.
        context.ct = self.stop.clone();
        let answer = tokio::select! {
            answer = self.handler.call_tool(params, context) => answer,
            () = self.dropped.cancelled() => return Err(ErrorData::internal_error("dropped", None)),
        };
        if let Some(ended) = ended {
            let _ = ended.send(answer);
        }
        Err(ErrorData::internal_error("answered elsewhere", None))
    }
}

#[cfg(test)]
mod tests {
    /// What a tool gets in a task is what it would have got in the request.
    #[test]
    fn numbers_survive_being_stored() {
        for _ in 0..200_000 {
            let number = f64::from_bits(fastrand::u64(..));
            if number.is_finite() {
                let stored = serde_json::to_string(&number).expect("JSON");
                let read: f64 = serde_json::from_str(&stored).expect("a number");
                assert_eq!(read.to_bits(), number.to_bits(), "{stored}");
            }
        }
    }
}
