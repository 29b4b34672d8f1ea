//! A tool of every kind.

use std::time::Duration;

use mcp_courier::rmcp::{InTask, TaskLeg};
use mcp_courier::tasks::TaskExit;
use rmcp::handler::server::tool::{InputResponses, RequestState, ToolRouter};
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{
    CallToolResponse, CallToolResult, ContentBlock, InputRequest, InputRequests, InputRequiredResult,
    ProgressNotificationParam,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, schemars, tool, tool_router};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::server::Server;

pub(crate) type Answer = Result<CallToolResponse, ErrorData>;

#[derive(Deserialize, schemars::JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct Greet {
    name: String,
}

#[derive(Deserialize, schemars::JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct Compute {
    #[serde(default)]
    seconds: f64,
    #[serde(default)]
    label: Option<String>,
}

#[derive(Deserialize, schemars::JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct Delete {
    filename: String,
}

pub(crate) fn text(text: impl Into<String>) -> Answer {
    Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
}

pub(crate) fn internal(error: impl std::fmt::Display) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

/// A question with one field.
pub(crate) fn question(message: &str, field: &str, kind: &str) -> Value {
    let schema = json!({ "type": "object", "properties": { field: { "type": kind } }, "required": [field] });
    json!({
        "method": "elicitation/create",
        "params": { "mode": "form", "message": message, "requestedSchema": schema },
    })
}

pub(crate) fn requests(requests: Value) -> Result<InputRequests, ErrorData> {
    serde_json::from_value(requests).map_err(internal)
}

/// What a person wrote into a field of the question with this name.
pub(crate) fn field(answers: &Option<rmcp::model::InputResponses>, name: &str, field: &str) -> Option<Value> {
    let answer = answers.as_ref()?.get(name)?;
    answer.get("content")?.get(field).cloned()
}

impl Server {
    pub(crate) fn jobs() -> ToolRouter<Self> {
        Self::tool_router()
    }
}

#[tool_router]
impl Server {
    /// Greets, at once.
    #[tool]
    async fn greet(&self, Parameters(Greet { name }): Parameters<Greet>) -> Answer {
        text(format!("Hello, {name}!"))
    }

    /// Computes for some seconds, and tells how far it is.
    #[tool]
    async fn slow_compute(
        &self,
        Parameters(Compute { seconds, label }): Parameters<Compute>,
        context: RequestContext<RoleServer>,
    ) -> Answer {
        let label = label.unwrap_or_else(|| "nothing".into());
        let whole = Duration::try_from_secs_f64(seconds)
            .map_err(|e| ErrorData::invalid_params(format!("seconds: {e}"), None))?;
        let begin = tokio::time::Instant::now();
        loop {
            let left = whole.saturating_sub(begin.elapsed());
            tokio::select! {
                // In a task: the client cancelled it. In a request: the client is gone.
                () = context.ct.cancelled() => return Err(internal("cancelled")),
                () = tokio::time::sleep(left.min(Duration::from_secs(1))) => {}
            }
            if begin.elapsed() >= whole {
                return text(format!("computed {label} for {seconds} s"));
            }
            // A task shows it as its status message.
            if let Some(token) = context.meta.get_progress_token() {
                let done = begin.elapsed().as_secs_f64();
                let progress = ProgressNotificationParam::new(token, done).with_total(seconds);
                let _ = context.peer.notify_progress(progress).await;
            }
        }
    }

    /// Fails, as tools fail.
    #[tool]
    async fn failing_job(&self) -> Answer {
        tokio::time::sleep(Duration::from_millis(500)).await;
        Ok(CallToolResult::error(vec![ContentBlock::text("the job failed")]).into())
    }

    /// Fails, as requests fail.
    #[tool]
    async fn protocol_error_job(&self) -> Answer {
        Err(internal("the job cannot be done"))
    }

    /// Asks before it deletes. Ends to ask, and is called anew with the answer: no worker waits for a person.
    #[tool]
    async fn confirm_delete(
        &self,
        Parameters(Delete { filename }): Parameters<Delete>,
        InputResponses(answers): InputResponses,
    ) -> Answer {
        match field(&answers, "confirm", "confirm") {
            Some(Value::Bool(true)) => text(format!("{filename} would be gone now")),
            Some(_) => text(format!("{filename} stays")),
            None if answers.as_ref().is_some_and(|answers| answers.contains_key("confirm")) => {
                text(format!("{filename} stays: nobody confirmed"))
            }
            None => {
                let asked = question(&format!("Delete {filename}?"), "confirm", "boolean");
                Ok(InputRequiredResult::from_input_requests(requests(json!({ "confirm": asked }))?).into())
            }
        }
    }

    /// Asks two things at once.
    #[tool]
    async fn multi_input(&self, InputResponses(answers): InputResponses) -> Answer {
        let answers = answers.unwrap_or_default();
        if answers.contains_key("name") && answers.contains_key("color") {
            return text(format!("{} likes {}", answers["name"], answers["color"]));
        }
        let asked = json!({
            "name": question("Your name?", "name", "string"),
            "color": question("Your favourite color?", "color", "string"),
        });
        Ok(InputRequiredResult::from_input_requests(requests(asked)?).into())
    }

    /// Asks one thing after the other, in place: the style of rmcp's `TaskContext`. After the death of its worker it begins
    /// anew, and what was answered is answered at once.
    #[tool]
    async fn interview(&self, InTask(task): InTask) -> Answer {
        let Some(task) = task else { return text("only a task has the time for an interview") };
        let (name, color) = interview(&task).await?;
        text(format!("{name} likes {color}"))
    }

    /// Asks before its task begins; the rest of it is the task.
    #[tool]
    async fn test_tool_with_task(
        &self,
        InputResponses(answers): InputResponses,
        RequestState(_): RequestState,
        context: RequestContext<RoleServer>,
    ) -> Answer {
        let Some(name) = field(&answers, "user_name", "name") else {
            let asked = json!({ "user_name": question("What is your name?", "name", "string") });
            return Ok(InputRequiredResult::from_input_requests(requests(asked)?).into());
        };
        TaskLeg::begin(&context)?;
        tokio::time::sleep(Duration::from_millis(200)).await;
        text(format!("worked for {}", name.as_str().unwrap_or("nobody")))
    }
}

async fn interview(task: &TaskLeg) -> Result<(Value, Value), TaskExit> {
    let ask = async |key: &str, message: &str| {
        let asked = serde_json::from_value::<InputRequest>(question(message, key, "string"));
        let asked = asked.expect("a question as the protocol has it");
        let answer = task.request_input(key, asked).await?;
        Ok::<_, TaskExit>(answer["content"][key].clone())
    };
    let name = ask("name", "Your name?").await?;
    task.set_status_message("half way");
    Ok((name, ask("color", "Your favourite color?").await?))
}
