//! A server with what the core scenarios of MCP's official conformance suite ask for (2026-07-28), built as any server on
//! this crate: rmcp's own behaviour is unchanged, and listen streams are fed from topics.
//!
//! ```sh
//! cargo run --example conformance_server --features rmcp -- 127.0.0.1:8009 memory://
//! .ci/conformance http://127.0.0.1:8009/mcp
//! ```

use axum::Router;
use mcp_courier::rmcp::{SessionLink, Sessions};
use mcp_courier::{Courier, Notification, Topic, TopicDelivery};
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ContentBlock,
    ErrorData, InputRequests, InputRequiredResult, ListPromptsResult, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, Prompt, ReadResourceRequestParams,
    ReadResourceResponse, ReadResourceResult, Resource, ResourceContents, ResourceTemplate,
    ServerCapabilities, ServerConfig, ServerNotification, SubscriptionFilter, Tool,
};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{RoleServer, ServerHandler};
use serde_json::{Value, json};

/// How long clients may keep a list, in milliseconds.
const TTL_MS: u64 = 1000;
const RESOURCE: &str = "test://static-text";

/// The handler.
pub(crate) struct Suite {
    /// What listens, and publishes.
    pub(crate) sessions: Sessions,
    /// The tie to its session.
    pub(crate) link: SessionLink,
}

impl Suite {
    async fn changed(&self, topic: Topic, notification: Notification) -> Result<CallToolResponse, ErrorData> {
        let topics = self.sessions.courier().topics();
        let published = topics.publish(&topic, &notification, TopicDelivery::Hint).await;
        published.map_err(|e| ErrorData::internal_error(e.to_string(), None))?;
        text("published")
    }
}

fn text(text: &str) -> Result<CallToolResponse, ErrorData> {
    Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
}

fn missing(capabilities: Value) -> ErrorData {
    let required: ClientCapabilities = serde_json::from_value(capabilities).unwrap_or_default();
    ErrorData::missing_required_client_capability(required)
}

impl ServerHandler for Suite {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .build();
        ServerConfig::new(capabilities)
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        if let Err(e) = self.link.attach(&context).await {
            eprintln!("the session is not served: {e}");
        }
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = [
            ("test_simple_text", "Answers a text"),
            ("test_missing_capability", "Needs sampling, and refuses without it"),
            ("test_streaming_elicitation", "Asks the user in its result"),
            ("test_logging_tool", "Logs for those who set a level"),
            ("test_trigger_tool_change", "Says that the tools changed"),
            ("test_trigger_prompt_change", "Says that the prompts changed"),
        ];
        let schema = json!({ "type": "object", "properties": {} }).as_object().cloned().unwrap_or_default();
        let tools = tools.map(|(name, what)| Tool::new(name, what, schema.clone())).to_vec();
        let list = ListToolsResult::with_all_items(tools);
        Ok(list.with_ttl_ms(TTL_MS).with_cache_scope(CacheScope::Public))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let declared = serde_json::to_value(context.client_capabilities()).unwrap_or_default();
        match &*request.name {
            "test_simple_text" => text("This is a simple text response for testing."),
            "test_missing_capability" if declared["sampling"].is_null() => {
                Err(missing(json!({ "sampling": {} })))
            }
            "test_missing_capability" => text("the client can sample"),
            "test_streaming_elicitation" if declared["elicitation"].is_null() => {
                Err(missing(json!({ "elicitation": {} })))
            }
            "test_streaming_elicitation" => {
                let schema = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
                let params = json!({ "mode": "form", "message": "Your name?", "requestedSchema": schema });
                let asked = json!({ "name": { "method": "elicitation/create", "params": params } });
                let asked: InputRequests = serde_json::from_value(asked)
                    .map_err(|e| ErrorData::internal_error(e.to_string(), None))?;
                Ok(InputRequiredResult::from_input_requests(asked).into())
            }
            "test_logging_tool" => {
                if let Some(level) = context.meta.get("io.modelcontextprotocol/logLevel") {
                    let log = json!({
                        "method": "notifications/message", "params": { "level": level, "data": "a line" },
                    });
                    if let Ok(log) = serde_json::from_value::<ServerNotification>(log) {
                        let _ = context.peer.send_notification(log).await;
                    }
                }
                text("logged")
            }
            "test_trigger_tool_change" => {
                self.changed(Topic::tools(), Notification::tools_list_changed()).await
            }
            "test_trigger_prompt_change" => {
                self.changed(Topic::prompts(), Notification::prompts_list_changed()).await
            }
            other => Err(ErrorData::invalid_params(format!("there is no tool {other}"), None)),
        }
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let prompts = vec![Prompt::new("test_simple_prompt", Some("A prompt without arguments"), None)];
        Ok(ListPromptsResult::with_all_items(prompts)
            .with_ttl_ms(TTL_MS)
            .with_cache_scope(CacheScope::Public))
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let resources = vec![Resource::new(RESOURCE, "A text")];
        Ok(ListResourcesResult::with_all_items(resources)
            .with_ttl_ms(TTL_MS)
            .with_cache_scope(CacheScope::Public))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let templates = vec![ResourceTemplate::new("test://template/{id}/data", "Data of an id")];
        let list = ListResourceTemplatesResult::with_all_items(templates);
        Ok(list.with_ttl_ms(TTL_MS).with_cache_scope(CacheScope::Public))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        if request.uri != RESOURCE {
            return Err(ErrorData::resource_not_found(format!("there is no {}", request.uri), None));
        }
        let contents =
            vec![ResourceContents::text("This is the content of the static text resource.", RESOURCE)];
        let read =
            ReadResourceResult::new(contents).with_ttl_ms(TTL_MS).with_cache_scope(CacheScope::Private);
        Ok(read.into())
    }

    fn accepted_subscription_filter(&self, asked: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(asked.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        self.sessions.listen(context).await
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let address = args.next().unwrap_or_else(|| "127.0.0.1:8009".into());
    let courier = Courier::connect(args.next().unwrap_or_else(|| "memory://".into())).await?;
    let sessions = Sessions::new(&courier);
    let config = sessions.configure(StreamableHttpServerConfig::default());
    let factory = sessions.clone();
    let service = StreamableHttpService::new(
        move || Ok(Suite { sessions: factory.clone(), link: factory.link() }),
        sessions.manager(),
        config,
    );
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on http://{}/mcp", listener.local_addr()?);
    axum::serve(listener, Router::new().nest_service("/mcp", service)).await?;
    Ok(())
}
