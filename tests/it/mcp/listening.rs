//! `subscriptions/listen` streams of 2026-07-28, fed from topics.

use std::time::Duration;

use mcp_courier::rmcp::Sessions;
use mcp_courier::{Notification, Topic, TopicDelivery};
use rmcp::ErrorData;
use rmcp::ServerHandler;
use rmcp::model::{ServerCapabilities, ServerConfig, SubscriptionFilter};
use rmcp::service::SubscriptionContext;
use serde_json::json;

use super::support::{Events, Replica, listen};
use crate::support::fixture::Fixture;
use crate::support::wait::wait_until;

struct Listened(Sessions);

impl ServerHandler for Listened {
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

    fn accepted_subscription_filter(&self, asked: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(asked.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        self.0.listen(context).await
    }
}

async fn start(t: &Fixture) -> Replica {
    let sessions = Sessions::new(&t.courier().await);
    let factory = sessions.clone();
    Replica::with(sessions, move || Ok(Listened(factory.clone()))).await
}

/// The next message: its method, after a look at the subscription id.
async fn method(events: &mut Events) -> String {
    let message = events.next().await.expect("a message").message;
    assert_eq!(message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "sub", "{message}");
    message["method"].as_str().expect("a method").to_owned()
}

const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";

/// The acknowledgement comes first, every message carries the subscription's id, only what was asked for comes, and a
/// shutdown ends the stream with a result.
#[tokio::test]
async fn a_stream_gets_an_acknowledgement_what_it_asked_for_and_a_graceful_end() {
    let t = Fixture::new("mcp_listen").await;
    let worker = t.courier().await;
    let server = start(&t).await;
    let http = reqwest::Client::new();
    let asked = json!({"toolsListChanged": true, "resourceSubscriptions": ["res://a"]});
    let mut events = listen(&http, &server.url, &asked).await;
    assert_eq!(method(&mut events).await, ACKNOWLEDGED);
    let topics = worker.topics();
    let hint = TopicDelivery::Hint;
    let resource = |uri: &str| (Topic::resource(uri).expect("valid"), Notification::resource_updated(uri));
    let (b, b_changed) = resource("res://b");
    let (a, a_changed) = resource("res://a");
    // rmcp acknowledges before it calls the handler, which then begins to listen.
    for (topic, changed) in [(&a, &a_changed), (&Topic::tools(), &Notification::tools_list_changed())] {
        wait_until("the server listens", Duration::from_secs(10), || async {
            let published = topics.publish(topic, changed, hint).await.map_err(|e| e.to_string())?;
            if published.nodes == 1 { Ok(()) } else { Err(format!("{published:?}")) }
        })
        .await;
    }
    // Nobody asked for these two, and the third lies in the wrong topic.
    for (topic, notification) in [
        (Topic::prompts(), Notification::prompts_list_changed()),
        (b, b_changed.clone()),
        (a.clone(), b_changed),
        (a, a_changed),
        (Topic::tools(), Notification::tools_list_changed()),
    ] {
        topics.publish(&topic, &notification, hint).await.expect("published");
    }
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 2 {
        let message = events.next().await.expect("a message").message;
        assert_eq!(message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "sub", "{message}");
        let method = message["method"].as_str().expect("a method");
        assert!(
            method == "notifications/tools/list_changed"
                || method == "notifications/resources/updated" && message["params"]["uri"] == "res://a",
            "nobody asked for {message}"
        );
        seen.insert(method.to_owned());
    }
    server.sessions.courier().shutdown(Duration::from_secs(5)).await;
    let mut last = events.next().await.expect("a result").message;
    while last["method"].is_string() {
        last = events.next().await.expect("a result").message;
    }
    assert!(last["result"].is_object(), "{last}");
    assert_eq!(last["id"], "sub");
    assert!(events.next().await.is_none());
    server.shutdown().await;
    t.finish().await;
}

/// A client that goes away is forgotten: its handler ends.
#[tokio::test]
async fn a_stream_whose_client_is_gone_ends() {
    let t = Fixture::new("mcp_listen_gone").await;
    let server = start(&t).await;
    let http = reqwest::Client::new();
    let mut events = listen(&http, &server.url, &json!({"toolsListChanged": true})).await;
    assert_eq!(method(&mut events).await, ACKNOWLEDGED);
    drop(events);
    drop(http);
    let worker = t.courier().await;
    wait_until("nobody listens", Duration::from_secs(10), || async {
        let published = worker
            .topics()
            .publish(&Topic::tools(), &Notification::tools_list_changed(), TopicDelivery::Hint)
            .await
            .map_err(|e| e.to_string())?;
        if published.nodes == 0 { Ok(()) } else { Err(format!("{published:?}")) }
    })
    .await;
    server.shutdown().await;
    t.finish().await;
}

/// One `tools/list_changed` reaches 1,000 clients on 3 replicas; of a burst of 100 each gets one at its beginning and one
/// for each window of 50 ms that it lasts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_message_reaches_a_thousand_clients_on_three_replicas_and_a_burst_arrives_as_few() {
    let t = Fixture::new("mcp_thousand").await;
    let worker = t.courier().await;
    let replicas = [start(&t).await, start(&t).await, start(&t).await];
    let http = reqwest::Client::new();
    let mut clients = Vec::new();
    for n in 0..1000 {
        let mut events = listen(&http, &replicas[n % 3].url, &json!({"toolsListChanged": true})).await;
        assert_eq!(method(&mut events).await, ACKNOWLEDGED);
        clients.push(events);
    }
    let topics = worker.topics();
    let (tools, changed) = (Topic::tools(), Notification::tools_list_changed());
    let published = topics.publish(&tools, &changed, TopicDelivery::Hint).await.expect("published");
    assert_eq!(published.nodes, 3);
    for events in &mut clients {
        assert_eq!(method(events).await, "notifications/tools/list_changed");
    }
    let began = std::time::Instant::now();
    let burst = (0..100).map(|_| topics.publish(&tools, &changed, TopicDelivery::Hint));
    for published in futures_util::future::join_all(burst).await {
        published.expect("published");
    }
    let took = began.elapsed();
    // Hints are best effort: a replica that stops may stop before the burst came in.
    for events in &mut clients {
        assert_eq!(method(events).await, "notifications/tools/list_changed", "the burst reaches everybody");
    }
    // What ends the counting: behind the burst on every stream.
    for replica in &replicas {
        replica.sessions.courier().shutdown(Duration::from_secs(10)).await;
    }
    // On a busy machine the burst lasts longer than it should, and so may what carries it.
    let windows = began.elapsed().as_millis() / 50 + 1;
    let mut most = 0;
    for events in &mut clients {
        let mut count = 1;
        while let Some(event) = events.next().await {
            if event.message["result"].is_object() {
                break;
            }
            count += 1;
        }
        most = most.max(count);
    }
    println!("a burst of 100 in {took:?} arrived as at most {most}");
    assert!(most <= 1 + windows, "{most} in {windows} windows");
    for replica in replicas {
        replica.shutdown().await;
    }
    t.finish().await;
}
