//! rmcp's own client, over a pipe and over HTTP.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, ClientCapabilities, ClientConfig,
    ClientRequest, CustomRequest, ElicitationCapability, GetTaskParams, Implementation, ProtocolVersion,
    Task, TaskPayload, TaskStatus, TaskStatusNotificationParams, UpdateTaskParams,
};
use rmcp::service::{
    ClientLifecycleMode, ClientServiceExt, NotificationContext, PeerRequestOptions, RunningService,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{ClientHandler, RoleClient, ServiceExt};
use serde_json::{Value, json};

use super::support::{Replica, Tools, accept, durable, text_of, work};
use crate::support::fixture::Fixture;
use crate::support::wait::wait_until;

#[derive(Clone, Default)]
struct Peer {
    heard: Arc<Mutex<Vec<Value>>>,
}

impl ClientHandler for Peer {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::builder().enable_tasks().build();
        capabilities.elicitation = Some(ElicitationCapability::default());
        ClientConfig::new(capabilities, Implementation::new("rmcp's", "1"))
    }

    async fn on_task_status(&self, params: TaskStatusNotificationParams, _: NotificationContext<RoleClient>) {
        self.heard.lock().expect("not poisoned").push(serde_json::to_value(params).expect("JSON"));
    }
}

fn modern() -> ClientLifecycleMode {
    ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }
}

type Connected = RunningService<RoleClient, Peer>;

async fn call(client: &Connected, tool: &'static str) -> Task {
    match client.call_tool_once(CallToolRequestParams::new(tool)).await.expect("an answer") {
        CallToolResponse::Task(made) => made.task,
        other => panic!("{other:?}"),
    }
}

async fn wait(client: &Connected, id: &str, status: TaskStatus) -> TaskPayload {
    wait_until(&format!("{status:?}"), Duration::from_secs(20), || async {
        let got = client.get_task(GetTaskParams::new(id)).await.map_err(|e| e.to_string())?;
        if got.task.task.status == status { Ok(got.task.payload.clone()) } else { Err(format!("{got:?}")) }
    })
    .await
}

/// A task with two rounds of questions, and one that is cancelled.
async fn lives(client: &Connected, tools: &Tools) {
    let id = call(client, "asks").await.task_id;
    for _ in 0..2 {
        let TaskPayload::InputRequired { input_requests } =
            wait(client, &id, TaskStatus::InputRequired).await
        else {
            panic!("requests")
        };
        let answers: BTreeMap<String, Value> =
            input_requests.keys().map(|key| (key.clone(), accept(&key[..1]))).collect();
        client.update_task(UpdateTaskParams::new(&id, answers)).await.expect("acknowledged");
        // The next round, or the end.
        wait_until("it goes on", Duration::from_secs(20), || async {
            let got = client.get_task(GetTaskParams::new(&id)).await.map_err(|e| e.to_string())?;
            match &got.task.payload {
                TaskPayload::InputRequired { input_requests: open } if *open == input_requests => {
                    Err("the same".to_owned())
                }
                TaskPayload::Working => Err("working".to_owned()),
                _ => Ok(()),
            }
        })
        .await;
    }
    let TaskPayload::Completed { result } = wait(client, &id, TaskStatus::Completed).await else { panic!() };
    assert_eq!(text_of(&Value::Object(result)), "x and y, then x");
    let id = call(client, "gated").await.task_id;
    tools.log.wait("gated", 1).await;
    client.cancel_task(CancelTaskParams::new(&id)).await.expect("acknowledged");
    wait(client, &id, TaskStatus::Cancelled).await;
}

/// Also what stdio is: one connection for all, no HTTP.
#[tokio::test]
async fn rmcps_client_lives_through_tasks_over_a_pipe() {
    let t = Fixture::new("durable_pipe").await;
    let tools = Tools::new("pipe");
    let durable = durable(&tools, &t.courier().await);
    let worker = work(&durable).await;
    let (near, far) = tokio::io::duplex(1 << 16);
    let server = tokio::spawn(async move { durable.serve(far).await.expect("a client").waiting().await });
    let client = Peer::default().serve_with_lifecycle(near, modern()).await.expect("a server");
    lives(&client, &tools).await;
    client.cancel().await.expect("no panic");
    server.await.expect("no panic").expect("no panic");
    worker.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

#[tokio::test]
async fn rmcps_client_lives_through_tasks_over_http_and_hears_of_them() {
    let t = Fixture::new("durable_http").await;
    let tools = Tools::new("http");
    let durable = durable(&tools, &t.courier().await);
    let (worker, replica) = (work(&durable).await, Replica::start(&durable).await);
    let peer = Peer::default();
    let transport = StreamableHttpClientTransport::from_uri(replica.url.clone());
    let client = peer.clone().serve_with_lifecycle(transport, modern()).await.expect("a server");
    lives(&client, &tools).await;
    let task = call(&client, "progresses").await;
    let listen = json!({ "notifications": { "taskIds": [task.task_id] } });
    let listen = CustomRequest::new("subscriptions/listen", Some(listen));
    let listening = client
        .send_cancellable_request(ClientRequest::CustomRequest(listen), PeerRequestOptions::no_options())
        .await
        .expect("sent");
    let heard = |status: &'static str| {
        let heard = peer.heard.clone();
        async move {
            wait_until(status, Duration::from_secs(20), || async {
                let heard = heard.lock().expect("not poisoned");
                let last = heard.last().filter(|task| task["status"] == status).cloned();
                last.ok_or_else(|| format!("{heard:?}"))
            })
            .await
        }
    };
    assert_eq!(heard("working").await["taskId"], task.task_id);
    tools.gate.cancel();
    assert_eq!(text_of(&heard("completed").await["result"]), "whole");
    listening.await_response().await.expect("the stream ends with a result");
    client.cancel().await.expect("no panic");
    worker.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}
