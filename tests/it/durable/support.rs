//! A server with a tool of every kind, replicas and workers of it, and a client that writes its requests by hand.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use mcp_courier::rmcp::{DurableTasks, InTask, TaskHttp, TaskLeg, TaskMode, VerifiedCaller};
use mcp_courier::tasks::Worker;
use mcp_courier::{CancellationToken, Courier};
use rmcp::handler::server::tool::{InputResponses, RequestState, ToolCallContext, ToolRouter};
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, CustomRequest, CustomResult,
    ErrorData, Implementation, InputRequest, InputRequests, InputRequiredResult, JsonObject, ListToolsResult,
    PaginatedRequestParams, ProgressNotificationParam, ServerCapabilities, ServerConfig, SubscriptionFilter,
    Tool,
};
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{RoleServer, ServerHandler, schemars, tool, tool_router};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::mcp::support::Events;
use crate::support::wait::wait_until;

pub type Answer = Result<CallToolResponse, ErrorData>;

/// What tools did, whoever ran them.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub fn note(&self, what: impl Into<String>) {
        self.0.lock().expect("not poisoned").push(what.into());
    }

    pub fn all(&self) -> Vec<String> {
        self.0.lock().expect("not poisoned").clone()
    }

    pub fn count(&self, what: &str) -> usize {
        self.all().iter().filter(|noted| *noted == what).count()
    }

    pub async fn wait(&self, what: &str, count: usize) {
        wait_until(&format!("{what} x {count}"), Duration::from_secs(20), || async {
            if self.count(what) >= count { Ok(()) } else { Err(format!("{:?}", self.all())) }
        })
        .await;
    }
}

#[derive(Deserialize, schemars::JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub struct Sum {
    a: i64,
    #[serde(default)]
    b: i64,
    #[serde(default)]
    note: Option<String>,
}

/// The server. Its name is its tasks' group.
#[derive(Clone)]
pub struct Tools {
    name: String,
    pub log: Log,
    /// What `gated` waits for.
    pub gate: CancellationToken,
    router: ToolRouter<Self>,
}

fn text(text: impl Into<String>) -> Answer {
    Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
}

pub fn question(message: &str) -> Value {
    let schema = json!({ "type": "object", "properties": { "value": { "type": "string" } } });
    json!({
        "method": "elicitation/create",
        "params": { "mode": "form", "message": message, "requestedSchema": schema },
    })
}

fn ask(names: &[&str], state: Option<String>) -> Answer {
    let requests: BTreeMap<_, _> = names.iter().map(|name| (*name, question(name))).collect();
    let requests: InputRequests = serde_json::from_value(json!(requests)).expect("questions");
    let mut asked = InputRequiredResult::from_input_requests(requests);
    asked.request_state = state;
    Ok(asked.into())
}

#[tool_router]
impl Tools {
    #[tool]
    async fn sum(&self, Parameters(Sum { a, b, note }): Parameters<Sum>) -> Answer {
        self.log.note("sum");
        text(format!("{} {}", a + b, note.unwrap_or_default()))
    }

    /// The arguments as they came.
    #[tool]
    async fn raw(&self, arguments: JsonObject) -> Answer {
        text(serde_json::to_string(&arguments).expect("JSON"))
    }

    #[tool]
    async fn gated(&self, context: RequestContext<RoleServer>) -> Answer {
        self.log.note("gated");
        tokio::select! {
            () = self.gate.cancelled() => text("the gate is open"),
            () = context.ct.cancelled() => Err(ErrorData::internal_error("cancelled", None)),
        }
    }

    /// Does not hear of cancelling.
    #[tool]
    async fn deaf(&self) -> Answer {
        self.log.note("deaf");
        self.gate.cancelled().await;
        text("done all the same")
    }

    #[tool]
    async fn tool_error(&self) -> Answer {
        Ok(CallToolResult::error(vec![ContentBlock::text("no luck")]).into())
    }

    #[tool]
    async fn rpc_error(&self) -> Answer {
        Err(ErrorData::new(rmcp::model::ErrorCode(-32042), "broken", Some(json!({ "part": 7 }))))
    }

    #[tool]
    async fn panics_once(&self, context: RequestContext<RoleServer>) -> Answer {
        let attempt = TaskLeg::of(&context).map_or(1, |leg| leg.attempt);
        assert!(attempt > 1, "as asked");
        text(format!("attempt {attempt}"))
    }

    /// Two rounds: both at once, then one more, with a state.
    #[tool]
    async fn asks(
        &self,
        InputResponses(answers): InputResponses,
        RequestState(state): RequestState,
        context: RequestContext<RoleServer>,
    ) -> Answer {
        let answers = answers.unwrap_or_default();
        self.log.note(format!("asks {}", TaskLeg::of(&context).map_or(0, |leg| leg.number)));
        let value = |name: &str| answers[name]["content"]["value"].as_str().unwrap_or("nothing").to_owned();
        match state {
            None => ask(&["x", "y"], Some("first".into())),
            Some(state) if state == "first" => {
                ask(&["x"], Some(format!("{} and {}", value("x"), value("y"))))
            }
            Some(state) => text(format!("{state}, then {}", value("x"))),
        }
    }

    /// Asks for what the client may not be able to do.
    #[tool]
    async fn samples(&self, InputResponses(answers): InputResponses) -> Answer {
        if answers.is_some() {
            return text("sampled");
        }
        let content = json!({ "type": "text", "text": "Hello" });
        let params = json!({ "messages": [{ "role": "user", "content": content }], "maxTokens": 5 });
        let asked = json!({ "s": { "method": "sampling/createMessage", "params": params } });
        let asked: InputRequests = serde_json::from_value(asked).expect("a request");
        Ok(InputRequiredResult::from_input_requests(asked).into())
    }

    /// Asks in place.
    #[tool]
    async fn waits(&self, InTask(leg): InTask) -> Answer {
        let Some(leg) = leg else { return text("no task") };
        self.log.note("waits");
        let asked: InputRequest = serde_json::from_value(question("q")).expect("a question");
        let answer = leg.request_input("q", asked).await;
        let answer = answer.inspect_err(|exit| self.log.note(format!("exit {exit}")))?;
        text(answer["content"]["value"].as_str().unwrap_or("nothing"))
    }

    #[tool]
    async fn progresses(&self, context: RequestContext<RoleServer>) -> Answer {
        let token = context.meta.get_progress_token().expect("a task has one");
        let progress = ProgressNotificationParam::new(token, 1.0).with_total(2.0);
        context.peer.notify_progress(progress).await.expect("taken");
        self.log.note("half");
        self.gate.cancelled().await;
        text("whole")
    }

    /// The body runs in the task, what is before it in the request.
    #[tool]
    async fn begins(
        &self,
        Parameters(Sum { a, .. }): Parameters<Sum>,
        InTask(leg): InTask,
        context: RequestContext<RoleServer>,
    ) -> Answer {
        self.log.note(format!("begins {}", leg.is_some()));
        let version = context.protocol_version().map(|version| version.to_string());
        text(format!("{a} {}", version.unwrap_or_default()))
    }

    /// Asks before the task, works in it.
    #[tool]
    async fn asks_first(
        &self,
        InputResponses(answers): InputResponses,
        context: RequestContext<RoleServer>,
    ) -> Answer {
        let Some(answers) = answers else { return ask(&["who"], Some("asked".into())) };
        if answers["who"]["action"] == "decline" {
            return Err(ErrorData::invalid_params("then not", None));
        }
        TaskLeg::begin(&context)?;
        self.log.note("in the task");
        text(answers["who"]["content"]["value"].as_str().unwrap_or("nobody"))
    }

    /// Who owns the task, and what was kept of the request.
    #[tool]
    async fn who(&self, context: RequestContext<RoleServer>) -> Answer {
        let Some(leg) = TaskLeg::of(&context) else { return text("no task") };
        let secret = leg.context.headers.get("x-secret").cloned().unwrap_or_else(|| "none".into());
        let elicits = context.client_capabilities().is_some_and(|client| client.elicitation.is_some());
        let trace = leg.context.trace.get("traceparent").cloned().unwrap_or_default();
        text(format!("{} {secret} {elicits} {trace}", leg.scope.as_str()))
    }

    #[tool]
    async fn plain(&self) -> Answer {
        text("plain")
    }
}

impl Tools {
    pub fn new(name: &str) -> Self {
        let (log, gate) = (Log::default(), CancellationToken::new());
        Self { name: name.into(), log, gate, router: Self::tool_router() }
    }
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_tool_list_changed().build();
        ServerConfig::new(capabilities).with_server_info(Implementation::new(&self.name, "1"))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.router.list_all()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.router.get(name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.router.call(ToolCallContext::new(self, request, context)).await
    }

    fn accepted_subscription_filter(&self, asked: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(asked.clone())
    }

    /// Says once that the tools changed.
    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        self.log.note("listen");
        let changed = rmcp::model::ToolListChangedNotification::default();
        let changed = rmcp::model::ServerNotification::ToolListChangedNotification(changed);
        if context.accepted().tools_list_changed == Some(true) {
            context.sink().send(changed).await.map_err(|e| ErrorData::internal_error(e.to_string(), None))?;
        }
        tokio::select! {
            () = context.cancelled() => self.log.note("listen: gone"),
            () = self.gate.cancelled() => self.log.note("listen: over"),
        }
        Ok(())
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        Ok(CustomResult::new(json!({ "resultType": "complete", "method": request.method })))
    }
}

/// As the tests want it: every tool that may be a task is one.
pub fn durable(tools: &Tools, courier: &Courier) -> DurableTasks<Tools> {
    let optional = [
        "gated",
        "deaf",
        "tool_error",
        "rpc_error",
        "panics_once",
        "asks",
        "samples",
        "waits",
        "progresses",
        "who",
        "raw",
    ];
    let all = DurableTasks::new(tools.clone(), courier)
        .tool::<Sum>("sum", TaskMode::Optional)
        .tool_that_begins("begins", TaskMode::Optional)
        .tool_that_begins("asks_first", TaskMode::Required)
        .tool::<JsonObject>("plain", TaskMode::Forbidden);
    let all = optional.iter().fold(all, |all, name| all.tool::<JsonObject>(*name, TaskMode::Optional));
    all.settings(|tasks| tasks.ttl(Duration::from_secs(60)).poll_interval(Duration::from_millis(250)))
}

/// Makes a tool required.
pub fn required(durable: DurableTasks<Tools>, name: &str) -> DurableTasks<Tools> {
    durable.tool::<JsonObject>(name, TaskMode::Required)
}

/// A replica over HTTP. A request with `x-caller: client|subject` is that caller's, as if a layer had verified a token.
pub struct Replica {
    pub url: String,
    stop: CancellationToken,
}

impl Replica {
    pub async fn start<H: ServerHandler>(durable: &DurableTasks<H>) -> Self {
        Self::start_with(durable, |service| TaskHttp::new(service).fill_names(true)).await
    }

    pub async fn start_with<H, S>(
        durable: &DurableTasks<H>,
        layer: impl FnOnce(StreamableHttpService<DurableTasks<H>, LocalSessionManager>) -> S,
    ) -> Self
    where
        H: ServerHandler,
        S: tower_service::Service<Request, Error = std::convert::Infallible> + Clone + Send + Sync + 'static,
        S::Response: axum::response::IntoResponse,
        S::Future: Send + 'static,
    {
        let stop = CancellationToken::new();
        let config = StreamableHttpServerConfig::default().with_cancellation_token(stop.clone());
        let durable = durable.clone();
        let service = StreamableHttpService::new(move || Ok(durable.clone()), Arc::default(), config);
        let app = Router::new().nest_service("/mcp", layer(service)).layer(axum::middleware::from_fn(verify));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
        let served = axum::serve(listener, app).with_graceful_shutdown(stop.clone().cancelled_owned());
        tokio::spawn(async move { served.await });
        Self { url, stop }
    }

    pub fn stop(&self) {
        self.stop.cancel();
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn verify(mut request: Request, next: Next) -> Response {
    let caller = request.headers().get("x-caller").and_then(|caller| caller.to_str().ok());
    if let Some((client, subject)) = caller.and_then(|caller| caller.split_once('|')) {
        let caller = VerifiedCaller::new(client, subject);
        request.extensions_mut().insert(caller);
    }
    next.run(request).await
}

/// A client of 2026-07-28, as little of one as there can be.
#[derive(Clone)]
pub struct Client {
    pub http: reqwest::Client,
    pub capabilities: Value,
    pub version: String,
    pub caller: Option<String>,
    pub headers: Vec<(&'static str, String)>,
    pub meta: Vec<(&'static str, Value)>,
    /// Sends the header that the extension demands.
    pub names: bool,
}

/// One that can do everything.
pub fn client() -> Client {
    Client {
        http: reqwest::Client::new(),
        capabilities: json!({ "elicitation": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } }),
        version: "2026-07-28".into(),
        caller: None,
        headers: Vec::new(),
        meta: Vec::new(),
        names: true,
    }
}

/// The same without the tasks extension.
pub fn plain_client() -> Client {
    Client { capabilities: json!({ "elicitation": {} }), ..client() }
}

impl Client {
    pub fn caller(mut self, caller: &str) -> Self {
        self.caller = Some(caller.into());
        self
    }

    pub fn body(&self, method: &str, mut params: Value) -> Value {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": self.version,
            "io.modelcontextprotocol/clientInfo": { "name": "by hand", "version": "0" },
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
        });
        for (name, value) in &self.meta {
            params["_meta"][*name] = value.clone();
        }
        json!({ "jsonrpc": "2.0", "id": "r", "method": method, "params": params })
    }

    pub async fn post(&self, url: &str, method: &str, params: Value) -> reqwest::Result<reqwest::Response> {
        let name = ["name", "taskId"].iter().find_map(|name| params[*name].as_str()).map(str::to_owned);
        let body = self.body(method, params);
        let mut request =
            self.http.post(url).header("accept", "application/json, text/event-stream").json(&body);
        request = request.header("mcp-protocol-version", &self.version).header("mcp-method", method);
        if let Some(name) = name.filter(|_| self.names) {
            request = request.header("mcp-name", name);
        }
        // A stream has its own deadline, for each event.
        if method != "subscriptions/listen" {
            request = request.timeout(Duration::from_secs(30));
        }
        if let Some(caller) = &self.caller {
            request = request.header("x-caller", caller);
        }
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        request.send().await
    }

    /// The status, and the answer: the whole message.
    pub async fn send(&self, url: &str, method: &str, params: Value) -> (u16, Value) {
        self.try_send(url, method, params).await.expect("the server answers")
    }

    pub async fn try_send(&self, url: &str, method: &str, params: Value) -> Result<(u16, Value), String> {
        let answer = self.post(url, method, params).await.map_err(|e| e.to_string())?;
        let status = answer.status().as_u16();
        let text = answer.text().await.map_err(|e| e.to_string())?;
        let data = text.lines().filter_map(|line| line.strip_prefix("data:")).chain([text.as_str()]);
        let mut messages = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
        let answer = messages.find(|message| message["id"] == "r" || message["error"].is_object());
        answer.map(|answer| (status, answer)).ok_or_else(|| format!("{status}: no answer in {text}"))
    }

    /// The result.
    pub async fn ok(&self, url: &str, method: &str, params: Value) -> Value {
        let (status, answer) = self.send(url, method, params).await;
        assert!(status == 200 && answer["result"].is_object(), "{status} {answer}");
        answer["result"].clone()
    }

    /// The error.
    pub async fn err(&self, url: &str, method: &str, params: Value) -> Value {
        let (_, answer) = self.send(url, method, params).await;
        assert!(answer["error"].is_object(), "{answer}");
        answer["error"].clone()
    }

    pub async fn call(&self, url: &str, tool: &str, arguments: Value) -> Value {
        self.ok(url, "tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    /// Calls a tool that becomes a task; its id.
    pub async fn task(&self, url: &str, tool: &str, arguments: Value) -> String {
        let made = self.call(url, tool, arguments).await;
        assert_eq!(made["resultType"], "task", "{made}");
        made["taskId"].as_str().expect("an id").to_owned()
    }

    pub async fn get(&self, url: &str, id: &str) -> Value {
        self.ok(url, "tasks/get", json!({ "taskId": id })).await
    }

    pub async fn wait(&self, url: &str, id: &str, status: &str) -> Value {
        wait_until(status, Duration::from_secs(20), || async {
            let task = self.get(url, id).await;
            if task["status"] == status { Ok(task) } else { Err(task.to_string()) }
        })
        .await
    }

    /// Answers every open question with the value that belongs to its name, which the key begins with.
    pub async fn answer(&self, url: &str, id: &str, values: &[(&str, &str)]) {
        let task = self.wait(url, id, "input_required").await;
        let open = task["inputRequests"].as_object().expect("requests").keys();
        let answers: BTreeMap<_, _> = open
            .filter_map(|key| {
                let (_, value) = values.iter().find(|(name, _)| key.starts_with(name))?;
                Some((key.clone(), accept(value)))
            })
            .collect();
        assert!(!answers.is_empty(), "{task}");
        self.ok(url, "tasks/update", json!({ "taskId": id, "inputResponses": answers })).await;
    }

    pub async fn listen(&self, url: &str, notifications: Value) -> Events {
        let answer = self.post(url, "subscriptions/listen", json!({ "notifications": notifications })).await;
        let answer = answer.expect("the server answers");
        assert_eq!(answer.status(), 200);
        Events::of(answer)
    }
}

pub fn accept(value: &str) -> Value {
    json!({ "action": "accept", "content": { "value": value } })
}

/// The text of a tool's result.
pub fn text_of(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {result}"))
}

/// A worker with a short lease, for tests in which workers die.
pub async fn work<H: ServerHandler>(durable: &DurableTasks<H>) -> Worker {
    let builder = durable.worker().lease(Duration::from_millis(600)).backoff(Duration::from_millis(20));
    durable.check().expect("the settings are good");
    builder.start(durable.legs()).await.expect("started")
}

/// What most tests have: one server with a worker in it, and a client.
pub struct Simple {
    pub tools: Tools,
    pub url: String,
    replica: Replica,
    worker: Worker,
}

impl Simple {
    pub async fn start(courier: &Courier) -> Self {
        let tools = Tools::new("simple");
        let durable = durable(&tools, courier);
        let worker = work(&durable).await;
        let replica = Replica::start(&durable).await;
        Self { url: replica.url.clone(), tools, replica, worker }
    }

    pub async fn stop(self) {
        self.replica.stop();
        self.tools.gate.cancel();
        self.worker.shutdown(Duration::from_secs(5)).await;
    }
}
