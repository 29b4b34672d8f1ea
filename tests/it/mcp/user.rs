//! A user behind an rmcp client.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::model::{
    ClientCapabilities, ClientConfig, CustomNotification, ElicitRequestParams, ElicitResult,
    ElicitationAction, ErrorData, Implementation, NotificationMetaObject, ProgressNotificationParam,
};
use rmcp::service::{NotificationContext, RequestContext, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{ClientHandler, RoleClient, ServiceExt};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::support::wait::wait_until;

/// A user who answers when and what the test says, and a client that writes down what it hears.
#[derive(Clone)]
pub struct User {
    pub asked: Arc<Mutex<Vec<String>>>,
    pub heard: Arc<Mutex<Vec<Value>>>,
    pub say: watch::Sender<Option<(ElicitationAction, Option<Value>)>>,
    pub able: bool,
}

impl User {
    pub fn silent() -> Self {
        Self { asked: Arc::default(), heard: Arc::default(), say: watch::Sender::new(None), able: true }
    }

    pub fn saying(action: ElicitationAction, content: Option<Value>) -> Self {
        let user = Self::silent();
        user.say.send_replace(Some((action, content)));
        user
    }

    pub async fn connect(&self, url: &str) -> RunningService<RoleClient, Self> {
        self.clone().serve(StreamableHttpClientTransport::from_uri(url)).await.expect("the server answers")
    }

    pub async fn wait_asked(&self, count: usize) {
        wait_until(&format!("{count} questions"), Duration::from_secs(20), || async {
            let asked = self.asked.lock().expect("not poisoned").len();
            if asked >= count { Ok(()) } else { Err(format!("{asked}")) }
        })
        .await;
    }
}

impl User {
    /// Until it hears a notification that begins so; `message` and `data` are looked at.
    pub async fn wait_text(&self, begin: &str) -> String {
        wait_until(begin, Duration::from_secs(30), || async {
            let heard = self.heard.lock().expect("not poisoned");
            let texts = heard
                .iter()
                .filter_map(|one| one["params"]["data"].as_str().or(one["params"]["message"].as_str()));
            texts
                .clone()
                .find(|text| text.starts_with(begin))
                .map(str::to_owned)
                .ok_or_else(|| format!("{heard:?}"))
        })
        .await
    }
}

impl ClientHandler for User {
    fn get_info(&self) -> ClientConfig {
        let capabilities = if self.able {
            ClientCapabilities::builder().enable_elicitation().build()
        } else {
            ClientCapabilities::default()
        };
        ClientConfig::new(capabilities, Implementation::new("user", "0"))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let message =
            serde_json::to_value(&request).expect("JSON")["message"].as_str().unwrap_or_default().to_owned();
        self.asked.lock().expect("not poisoned").push(message);
        let mut say = self.say.subscribe();
        let (action, content) = say.wait_for(Option::is_some).await.expect("alive").clone().expect("some");
        let result = ElicitResult::new(action);
        Ok(match content {
            Some(content) => result.with_content(content),
            None => result,
        })
    }

    async fn on_progress(&self, p: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.heard
            .lock()
            .expect("not poisoned")
            .push(json!({ "method": "notifications/progress", "params": p }));
    }

    async fn on_custom_notification(&self, n: CustomNotification, context: NotificationContext<RoleClient>) {
        // rmcp takes `_meta` out of the params.
        let meta = context.extensions.get::<NotificationMetaObject>();
        let heard = json!({ "method": n.method, "params": n.params, "meta": meta });
        self.heard.lock().expect("not poisoned").push(heard);
    }
}
