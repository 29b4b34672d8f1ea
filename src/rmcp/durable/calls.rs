//! A `tools/call`, and whether it becomes a task; the requests about tasks.

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, GetTaskParams, GetTaskResult, ProtocolVersion,
    UpdateTaskParams,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};

use super::leg::Gate;
use super::table::Arguments;
use super::{DurableTasks, TaskMode, convert};
use crate::tasks::{ContextSnapshot, NewTask};

/// As the specification names the members of the trace context in `_meta`.
const TRACE: [&str; 3] = ["traceparent", "tracestate", "baggage"];

impl<H: ServerHandler> DurableTasks<H> {
    pub(super) async fn call(
        &self,
        params: CallToolRequestParams,
        mut context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let tool = self.shared.tools.get(&*params.name).filter(|tool| tool.mode != TaskMode::Forbidden);
        let Some(tool) = tool else { return self.handler.call_tool(params, context).await };
        if !wanted(&context) {
            return match tool.mode {
                TaskMode::Required => Err(convert::tasks_missing()),
                _ => self.handler.call_tool(params, context).await,
            };
        }
        self.started()?;
        if let Arguments::Typed(fits) = &tool.arguments
            && !fits(params.arguments.clone().unwrap_or_default())
        {
            // It refuses them in its own words, as without tasks.
            return self.handler.call_tool(params, context).await;
        }
        let new = self.new_task(&params, &context)?;
        if let Arguments::ByTheTool = tool.arguments {
            let gate = Gate::default();
            context.extensions.insert(gate.clone());
            let answer = self.handler.call_tool(params, context).await;
            if !gate.reached() {
                return answer;
            }
        }
        let task = self.shared.tasks.create(new).await.map_err(convert::error)?;
        convert::created(&task).map(CallToolResponse::Task)
    }

    fn new_task(
        &self,
        params: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<NewTask, ErrorData> {
        let scope = (self.shared.scope_of)(context)?;
        let internal = |e: &dyn std::fmt::Display| ErrorData::internal_error(e.to_string(), None);
        let mut kept = ContextSnapshot::default();
        if let Some(version) = context.protocol_version() {
            kept = kept.protocol_version(version.to_string());
        }
        if let Some(capabilities) = context.meta.client_capabilities() {
            kept = kept.capabilities(&capabilities).map_err(|e| internal(&e))?;
        }
        for name in TRACE {
            if let Some(value) = context.meta.get(name).and_then(|value| value.as_str()) {
                kept = kept.trace(name, value);
            }
        }
        if let Some(parts) = context.extensions.get::<http::request::Parts>() {
            for name in &self.shared.headers {
                if let Some(value) = parts.headers.get(name).and_then(|value| value.to_str().ok()) {
                    kept = kept.header(name, value);
                }
            }
        }
        // rmcp took its `_meta` out of the params.
        let mut call = params.clone();
        call.meta = Some(context.meta.clone());
        let call = serde_json::to_vec(&call).map_err(|e| internal(&e))?;
        Ok(NewTask::new(&scope, call).context(kept))
    }

    pub(super) async fn get(
        &self,
        params: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        if !self.enabled() {
            return self.handler.get_task(params, context).await;
        }
        check_version::<rmcp::model::GetTaskMethod>(&context)?;
        let scope = (self.shared.scope_of)(&context)?;
        let task = self.shared.tasks.get(&scope, &params.task_id).await.map_err(convert::error)?;
        convert::got(&task)
    }

    pub(super) async fn update(
        &self,
        params: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if !self.enabled() {
            return self.handler.update_task(params, context).await;
        }
        check_version::<rmcp::model::UpdateTaskMethod>(&context)?;
        let scope = (self.shared.scope_of)(&context)?;
        let answers = params.input_responses.into_iter();
        let answers = answers.map(|(key, answer)| Ok((key, serde_json::value::to_raw_value(&answer)?)));
        let answers: Vec<_> = answers
            .collect::<Result<_, serde_json::Error>>()
            .map_err(|e| ErrorData::invalid_params(e.to_string(), None))?;
        self.shared.tasks.update(&scope, &params.task_id, answers).await.map_err(convert::error)?;
        Ok(())
    }

    pub(super) async fn cancel(
        &self,
        params: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if !self.enabled() {
            return self.handler.cancel_task(params, context).await;
        }
        check_version::<rmcp::model::CancelTaskMethod>(&context)?;
        let scope = (self.shared.scope_of)(&context)?;
        self.shared.tasks.cancel(&scope, &params.task_id).await.map_err(convert::error)?;
        Ok(())
    }

    /// Params that rmcp cannot read as those of a `tasks/…` method come as a request that it does not know.
    pub(super) fn malformed(&self, method: &str, context: &RequestContext<RoleServer>) -> Option<ErrorData> {
        if !self.enabled() || !matches!(method, "tasks/get" | "tasks/update" | "tasks/cancel") {
            return None;
        }
        if !modern(context) {
            return None;
        }
        if !context.client_capabilities().is_some_and(|client| client.supports_tasks()) {
            return Some(convert::tasks_missing());
        }
        Some(ErrorData::invalid_params(
            format!("the params of {method} are not as the specification has them"),
            None,
        ))
    }
}

/// The version of the protocol has tasks.
pub(super) fn modern(context: &RequestContext<RoleServer>) -> bool {
    let version = context.protocol_version();
    version.is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
}

/// The client wants tasks for this request.
pub(super) fn wanted(context: &RequestContext<RoleServer>) -> bool {
    modern(context) && context.meta.client_capabilities().is_some_and(|client| client.supports_tasks())
}

fn check_version<M: rmcp::model::ConstString>(context: &RequestContext<RoleServer>) -> Result<(), ErrorData> {
    if modern(context) { Ok(()) } else { Err(ErrorData::method_not_found::<M>()) }
}
