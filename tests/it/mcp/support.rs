//! A server that uses the crate, replicas of it, a proxy in front of them, and clients.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use futures_util::StreamExt;
use mcp_courier::rmcp::{SessionLink, Sessions, session_id};
use mcp_courier::{CancellationToken, Courier, SessionId};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientConfig, ContentBlock, CustomNotification,
    ErrorData, ServerCapabilities, ServerConfig,
};
use rmcp::service::{NotificationContext, RequestContext, RunningService};
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{StreamableHttpClientTransport, StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ClientHandler, RoleClient, RoleServer, ServerHandler, ServiceExt};
use serde_json::{Value, json};

use crate::support::wait::wait_until;

/// One tool, `session`, which answers the session's id; and the one line that ties a session to the courier.
pub struct TestServer {
    pub link: SessionLink,
}

impl ServerHandler for TestServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        ServerConfig::new(capabilities)
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.link.attach(&context).await.expect("the session is served");
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        match &*request.name {
            "session" => {
                let session = session_id(&context).map(|id| id.to_string()).unwrap_or_default();
                Ok(CallToolResult::success(vec![ContentBlock::text(session)]).into())
            }
            "forever" => {
                context.ct.cancelled().await;
                Err(ErrorData::internal_error("cancelled", None))
            }
            other => Err(ErrorData::invalid_params(format!("no tool {other}"), None)),
        }
    }
}

/// One replica of the server, in this runtime.
pub struct Replica {
    pub url: String,
    pub sessions: Sessions,
    pub stop: CancellationToken,
}

impl Replica {
    pub async fn start(courier: &Courier) -> Self {
        Self::serve(Sessions::new(courier)).await
    }

    pub async fn serve(sessions: Sessions) -> Self {
        let factory = sessions.clone();
        Self::with(sessions, move || Ok(TestServer { link: factory.link() })).await
    }

    /// With any handler.
    pub async fn with<H: ServerHandler>(
        sessions: Sessions,
        factory: impl Fn() -> std::io::Result<H> + Send + Sync + 'static,
    ) -> Self {
        let stop = CancellationToken::new();
        let config = StreamableHttpServerConfig::default()
            .with_cancellation_token(stop.clone())
            .with_sse_retry(Some(Duration::from_millis(50)));
        let service = StreamableHttpService::new(factory, sessions.manager(), sessions.configure(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let served = axum::serve(listener, Router::new().nest_service("/mcp", service));
        let stopping = stop.clone();
        tokio::spawn(async move { served.with_graceful_shutdown(stopping.cancelled_owned()).await });
        Self { url: format!("http://{address}/mcp"), sessions, stop }
    }

    /// How many sessions it serves.
    pub fn count(&self) -> usize {
        self.sessions.courier().subscribers().count()
    }

    pub async fn wait_count(&self, count: usize) {
        wait_until(&format!("{count} sessions"), Duration::from_secs(5), || async {
            if self.count() == count { Ok(()) } else { Err(format!("{}", self.count())) }
        })
        .await;
    }

    pub async fn shutdown(self) {
        self.stop.cancel();
        self.sessions.courier().shutdown(Duration::from_secs(5)).await;
    }
}

/// A client that writes down which notifications it gets, as JSON.
#[derive(Clone, Default)]
pub struct TestClient {
    pub heard: Arc<Mutex<Vec<Value>>>,
}

impl ClientHandler for TestClient {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::default()
    }

    async fn on_custom_notification(&self, n: CustomNotification, _: NotificationContext<RoleClient>) {
        self.note(json!({ "method": n.method, "params": n.params.unwrap_or_default() }));
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.note(json!({ "method": "notifications/tools/list_changed" }));
    }
}

impl TestClient {
    fn note(&self, notification: Value) {
        self.heard.lock().expect("not poisoned").push(notification);
    }

    pub async fn connect(&self, url: &str) -> RunningService<RoleClient, Self> {
        let mut config = StreamableHttpClientTransportConfig::with_uri(url);
        config.channel_buffer_capacity = 64;
        let transport = StreamableHttpClientTransport::from_config(config);
        self.clone().serve(transport).await.expect("the server answers")
    }

    /// The `n` of each notification so far.
    pub fn numbers(&self) -> Vec<i64> {
        let heard = self.heard.lock().expect("not poisoned");
        heard.iter().filter_map(|one| one["params"]["n"].as_i64()).collect()
    }

    pub async fn wait_numbers(&self, count: usize) -> Vec<i64> {
        wait_until(&format!("{count} notifications"), Duration::from_secs(20), || async {
            let numbers = self.numbers();
            if numbers.len() >= count { Ok(numbers) } else { Err(format!("{numbers:?}")) }
        })
        .await
    }
}

/// The id of a client's session.
pub async fn session_of(client: &RunningService<RoleClient, TestClient>) -> SessionId {
    let result = client.call_tool(CallToolRequestParams::new("session")).await.expect("the tool answers");
    let text = result.content[0].as_text().expect("a text").text.clone();
    SessionId::new(text).expect("a session id")
}

/// A numbered notification.
pub fn numbered(n: i64) -> mcp_courier::Notification {
    mcp_courier::Notification::new("notifications/test").param("n", n)
}

/// A proxy that gives each request to the next living replica.
pub struct Balancer {
    pub url: String,
    state: Arc<Targets>,
}

struct Targets {
    urls: Mutex<Vec<String>>,
    /// Who holds the newest GET stream.
    reader: Mutex<String>,
    next: AtomicUsize,
    client: reqwest::Client,
}

impl Balancer {
    pub async fn start(replicas: &[&Replica]) -> Self {
        Self::over(replicas.iter().map(|replica| replica.url.clone()).collect()).await
    }

    /// In front of servers in other processes.
    pub async fn over(urls: Vec<String>) -> Self {
        let client = reqwest::Client::new();
        let (urls, reader) = (Mutex::new(urls), Mutex::default());
        let state = Arc::new(Targets { urls, reader, next: AtomicUsize::new(0), client });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
        let app = Router::new().fallback(forward).with_state(state.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, state }
    }

    /// Gives requests to these from now on.
    pub fn set_targets(&self, replicas: &[&Replica]) {
        self.set_urls(replicas.iter().map(|replica| replica.url.clone()).collect());
    }

    pub fn set_urls(&self, urls: Vec<String>) {
        *self.state.urls.lock().expect("not poisoned") = urls;
    }

    /// The replica that the newest GET went to.
    pub fn reader(&self) -> String {
        self.state.reader.lock().expect("not poisoned").clone()
    }
}

async fn forward(State(state): State<Arc<Targets>>, request: Request) -> Response {
    let urls = state.urls.lock().expect("not poisoned").clone();
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 22).await.expect("a body");
    let mut headers = parts.headers;
    headers.remove("host");
    let mut why = String::new();
    for _ in 0..urls.len() {
        let target = &urls[state.next.fetch_add(1, Ordering::Relaxed) % urls.len()];
        let sent = state.client.request(parts.method.clone(), target).headers(headers.clone());
        match sent.body(body.clone()).send().await {
            Ok(answer) => {
                if parts.method == "GET" {
                    state.reader.lock().expect("not poisoned").clone_from(target);
                }
                let mut response = Response::builder().status(answer.status());
                for (name, value) in answer.headers() {
                    response = response.header(name, value);
                }
                return response.body(Body::from_stream(answer.bytes_stream())).expect("a response");
            }
            // It never got there: the next one may have it.
            Err(e) if e.is_connect() => why = e.to_string(),
            Err(e) => {
                why = e.to_string();
                break;
            }
        }
    }
    Response::builder().status(502).body(Body::from(why)).expect("a response")
}

/// A client by hand: one legacy session, whose streams are read event by event.
pub struct Plain {
    http: reqwest::Client,
    pub session: String,
}

/// An SSE stream.
pub struct Events {
    bytes: std::pin::Pin<Box<dyn futures_util::Stream<Item = reqwest::Result<axum::body::Bytes>> + Send>>,
    text: String,
}

/// One event with data.
#[derive(Clone, Debug)]
pub struct Event {
    pub id: String,
    pub message: Value,
}

impl Plain {
    pub async fn initialize(url: &str) -> Self {
        Self::initialize_with(url, json!({ "elicitation": {} })).await.0
    }

    /// With these capabilities; also what the server answered.
    pub async fn initialize_with(url: &str, capabilities: Value) -> (Self, Value) {
        let (plain, answer) = Self::try_initialize(url, capabilities).await;
        assert!(answer["result"].is_object(), "{answer}");
        plain.post(url, &json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        (plain, answer["result"].clone())
    }

    /// Whatever the server answers.
    pub async fn try_initialize(url: &str, capabilities: Value) -> (Self, Value) {
        let http = reqwest::Client::new();
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": capabilities,
            "clientInfo": { "name": "plain", "version": "0" },
        });
        let message = json!({ "jsonrpc": "2.0", "id": "i", "method": "initialize", "params": params });
        let answer = send(&http, url, None, &message).await;
        let session = answer.headers().get("mcp-session-id").and_then(|id| id.to_str().ok());
        let session = session.unwrap_or_default().to_owned();
        let answer = Events::of(answer).next().await.expect("an answer").message;
        (Self { http, session }, answer)
    }

    pub fn id(&self) -> SessionId {
        SessionId::new(&self.session).expect("a session id")
    }

    /// Sends a message; answers the status and, for a request, its stream.
    pub async fn post(&self, url: &str, message: &Value) -> (u16, Events) {
        let answer = send(&self.http, url, Some(&self.session), message).await;
        (answer.status().as_u16(), Events::of(answer))
    }

    /// Opens the standalone stream, or resumes one.
    pub async fn get(&self, url: &str, last_event_id: Option<&str>) -> Events {
        let mut request = self.http.get(url).header("accept", "text/event-stream");
        request =
            request.header("mcp-session-id", &self.session).header("mcp-protocol-version", "2025-11-25");
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        let answer = request.send().await.expect("the server answers");
        assert_eq!(answer.status(), 200);
        Events::of(answer)
    }

    pub async fn delete(&self, url: &str) {
        let request = self.http.delete(url).header("mcp-session-id", &self.session);
        let answer = request.header("mcp-protocol-version", "2025-11-25").send().await.expect("an answer");
        assert!(answer.status().is_success());
    }
}

async fn send(
    http: &reqwest::Client,
    url: &str,
    session: Option<&str>,
    message: &Value,
) -> reqwest::Response {
    let mut request = http.post(url).header("accept", "application/json, text/event-stream").json(message);
    if let Some(session) = session {
        request = request.header("mcp-session-id", session).header("mcp-protocol-version", "2025-11-25");
    }
    request.send().await.expect("the server answers")
}

impl Events {
    pub fn of(answer: reqwest::Response) -> Self {
        Self { bytes: Box::pin(answer.bytes_stream()), text: String::new() }
    }

    /// The next event that carries a message; `None` at the end of the stream, however it came.
    pub async fn next(&mut self) -> Option<Event> {
        // Not for each read: a server that only keeps the connection alive sends no event.
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            while let Some(end) = self.text.find("\n\n") {
                let event: String = self.text.drain(..end + 2).collect();
                let field = |name: &str| {
                    let lines = event.lines().filter_map(|line| line.strip_prefix(name));
                    lines.map(str::trim_start).collect::<String>()
                };
                if let Ok(message) = serde_json::from_str(&field("data:")) {
                    return Some(Event { id: field("id:"), message });
                }
            }
            let more = tokio::time::timeout_at(deadline, self.bytes.next()).await;
            let more = more.expect("an event or the end within 20 s")?.ok()?;
            self.text.push_str(std::str::from_utf8(&more).expect("UTF-8"));
        }
    }

    /// The next notification's `n`, and the event's id.
    pub async fn number(&mut self) -> (i64, String) {
        let event = self.next().await.expect("an event");
        (event.message["params"]["n"].as_i64().expect("a numbered notification"), event.id)
    }

    /// Reads up to a number, in order: what came before it may come again, and nothing that follows it may be first.
    pub async fn until(&mut self, n: i64) -> String {
        loop {
            let (got, id) = self.number().await;
            assert!(got <= n, "{got} came before {n}");
            if got == n {
                return id;
            }
        }
    }
}

/// The stream of a `subscriptions/listen` request of 2026-07-28, by hand.
pub async fn listen(http: &reqwest::Client, url: &str, notifications: &Value) -> Events {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "plain", "version": "0" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({ "notifications": notifications, "_meta": meta });
    let message =
        json!({ "jsonrpc": "2.0", "id": "sub", "method": "subscriptions/listen", "params": params });
    let request = http.post(url).header("accept", "application/json, text/event-stream").json(&message);
    let request =
        request.header("mcp-protocol-version", "2026-07-28").header("mcp-method", "subscriptions/listen");
    let answer = request.send().await.expect("the server answers");
    assert_eq!(answer.status(), 200);
    Events::of(answer)
}
