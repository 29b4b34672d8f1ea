//! The handler: jobs, tools that ask, and what the core scenarios of the suite want.

use std::sync::Arc;

use mcp_courier::rmcp::Sessions;
use rmcp::handler::server::tool::{ToolCallContext, ToolRouter};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, GetPromptRequestParams, GetPromptResponse, Implementation,
    ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, Prompt, ReadResourceRequestParams, ReadResourceResponse, RequestStateCodec,
    ServerConfig, SubscriptionFilter, Tool,
};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::json;

use crate::core::Suite;
use crate::rounds;

/// Cheap to make: rmcp makes one for each request.
pub(crate) struct Server {
    core: Suite,
    jobs: ToolRouter<Self>,
    codec: Arc<RequestStateCodec>,
}

impl Server {
    pub(crate) fn new(sessions: &Sessions) -> std::io::Result<Self> {
        // For the example. All replicas of a server need the same, and nobody else may know it.
        let key =
            std::env::var("STATE_KEY").unwrap_or_else(|_| "an example's key, known to everybody".into());
        let codec = RequestStateCodec::try_new(key).map_err(std::io::Error::other)?;
        let core = Suite { sessions: sessions.clone(), link: sessions.link() };
        Ok(Self { core, jobs: Self::jobs(), codec: Arc::new(codec) })
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        // The name is the group of this server's tasks.
        let mut info = self.core.get_info();
        info.server_info = Implementation::new("durable-tasks-example", env!("CARGO_PKG_VERSION"));
        info
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.core.on_initialized(context).await;
    }

    async fn list_tools(
        &self,
        page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut list = self.core.list_tools(page, context).await?;
        list.tools.extend(self.jobs.list_all());
        let schema = json!({ "type": "object", "properties": {} }).as_object().cloned().unwrap_or_default();
        let asking = rounds::TOOLS.map(|kind| format!("{}{kind}", rounds::PREFIX));
        list.tools.extend(asking.map(|name| Tool::new(name, "Asks in its result", schema.clone())));
        Ok(list)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.jobs.get(name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if self.jobs.has_route(&request.name) {
            return self.jobs.call(ToolCallContext::new(self, request, context)).await;
        }
        match rounds::call(&self.codec, &request, context.client_capabilities()) {
            Some(answer) => answer,
            None => self.core.call_tool(request, context).await,
        }
    }

    async fn list_prompts(
        &self,
        page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let mut list = self.core.list_prompts(page, context).await?;
        list.prompts.push(Prompt::new(rounds::PROMPT, Some("Asks in its result"), None));
        Ok(list)
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        if request.name != rounds::PROMPT {
            return self.core.get_prompt(request, context).await;
        }
        Ok(match rounds::prompt(&request.input_responses)? {
            Ok(prompt) => prompt.into(),
            Err(asked) => asked.into(),
        })
    }

    async fn list_resources(
        &self,
        page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        self.core.list_resources(page, context).await
    }

    async fn list_resource_templates(
        &self,
        page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        self.core.list_resource_templates(page, context).await
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        self.core.read_resource(request, context).await
    }

    fn accepted_subscription_filter(&self, asked: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        self.core.accepted_subscription_filter(asked)
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        self.core.listen(context).await
    }
}
