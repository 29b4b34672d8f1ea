//! `subscriptions/listen` with `taskIds`: `notifications/tasks`, which rmcp's own subscriptions cannot carry.
//!
//! [`TaskHttp`](super::TaskHttp) renames such a request, so that it comes here with all that was asked for. What is not about
//! tasks goes on to the wrapped handler's `listen` by way of rmcp's dispatcher; both speak on the one stream.

use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use rmcp::model::{
    ClientJsonRpcMessage, CustomNotification, CustomRequest, CustomResult, ErrorCode, GetMeta, JsonObject,
    JsonRpcMessage, ServerJsonRpcMessage, ServerNotification, SubscriptionFilter,
    SubscriptionsListenRequestMethod, SubscriptionsListenResult, TaskStatusNotification,
    TaskStatusNotificationParams,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};

use super::calls::{modern, wanted};
use super::once::Once;
use super::{DurableTasks, convert};
use crate::Error;
use crate::tasks::{DetailedTask, Scope, TaskWatch};

/// Most tasks of one subscription; what is more is not acknowledged.
const MAX_TASKS: usize = 1000;
/// Looked up at a time.
const AT_A_TIME: usize = 16;
/// After Redis was out of reach.
const PAUSE: Duration = Duration::from_secs(1);

type Context = RequestContext<RoleServer>;
/// A task's next state, or its end.
type Next = Pin<Box<dyn Future<Output = Option<(TaskWatch, DetailedTask)>> + Send>>;

impl<H: ServerHandler> DurableTasks<H> {
    pub(super) async fn listen_with_tasks(
        &self,
        request: CustomRequest,
        context: Context,
    ) -> Result<CustomResult, ErrorData> {
        if !modern(&context) {
            return Err(ErrorData::method_not_found::<SubscriptionsListenRequestMethod>());
        }
        let (ids, others) = asked(request.params)?;
        let mut watches = Vec::new();
        if self.enabled() {
            if !wanted(&context) {
                return Err(convert::tasks_missing());
            }
            let scope = (self.shared.scope_of)(&context)?;
            watches = self.watch(&scope, ids).await?;
        }
        let (mut inner, mut accepted) = self.inner(others, &context).await?;
        if self.enabled() {
            accepted.insert("taskIds".into(), watches.iter().map(|watch| watch.id().as_str()).collect());
        }
        let acknowledged = json!({ "notifications": accepted });
        let acknowledged =
            CustomNotification::new("notifications/subscriptions/acknowledged", Some(acknowledged));
        if !send(&context, ServerNotification::CustomNotification(acknowledged)).await {
            return self.end(&context);
        }
        let mut states: FuturesUnordered<Next> = watches.into_iter().map(next).collect();
        let stopped = self.shared.courier.engine.stopped();
        while inner.is_some() || !states.is_empty() {
            let notification = tokio::select! {
                Some(state) = states.next(), if !states.is_empty() => {
                    let Some((watch, task)) = state else { continue };
                    states.push(next(watch));
                    let params = TaskStatusNotificationParams::new(convert::detailed(&task)?);
                    ServerNotification::TaskStatusNotification(TaskStatusNotification::new(params))
                }
                sent = from(&mut inner) => match sent {
                    Some(JsonRpcMessage::Notification(sent)) => sent.notification,
                    Some(JsonRpcMessage::Error(error)) => {
                        tracing::debug!(error = %error.error, "the other part of a subscription ended");
                        inner = None;
                        continue;
                    }
                    Some(JsonRpcMessage::Request(_)) => continue,
                    _ => {
                        inner = None;
                        continue;
                    }
                },
                () = context.ct.cancelled() => break,
                () = stopped.cancelled() => break,
            };
            if !send(&context, notification).await {
                break;
            }
        }
        self.end(&context)
    }

    /// In the order asked for, those that the caller may see.
    async fn watch(&self, scope: &Scope, ids: Vec<String>) -> Result<Vec<TaskWatch>, ErrorData> {
        let watch = |id: String| async move { self.shared.tasks.watch(scope, id).await };
        let mut watching = futures_util::stream::iter(ids.into_iter().map(watch)).buffered(AT_A_TIME);
        let mut watches = Vec::new();
        while let Some(watch) = watching.next().await {
            match watch {
                Ok(watch) => watches.push(watch),
                Err(Error::TaskNotFound) => {}
                Err(e) => return Err(convert::error(e)),
            }
        }
        Ok(watches)
    }

    /// Asks the wrapped handler for the rest, if there is any. Answers its stream, and what it accepted.
    async fn inner(
        &self,
        others: JsonObject,
        context: &Context,
    ) -> Result<(Option<Once<std::sync::Arc<H>>>, JsonObject), ErrorData> {
        let asks = others["notifications"].as_object().is_some_and(|asked| !asked.is_empty());
        if self.enabled() && !asks {
            return Ok((None, JsonObject::new()));
        }
        let mut once = Once::start(self.handler.clone(), listen_request(others, context)?);
        match once.next().await {
            Some(JsonRpcMessage::Notification(first)) => match first.notification {
                ServerNotification::SubscriptionsAcknowledgedNotification(acknowledged) => {
                    let accepted = serde_json::to_value(acknowledged.params.notifications);
                    let accepted = accepted.ok().and_then(|accepted| accepted.as_object().cloned());
                    let accepted = accepted.unwrap_or_default();
                    // With nothing to say it would keep the stream open for nothing.
                    let once = (!accepted.is_empty() || !self.enabled()).then_some(once);
                    Ok((once, accepted))
                }
                _ => Err(ErrorData::internal_error("the handler spoke before it acknowledged", None)),
            },
            // It has no subscriptions, which is no reason against those to tasks.
            Some(JsonRpcMessage::Error(refused))
                if self.enabled() && refused.error.code == ErrorCode::METHOD_NOT_FOUND =>
            {
                Ok((None, JsonObject::new()))
            }
            Some(JsonRpcMessage::Error(refused)) => Err(refused.error),
            _ => Err(ErrorData::internal_error("the handler did not acknowledge", None)),
        }
    }

    fn end(&self, context: &Context) -> Result<CustomResult, ErrorData> {
        let mut result = SubscriptionsListenResult::complete(context.id.clone());
        result.meta.set_server_info(self.handler.get_info().server_info);
        let result =
            serde_json::to_value(result).map_err(|e| ErrorData::internal_error(e.to_string(), None))?;
        Ok(CustomResult::new(result))
    }
}

/// The tasks, each once, and the params without them.
fn asked(params: Option<Value>) -> Result<(Vec<String>, JsonObject), ErrorData> {
    let invalid = |why: &str| ErrorData::invalid_params(format!("subscriptions/listen: {why}"), None);
    let Some(Value::Object(mut params)) = params else { return Err(invalid("no params")) };
    let Some(Value::Object(notifications)) = params.get_mut("notifications") else {
        return Err(invalid("no notifications"));
    };
    let ids = notifications.remove("taskIds").unwrap_or_default();
    let mut ids: Vec<String> =
        serde_json::from_value(ids).map_err(|_| invalid("taskIds is no list of strings"))?;
    let rest = Value::Object(notifications.clone());
    serde_json::from_value::<SubscriptionFilter>(rest).map_err(|e| invalid(&e.to_string()))?;
    let mut seen = std::collections::HashSet::new();
    ids.retain(|id| seen.insert(id.clone()));
    ids.truncate(MAX_TASKS);
    Ok((ids, params))
}

/// The same request without tasks, to be sent to the wrapped handler.
fn listen_request(mut params: JsonObject, context: &Context) -> Result<ClientJsonRpcMessage, ErrorData> {
    let internal = |e: serde_json::Error| ErrorData::internal_error(e.to_string(), None);
    let meta = serde_json::to_value(&context.meta).map_err(internal)?;
    params.insert("_meta".into(), meta);
    let id = context.id.clone().into_json_value();
    let request = json!({ "jsonrpc": "2.0", "id": id, "method": "subscriptions/listen", "params": params });
    let mut request: ClientJsonRpcMessage = serde_json::from_value(request).map_err(internal)?;
    if let Some(parts) = context.extensions.get::<http::request::Parts>() {
        request.insert_extension(parts.clone());
    }
    Ok(request)
}

/// Waits for a task's next state, however long Redis is out of reach.
fn next(mut watch: TaskWatch) -> Next {
    Box::pin(async move {
        loop {
            match watch.next().await {
                Ok(Some(task)) => return Some((watch, task)),
                Ok(None) => return None,
                Err(error) => {
                    tracing::debug!(%error, "a watched task cannot be read now");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    })
}

async fn from<H: ServerHandler>(inner: &mut Option<Once<H>>) -> Option<ServerJsonRpcMessage> {
    match inner {
        Some(once) => once.next().await,
        None => std::future::pending().await,
    }
}

/// On the subscription's stream. False when the client is gone.
async fn send(context: &Context, mut notification: ServerNotification) -> bool {
    notification.get_meta_mut().set_subscription_id(context.id.clone());
    tokio::select! {
        sent = context.peer.send_notification(notification) => sent.is_ok(),
        () = context.ct.cancelled() => false,
    }
}
