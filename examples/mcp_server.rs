//! An MCP server on Streamable HTTP, in as many replicas as you like. Its tool hands the work to a worker in another
//! process (`mcp_worker`), which reports progress and asks the user; everything reaches the client whichever replica it
//! is connected to.
//!
//! ```sh
//! cargo run --example mcp_server --features rmcp -- 127.0.0.1:8001 redis://localhost
//! ```

use axum::Router;
use mcp_courier::rmcp::{SessionLink, Sessions, session_id};
use mcp_courier::{CancellationToken, Courier, MessageId, Push, SessionId};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, SubscriptionFilter, Tool,
};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{RoleServer, ServerHandler};
use serde_json::json;

struct Reports {
    sessions: Sessions,
    /// Ties this handler's session to the courier, for as long as the handler lives.
    link: SessionLink,
}

impl ServerHandler for Reports {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_tool_list_changed().build())
    }

    // From here on, what any process pushes to this session reaches its client.
    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        match self.link.attach(&context).await {
            Ok(session) => eprintln!("serving session {session}"),
            Err(e) => eprintln!("the session is not served: {e}"),
        }
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = json!({
            "type": "object", "properties": { "topic": { "type": "string" } }, "required": ["topic"],
        });
        let schema = schema.as_object().cloned().unwrap_or_default();
        Ok(ListToolsResult::with_all_items(vec![Tool::new(
            "report",
            "Writes a report in the background",
            schema,
        )]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if request.name != "report" {
            return Err(ErrorData::invalid_params("no such tool", None));
        }
        let session = session_id(&context).ok_or_else(|| {
            ErrorData::invalid_request("this tool needs a session (2025-11-25 or older)", None)
        })?;
        let topic =
            request.arguments.as_ref().and_then(|all| all.get("topic")?.as_str()).unwrap_or("nothing");
        let token = context.meta.get_progress_token();
        let job = MessageId::new(format!("report-{:016x}", fastrand::u64(..))).map_err(internal)?;
        let work =
            json!({ "job": job.as_str(), "session": session.as_str(), "topic": topic, "token": token });
        // The workers' inbox is a queue like any other: the job is there until a worker has done it.
        let jobs = SessionId::new("jobs").map_err(internal)?;
        let push = Push::new(&jobs, work.to_string()).id(job.clone());
        self.sessions.courier().push(push).await.map_err(internal)?;
        Ok(CallToolResult::success(vec![ContentBlock::text(format!("started {job}"))]).into())
    }

    // Clients of 2026-07-28 listen on a stream instead of having a session.
    fn accepted_subscription_filter(&self, asked: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(asked.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        self.sessions.listen(context).await
    }
}

fn internal(e: mcp_courier::Error) -> ErrorData {
    ErrorData::internal_error(e.to_string(), None)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let address = args.next().unwrap_or_else(|| "127.0.0.1:8001".into());
    let url = args.next().unwrap_or_else(|| "redis://localhost".into());
    let prefix = args.next().unwrap_or_else(|| "courier".into());
    let courier = Courier::builder().prefix(prefix).connect(url).await?;

    let sessions = Sessions::new(&courier);
    let stop = CancellationToken::new();
    // `allowed_hosts` of rmcp's settings is for loopback names only: set it behind a balancer.
    let config =
        sessions.configure(StreamableHttpServerConfig::default().with_cancellation_token(stop.clone()));
    let factory = sessions.clone();
    let service = StreamableHttpService::new(
        move || Ok(Reports { sessions: factory.clone(), link: factory.link() }),
        sessions.manager(),
        config,
    );

    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on http://{}/mcp", listener.local_addr()?);
    let app = Router::new().nest_service("/mcp", service);
    axum::serve(listener, app)
        .with_graceful_shutdown(async move {
            let _ = tokio::signal::ctrl_c().await;
            // First give the sessions back, so that another replica can serve them; then end the streams.
            courier.shutdown(std::time::Duration::from_secs(5)).await;
            stop.cancel();
        })
        .await?;
    Ok(())
}
