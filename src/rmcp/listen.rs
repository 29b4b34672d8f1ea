//! `subscriptions/listen` (2026-07-28): a client's stream, fed from topics.

use rmcp::ErrorData;
use rmcp::model::SubscriptionFilter;
use rmcp::service::SubscriptionContext;

use super::{PeerSink, Sessions};
use crate::{Notification, SinkError, Topic, TopicEvent};

impl Sessions {
    /// Serves one `subscriptions/listen` request: the whole of a handler's `listen`.
    ///
    /// rmcp has acknowledged the request already. What is published to [`Topic::tools`], [`Topic::prompts`],
    /// [`Topic::resources`] and [`Topic::resource`], by any process, is sent on the stream as far as the client asked for it
    /// and the server accepted it, and carries the request's id. Other messages in these topics are passed over. After a
    /// lost connection to Redis, everything that was asked for is said to have changed.
    ///
    /// Returns when the client is gone or cancels, and in good order (with a final result to the client) when the courier
    /// shuts down. Shut it down before the HTTP server is stopped.
    ///
    /// # Errors
    /// An internal error for the client when Redis cannot be reached at the start.
    ///
    /// # Cancel safety
    /// Dropping the future ends the stream.
    pub async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let asked = changes(context.accepted());
        let sink = PeerSink::for_subscription(&context);
        let topics = asked.iter().map(|(topic, _)| topic.clone());
        let listening = self.courier().topics();
        let opening = listening.listen(topics);
        let mut stream = tokio::select! {
            opened = opening => opened.map_err(|e| ErrorData::internal_error(e.to_string(), None))?,
            () = context.cancelled() => return Ok(()),
        };
        loop {
            let event = tokio::select! {
                event = stream.recv() => event,
                () = context.cancelled() => return Ok(()),
            };
            let sending = async {
                match &event {
                    Some(TopicEvent::Message(message)) => {
                        let Some((_, change)) = asked.iter().find(|(topic, _)| *topic == message.topic)
                        else {
                            return Ok(());
                        };
                        match message.notification() {
                            Ok(published) if same(&published, change) => sink.send(message.body()).await,
                            _ => {
                                tracing::warn!(topic = %message.topic, "a message that does not belong into its topic");
                                Ok(())
                            }
                        }
                    }
                    _ => {
                        for (_, change) in &asked {
                            let body = change.to_json().map_err(SinkError::rejected)?;
                            sink.send(&body).await?;
                        }
                        Ok(())
                    }
                }
            };
            if event.is_none() {
                return Ok(());
            }
            let sent = tokio::select! {
                sent = sending => sent,
                () = context.cancelled() => return Ok(()),
            };
            match sent {
                Ok(()) => {}
                Err(SinkError::Closed) => return Ok(()),
                Err(e) => tracing::debug!(error = %e, "a message of a subscription was not sent"),
            }
        }
    }
}

/// What was asked for: each topic, and the notification that says that it changed.
fn changes(accepted: &SubscriptionFilter) -> Vec<(Topic, Notification)> {
    let mut all = Vec::new();
    if accepted.tools_list_changed == Some(true) {
        all.push((Topic::tools(), Notification::tools_list_changed()));
    }
    if accepted.prompts_list_changed == Some(true) {
        all.push((Topic::prompts(), Notification::prompts_list_changed()));
    }
    if accepted.resources_list_changed == Some(true) {
        all.push((Topic::resources(), Notification::resources_list_changed()));
    }
    for uri in accepted.resource_subscriptions.iter().flatten() {
        // One that is too long for a topic was never published either.
        if let Ok(topic) = Topic::resource(uri) {
            all.push((topic, Notification::resource_updated(uri)));
        }
    }
    all
}

/// Whether a message says what its topic is about.
fn same(published: &Notification, change: &Notification) -> bool {
    let uri = |n: &Notification| n.params.as_ref().and_then(|params| params.get("uri").cloned());
    published.method == change.method && uri(published) == uri(change)
}
