//! Tools and a prompt that ask in their result, in one round or in more (multi round-trip requests).

use rmcp::ErrorData;
use rmcp::model::{
    CallToolRequestParams, ClientCapabilities, ErrorCode, GetPromptResult, InputRequiredResult,
    InputResponses, PromptMessage, RequestStateCodec, Role,
};
use serde_json::{Value, json};

use crate::jobs::{Answer, field, internal, question, requests, text};

/// The names of the tools, each `test_input_required_result_` and one of these.
pub(crate) const TOOLS: [&str; 8] = [
    "elicitation",
    "sampling",
    "list_roots",
    "request_state",
    "multiple_inputs",
    "multi_round",
    "tampered_state",
    "capabilities",
];
pub(crate) const PREFIX: &str = "test_input_required_result_";
pub(crate) const PROMPT: &str = "test_input_required_result_prompt";

fn sampling(message: &str) -> Value {
    let content = json!({ "type": "text", "text": message });
    let params = json!({ "messages": [{ "role": "user", "content": content }], "maxTokens": 100 });
    json!({ "method": "sampling/createMessage", "params": params })
}

fn roots() -> Value {
    json!({ "method": "roots/list", "params": {} })
}

fn ask(asked: Value) -> Result<InputRequiredResult, ErrorData> {
    Ok(InputRequiredResult::from_input_requests(requests(asked)?))
}

/// Asks, and gives the client a state to bring back, which it cannot change.
fn ask_with(codec: &RequestStateCodec, asked: Value, state: &str) -> Answer {
    let sealed = codec.seal_json(&state).map_err(internal)?;
    let mut asked = ask(asked)?;
    asked.request_state = Some(sealed);
    Ok(asked.into())
}

fn open(codec: &RequestStateCodec, sealed: Option<&String>) -> Result<Option<String>, ErrorData> {
    let opened = sealed.map(|sealed| codec.open_json::<String>(sealed)).transpose();
    opened.map_err(|e| ErrorData::new(ErrorCode::INVALID_PARAMS, format!("requestState: {e}"), None))
}

/// `None` for a tool of another kind.
pub(crate) fn call(
    codec: &RequestStateCodec,
    request: &CallToolRequestParams,
    client: Option<ClientCapabilities>,
) -> Option<Answer> {
    let kind = request.name.strip_prefix(PREFIX)?;
    let (answers, state) = (&request.input_responses, request.request_state.as_ref());
    Some(match kind {
        "elicitation" => match field(answers, "user_name", "name") {
            Some(Value::String(name)) => text(format!("Hello, {name}!")),
            _ => {
                ask(json!({ "user_name": question("What is your name?", "name", "string") })).map(Into::into)
            }
        },
        "sampling" => one(answers, "capital_question", sampling("What is the capital of France?")),
        "list_roots" => one(answers, "client_roots", roots()),
        "capabilities" => {
            let client = client.unwrap_or_default();
            let mut asked = json!({});
            if client.elicitation.is_some() {
                asked["user_name"] = question("What is your name?", "name", "string");
            }
            #[allow(deprecated, reason = "the suite asks for it")]
            if client.sampling.is_some() {
                asked["greeting"] = sampling("Say hello");
            }
            ask(asked).map(Into::into)
        }
        "request_state" | "tampered_state" => match open(codec, state) {
            Err(e) => Err(e),
            Ok(Some(_)) => text("state-ok"),
            Ok(None) => {
                ask_with(codec, json!({ "confirm": question("Please confirm", "ok", "boolean") }), "asked")
            }
        },
        "multiple_inputs" => match open(codec, state) {
            Err(e) => Err(e),
            Ok(Some(_)) if answers.as_ref().is_some_and(|answers| answers.len() == 3) => text("all there"),
            Ok(_) => {
                let asked = json!({
                    "user_name": question("What is your name?", "name", "string"),
                    "greeting": sampling("Generate a greeting"),
                    "client_roots": roots(),
                });
                ask_with(codec, asked, "asked")
            }
        },
        "multi_round" => match open(codec, state) {
            Err(e) => Err(e),
            Ok(None) => {
                let asked = json!({ "step1": question("Step 1: What is your name?", "name", "string") });
                ask_with(codec, asked, "step1")
            }
            Ok(Some(step)) if step == "step1" => {
                let asked =
                    json!({ "step2": question("Step 2: What is your favorite color?", "color", "string") });
                ask_with(codec, asked, "step2")
            }
            Ok(Some(_)) => text("both steps done"),
        },
        _ => return None,
    })
}

/// Asks one thing, and shows the answer.
fn one(answers: &Option<InputResponses>, name: &str, asked: Value) -> Answer {
    match answers.as_ref().and_then(|answers| answers.get(name)) {
        Some(answer) => text(answer.to_string()),
        None => ask(json!({ name: asked })).map(Into::into),
    }
}

/// The prompt that asks.
pub(crate) fn prompt(
    answers: &Option<InputResponses>,
) -> Result<Result<GetPromptResult, InputRequiredResult>, ErrorData> {
    match field(answers, "user_context", "context") {
        Some(context) => {
            Ok(Ok(GetPromptResult::new(vec![PromptMessage::new_text(Role::User, context.to_string())])))
        }
        None => {
            let asked = question("What context should the prompt use?", "context", "string");
            Ok(Err(ask(json!({ "user_context": asked }))?))
        }
    }
}
