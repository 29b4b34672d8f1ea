//! A client of `mcp_server`: calls the tool, shows what it hears, and answers the question with the number it was given.
//!
//! ```sh
//! cargo run --example mcp_client -- http://127.0.0.1:8001/mcp 12
//! ```

#![allow(
    deprecated,
    reason = "logging is on its way out of MCP, and still what a client without a token gets"
)]

use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, ClientCapabilities, ClientConfig, CustomNotification, ElicitRequestParams,
    ElicitResult, ElicitationAction, ErrorData, Implementation, LoggingMessageNotificationParam,
    ProgressNotificationParam,
};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{ClientHandler, RoleClient, ServiceExt};
use serde_json::json;
use tokio::sync::Notify;

#[derive(Clone)]
struct User {
    /// Nothing: the user declines.
    pages: Option<u64>,
    done: Arc<Notify>,
}

impl User {
    fn hear(&self, message: &str) {
        println!("heard: {message}");
        if message.starts_with("a report") || message.starts_with("stopped") {
            self.done.notify_one();
        }
    }
}

impl ClientHandler for User {
    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder().enable_elicitation().build();
        ClientConfig::new(capabilities, Implementation::new("mcp_client", "1"))
    }

    async fn create_elicitation(
        &self,
        asked: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let asked = serde_json::to_value(&asked).unwrap_or_default();
        println!("asked: {} answering {:?}", asked["message"], self.pages);
        Ok(match self.pages {
            Some(pages) => {
                // The worker asks once more when it is a lot.
                let sure = !asked["requestedSchema"]["properties"]["sure"].is_null();
                let content = if sure { json!({ "sure": true }) } else { json!({ "pages": pages }) };
                ElicitResult::new(ElicitationAction::Accept).with_content(content)
            }
            None => ElicitResult::new(ElicitationAction::Decline),
        })
    }

    async fn on_progress(&self, p: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.hear(&p.message.unwrap_or_default());
    }

    #[allow(
        deprecated,
        reason = "logging is on its way out of MCP, and still what a client without a token gets"
    )]
    async fn on_logging_message(
        &self,
        p: LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.hear(p.data.as_str().unwrap_or_default());
    }

    async fn on_custom_notification(&self, n: CustomNotification, _: NotificationContext<RoleClient>) {
        println!("heard: {}", n.method);
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "http://127.0.0.1:8001/mcp".into());
    let user = User { pages: args.next().and_then(|n| n.parse().ok()), done: Arc::default() };
    let client = user.clone().serve(StreamableHttpClientTransport::from_uri(url)).await?;
    let arguments = json!({ "topic": "queues" }).as_object().cloned().unwrap_or_default();
    let result = client.call_tool(CallToolRequestParams::new("report").with_arguments(arguments)).await?;
    println!("answer: {}", result.content.first().and_then(|c| c.as_text()).map_or("", |t| &t.text));
    user.done.notified().await;
    client.cancel().await?;
    Ok(())
}
