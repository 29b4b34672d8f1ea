//! Every method of rmcp's handler trait: to the wrapped handler, except for what tasks are about.
//!
//! A method that a later rmcp adds would fall to its default here, and the wrapped handler's would never be called. The test
//! at the end compares the names with rmcp's source.

use std::borrow::Cow;

#[allow(deprecated, reason = "what rmcp deprecated is passed on as long as it is there")]
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, CancelledNotificationParam,
    CompleteRequestParams, CompleteResult, CustomNotification, CustomRequest, CustomResult, DiscoverResult,
    GetPromptRequestParams, GetPromptResponse, GetSkillRequestParams, GetSkillResult, GetTaskParams,
    GetTaskResult, InitializeRequestParams, InitializeResult, ListPromptsResult, ListResourceTemplatesResult,
    ListResourcesResult, ListSkillsResult, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ProtocolVersion, ReadResourceDirectoryRequestParams,
    ReadResourceDirectoryResult, ReadResourceRequestParams, ReadResourceResponse, ServerConfig,
    SetLevelRequestParams, SubscribeRequestParams, SubscriptionFilter, Tool, UnsubscribeRequestParams,
    UpdateTaskParams,
};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};

use super::{DurableTasks, convert};

type Context = RequestContext<RoleServer>;
type Noted = NotificationContext<RoleServer>;
type Answer<T> = Result<T, ErrorData>;

#[allow(deprecated, reason = "what rmcp deprecated is passed on as long as it is there")]
impl<H: ServerHandler> ServerHandler for DurableTasks<H> {
    fn get_info(&self) -> ServerConfig {
        let mut info = self.handler.get_info();
        if self.enabled() {
            convert::advertise(&mut info.capabilities);
        }
        info
    }

    async fn discover(&self, context: Context) -> Answer<DiscoverResult> {
        self.started()?;
        let mut found = self.handler.discover(context).await?;
        if self.enabled() {
            convert::advertise(&mut found.capabilities);
        }
        Ok(found)
    }

    /// The handshake of versions that have no tasks: the extension is not advertised in it.
    async fn initialize(
        &self,
        params: InitializeRequestParams,
        context: Context,
    ) -> Answer<InitializeResult> {
        self.started()?;
        let mut agreed = self.handler.initialize(params, context).await?;
        if self.enabled() {
            convert::conceal(&mut agreed.capabilities);
        }
        Ok(agreed)
    }

    async fn call_tool(&self, params: CallToolRequestParams, context: Context) -> Answer<CallToolResponse> {
        self.call(params, context).await
    }

    async fn get_task(&self, params: GetTaskParams, context: Context) -> Answer<GetTaskResult> {
        self.get(params, context).await
    }

    async fn update_task(&self, params: UpdateTaskParams, context: Context) -> Answer<()> {
        self.update(params, context).await
    }

    async fn cancel_task(&self, params: CancelTaskParams, context: Context) -> Answer<()> {
        self.cancel(params, context).await
    }

    async fn on_custom_request(&self, request: CustomRequest, context: Context) -> Answer<CustomResult> {
        if request.method == super::http::LISTEN {
            return self.listen_with_tasks(request, context).await;
        }
        match self.malformed(&request.method, &context) {
            Some(error) => Err(error),
            None => self.handler.on_custom_request(request, context).await,
        }
    }

    async fn ping(&self, context: Context) -> Answer<()> {
        self.handler.ping(context).await
    }

    fn negotiate_initialize(&self, params: &InitializeRequestParams) -> Answer<InitializeResult> {
        self.handler.negotiate_initialize(params)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        self.handler.supported_protocol_versions()
    }

    async fn complete(&self, params: CompleteRequestParams, context: Context) -> Answer<CompleteResult> {
        self.handler.complete(params, context).await
    }

    async fn set_level(&self, params: SetLevelRequestParams, context: Context) -> Answer<()> {
        self.handler.set_level(params, context).await
    }

    async fn get_prompt(
        &self,
        params: GetPromptRequestParams,
        context: Context,
    ) -> Answer<GetPromptResponse> {
        self.handler.get_prompt(params, context).await
    }

    async fn list_prompts(
        &self,
        page: Option<PaginatedRequestParams>,
        context: Context,
    ) -> Answer<ListPromptsResult> {
        self.handler.list_prompts(page, context).await
    }

    async fn list_resources(
        &self,
        page: Option<PaginatedRequestParams>,
        context: Context,
    ) -> Answer<ListResourcesResult> {
        self.handler.list_resources(page, context).await
    }

    async fn list_resource_templates(
        &self,
        page: Option<PaginatedRequestParams>,
        context: Context,
    ) -> Answer<ListResourceTemplatesResult> {
        self.handler.list_resource_templates(page, context).await
    }

    async fn read_resource(
        &self,
        params: ReadResourceRequestParams,
        context: Context,
    ) -> Answer<ReadResourceResponse> {
        self.handler.read_resource(params, context).await
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        self.handler.accepted_subscription_filter(requested)
    }

    async fn listen(&self, context: SubscriptionContext) -> Answer<()> {
        self.handler.listen(context).await
    }

    async fn subscribe(&self, params: SubscribeRequestParams, context: Context) -> Answer<()> {
        self.handler.subscribe(params, context).await
    }

    async fn unsubscribe(&self, params: UnsubscribeRequestParams, context: Context) -> Answer<()> {
        self.handler.unsubscribe(params, context).await
    }

    async fn list_tools(
        &self,
        page: Option<PaginatedRequestParams>,
        context: Context,
    ) -> Answer<ListToolsResult> {
        self.handler.list_tools(page, context).await
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.handler.get_tool(name)
    }

    async fn on_cancelled(&self, params: CancelledNotificationParam, context: Noted) {
        self.handler.on_cancelled(params, context).await;
    }

    async fn on_progress(&self, params: ProgressNotificationParam, context: Noted) {
        self.handler.on_progress(params, context).await;
    }

    async fn on_initialized(&self, context: Noted) {
        self.handler.on_initialized(context).await;
    }

    async fn on_roots_list_changed(&self, context: Noted) {
        self.handler.on_roots_list_changed(context).await;
    }

    async fn on_custom_notification(&self, notification: CustomNotification, context: Noted) {
        self.handler.on_custom_notification(notification, context).await;
    }

    async fn list_skills(
        &self,
        page: Option<PaginatedRequestParams>,
        context: Context,
    ) -> Answer<ListSkillsResult> {
        self.handler.list_skills(page, context).await
    }

    async fn get_skill(&self, params: GetSkillRequestParams, context: Context) -> Answer<GetSkillResult> {
        self.handler.get_skill(params, context).await
    }

    async fn read_resource_directory(
        &self,
        params: ReadResourceDirectoryRequestParams,
        context: Context,
    ) -> Answer<ReadResourceDirectoryResult> {
        self.handler.read_resource_directory(params, context).await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    /// Names of the functions in lines of Rust, at this depth of indentation.
    fn functions(source: &str, indent: usize) -> BTreeSet<String> {
        let methods = source.lines().filter(|line| line.len() - line.trim_start().len() == indent);
        let methods = methods.filter_map(|line| {
            let line = line.trim_start();
            line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "))
        });
        methods.filter_map(|rest| rest.split(['(', '<']).next()).map(str::to_owned).collect()
    }

    /// What lies between two lines, the first of them named by its beginning.
    fn between<'a>(source: &'a str, begin: &str, end: &str) -> &'a str {
        let from = source.find(begin).unwrap_or_else(|| panic!("no `{begin}`"));
        let to = source[from..].find(end).unwrap_or_else(|| panic!("no `{end}` after `{begin}`"));
        &source[from..from + to]
    }

    /// The folder of the rmcp that this crate is built with.
    fn folder_of_rmcp() -> PathBuf {
        let run = |variable: &str, program: &str, args: &[&str]| {
            let program = std::env::var_os(variable).unwrap_or_else(|| program.into());
            let answer = std::process::Command::new(program)
                .args(args)
                .current_dir(env!("CARGO_MANIFEST_DIR"))
                .output();
            let answer = answer.expect("it runs");
            assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
            String::from_utf8(answer.stdout).expect("text")
        };
        // What other platforms need is not there, and is not fetched for this.
        let version = run("RUSTC", "rustc", &["-vV"]);
        let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("a host");
        let args =
            ["metadata", "--format-version", "1", "--all-features", "--offline", "--filter-platform", host];
        let metadata: serde_json::Value = serde_json::from_str(&run("CARGO", "cargo", &args)).expect("JSON");
        let packages = metadata["packages"].as_array().expect("packages");
        let rmcp = packages.iter().find(|package| package["name"] == "rmcp").expect("rmcp is a dependency");
        let manifest = PathBuf::from(rmcp["manifest_path"].as_str().expect("a path"));
        manifest.parent().expect("a folder").to_owned()
    }

    #[test]
    fn every_method_of_rmcps_handler_is_passed_on() {
        let source = folder_of_rmcp().join("src/handler/server.rs");
        let source = std::fs::read_to_string(source).expect("rmcp's source");
        let trait_ = between(&source, "macro_rules! server_handler_methods {", "\n}\n");
        let theirs = functions(trait_, 8);
        assert!(theirs.len() > 30, "the trait was found: {theirs:?}");
        let ours = between(include_str!("forward.rs"), "impl<H: ServerHandler> ServerHandler for", "\n}\n");
        let ours = functions(ours, 4);
        assert_eq!(ours, theirs, "left: passed on by DurableTasks; right: rmcp's ServerHandler");
    }
}
