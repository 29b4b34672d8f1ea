//! A leg of a task: the stored `tools/call` goes through rmcp's dispatcher to the handler once more.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResponse, ClientJsonRpcMessage, ClientRequest,
    InputRequiredResult, JsonRpcMessage, NumberOrString, ProgressToken, ProtocolVersion, ServerConfig,
    ServerJsonRpcMessage, ServerNotification,
};
use rmcp::service::{RequestContext, serve_directly_with_ct};
use rmcp::transport::OneshotTransport;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tokio::sync::oneshot;

use super::convert;
use super::leg::TaskLeg;
use crate::CancellationToken;
use crate::tasks::{InputRequired, Leg, LegOutcome, TaskContext, TaskHandler};

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
            Ok(params) => call(self.handler.clone(), params, leg).await,
            Err(e) => LegOutcome::error(-32603, &format!("the stored call cannot be read: {e}")),
        }
    }
}

/// The request as the client would send it again with its answers.
fn request(leg: &Leg) -> serde_json::Result<CallToolRequestParams> {
    let mut params: CallToolRequestParams = serde_json::from_slice(&leg.call)?;
    if leg.number > 0 {
        params.request_state = leg.state.as_ref().map(|state| String::from_utf8_lossy(state).into_owned());
        let answers = leg.answers.iter();
        let answers = answers.map(|(name, answer)| Ok((name.clone(), serde_json::from_str(answer.get())?)));
        params.input_responses = Some(answers.collect::<serde_json::Result<_>>()?);
    }
    // Progress is shown as the status message, whether the client asked for it or not.
    let meta = params.meta.get_or_insert_default();
    if meta.get_progress_token().is_none() {
        meta.set_progress_token(ProgressToken(NumberOrString::String("task".into())));
    }
    Ok(params)
}

async fn call<H: ServerHandler>(handler: Arc<H>, params: CallToolRequestParams, leg: Leg) -> LegOutcome {
    let client = params.meta.as_ref().and_then(|meta| meta.client_capabilities()).unwrap_or_default();
    let task = leg.task.clone();
    let extension = TaskLeg {
        task: task.clone(),
        scope: leg.scope,
        context: Arc::new(leg.context),
        number: leg.number,
        attempt: leg.attempt,
    };
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let mut message: ClientJsonRpcMessage = JsonRpcMessage::request(request, NumberOrString::Number(1));
    message.insert_extension(extension);
    let (ended, end) = oneshot::channel();
    let (stop, dropped) = (CancellationToken::new(), CancellationToken::new());
    let once = Once {
        handler,
        stop: stop.clone(),
        dropped: dropped.clone(),
        ended: Mutex::new(Some(ended)),
    };
    // Dropped with this future: then the handler is dropped too.
    let _dropped = dropped.clone().drop_guard();
    let (transport, mut sent) = OneshotTransport::<RoleServer>::new(message);
    let running = serve_directly_with_ct(once, transport, None, dropped);
    let mut end = std::pin::pin!(end);
    // What is not from the handler itself: rmcp refused the request.
    let mut refused = None;
    let answer = loop {
        tokio::select! {
            biased;
            answer = &mut end => break answer,
            message = sent.recv() => match message {
                Some(JsonRpcMessage::Error(error)) => refused = Some(error.error),
                Some(message) => progress(&task, message),
                None => break end.await,
            },
            () = task.cancelled(), if !stop.is_cancelled() => stop.cancel(),
            () = task.shutting_down(), if !stop.is_cancelled() => {}
        }
    };
    drop(running);
    match (answer, refused) {
        (Ok(answer), _) => outcome(answer, &task, &client),
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
    client: &rmcp::model::ClientCapabilities,
) -> LegOutcome {
    match answer {
        Ok(CallToolResponse::Complete(result)) => LegOutcome::completed(&result),
        Ok(CallToolResponse::InputRequired(asked)) => ask(asked, client),
        // A tool that stops for it may say so in any way.
        Err(_) if task.is_cancel_requested() => LegOutcome::Cancelled,
        Err(error) => failed(&error),
        Ok(_) => LegOutcome::error(-32603, "the tool answered with a task of its own"),
    }
}

fn failed(error: &ErrorData) -> LegOutcome {
    match serde_json::value::to_raw_value(error) {
        Ok(error) => LegOutcome::Failed(error),
        Err(e) => LegOutcome::error(-32603, &e.to_string()),
    }
}

fn ask(asked: InputRequiredResult, client: &rmcp::model::ClientCapabilities) -> LegOutcome {
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
struct Once<H> {
    handler: Arc<H>,
    stop: CancellationToken,
    dropped: CancellationToken,
    ended: Mutex<Option<oneshot::Sender<Result<CallToolResponse, ErrorData>>>>,
}

impl<H: ServerHandler> ServerHandler for Once<H> {
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
