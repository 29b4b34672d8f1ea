//! A server whose tools run as durable tasks: made at one replica, run by any worker, asked for at any replica.
//!
//! ```sh
//! cargo run --example durable_tasks --features rmcp                                       # all in one process
//! cargo run --example durable_tasks --features rmcp -- --replica 127.0.0.1:8001 redis://localhost
//! cargo run --example durable_tasks --features rmcp -- --replica 127.0.0.1:8002 redis://localhost
//! cargo run --example durable_tasks --features rmcp -- --worker redis://localhost          # as many as you like
//! ```
//!
//! `jobs` has a tool of every kind. The others are what MCP's official conformance suite asks for, see `.ci/conformance`.

#[path = "conformance_server.rs"]
#[allow(dead_code, reason = "a program of its own")]
mod core;
#[path = "durable_tasks/jobs.rs"]
mod jobs;
#[path = "durable_tasks/rounds.rs"]
mod rounds;
#[path = "durable_tasks/server.rs"]
mod server;

use std::time::Duration;

use axum::Router;
use mcp_courier::rmcp::{DurableTasks, Sessions, TaskHttp, TaskMode};
use mcp_courier::{CancellationToken, Courier};
use rmcp::model::JsonObject;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use server::Server;

/// How long requests and legs that run may take to end.
const GRACE: Duration = Duration::from_secs(5);

/// The same in every process of this server.
fn durable(server: Server, courier: &Courier) -> DurableTasks<Server> {
    DurableTasks::new(server, courier)
        // Each tool, and what its arguments are: a call with others is refused before there is a task.
        .tool::<jobs::Compute>("slow_compute", TaskMode::Optional)
        .tool::<JsonObject>("failing_job", TaskMode::Required)
        .tool::<JsonObject>("protocol_error_job", TaskMode::Optional)
        .tool::<jobs::Delete>("confirm_delete", TaskMode::Optional)
        .tool::<JsonObject>("multi_input", TaskMode::Optional)
        .tool::<JsonObject>("interview", TaskMode::Optional)
        // Says itself where its task begins.
        .tool_that_begins("test_tool_with_task", TaskMode::Required)
        .settings(|tasks| tasks.ttl(Duration::from_secs(300)).poll_interval(Duration::from_millis(500)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1).peekable();
    let role = args.next_if(|arg| arg.starts_with("--"));
    let (serves, works) = match role.as_deref() {
        None => (true, true),
        Some("--replica") => (true, false),
        Some("--worker") => (false, true),
        Some(other) => return Err(format!("unknown option {other}").into()),
    };
    let address = if serves { args.next() } else { None }.unwrap_or_else(|| "127.0.0.1:8009".into());
    let url = args.next().unwrap_or_else(|| "memory://".into());
    let prefix = args.next().unwrap_or_else(|| "courier".into());
    let courier = Courier::builder().prefix(prefix).connect(url).await?;
    let sessions = Sessions::new(&courier);
    let durable = durable(Server::new(&sessions)?, &courier);
    // A task tool that cannot work is an error here, not at the first client.
    durable.check()?;

    let stop = CancellationToken::new();
    tokio::spawn(stop_on_signal(stop.clone()));
    // So long after the death of a worker another one takes over.
    let lease = std::env::var("LEASE_MS").ok().map(|ms| ms.parse()).transpose()?.map(Duration::from_millis);
    let worker = durable.worker().lease(lease.unwrap_or(Duration::from_secs(10)));
    if !serves {
        println!("working");
        worker.run(durable.legs(), stop, GRACE).await?;
        courier.shutdown(GRACE).await;
        return Ok(());
    }
    let worker = if works { Some(worker.start(durable.legs()).await?) } else { None };
    let config = StreamableHttpServerConfig::default().with_cancellation_token(stop.child_token());
    let factory = {
        let (durable, sessions) = (durable.clone(), sessions.clone());
        move || Ok(durable.with_handler(Server::new(&sessions)?))
    };
    let service = StreamableHttpService::new(factory, sessions.manager(), sessions.configure(config));
    // `notifications/tasks`, and clients that leave the header `Mcp-Name` out.
    let service = TaskHttp::new(service).fill_names(true);
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on http://{}/mcp", listener.local_addr()?);
    let app = Router::new().nest_service("/mcp", service);
    axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned()).await?;
    if let Some(worker) = worker {
        worker.shutdown(GRACE).await;
    }
    courier.shutdown(GRACE).await;
    Ok(())
}

/// Ctrl-C, and what a supervisor sends.
async fn stop_on_signal(stop: CancellationToken) {
    #[cfg(unix)]
    if let Ok(mut term) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = term.recv() => {}
        }
        return stop.cancel();
    }
    let _ = tokio::signal::ctrl_c().await;
    stop.cancel();
}
