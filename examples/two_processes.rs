//! A worker in one process, the MCP server with the client's connection in another, Redis between them.
//!
//! Both at once, or in two terminals, with a server of yours:
//!
//! ```text
//! cargo run --example two_processes -- redis://localhost
//!
//! cargo run --example two_processes -- server redis://localhost
//! cargo run --example two_processes -- worker redis://localhost
//! ```
//!
//! Kill the server side with Ctrl-C or SIGKILL in the middle, start it again: it goes on where the client left off.

use std::time::Duration;

use mcp_courier::{CancellationToken, Courier, Delivery, Notification, SessionId};

/// What the worker counts to.
const STEPS: u32 = 20;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (role, url) = match (args.next(), args.next()) {
        (Some(role), Some(url)) => (role, url),
        (url, _) => return both(&url.unwrap_or_else(|| "redis://localhost".into())),
    };
    let session = SessionId::new("two-processes")?;
    let courier = Courier::connect(url).await?;
    match role.as_str() {
        "worker" => worker(&courier, &session).await?,
        "server" => server(&courier, &session).await?,
        other => return Err(format!("{other} is neither server nor worker").into()),
    }
    Ok(())
}

/// Starts this program twice, once in each role.
fn both(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    let start = |role| std::process::Command::new(std::env::current_exe()?).args([role, url]).spawn();
    let (mut server, mut worker) = (start("server")?, start("worker")?);
    if !worker.wait()?.success() {
        server.kill()?; // It would wait for ever.
    }
    if server.wait()?.success() { Ok(()) } else { Err("one of the two failed".into()) }
}

/// Works in the background, and says how far it is.
async fn worker(courier: &Courier, session: &SessionId) -> mcp_courier::Result<()> {
    for step in 1..=STEPS {
        tokio::time::sleep(Duration::from_millis(100)).await; // the work
        let progress = Notification::new("notifications/progress")
            .param("progressToken", "two-processes")
            .param("progress", step)
            .param("total", STEPS);
        let pushed = courier.push_notification(session, &progress).await?;
        println!("worker: step {step} pushed, {} pending", pushed.pending);
    }
    Ok(())
}

/// Holds the client's connection, here: stdout.
async fn server(courier: &Courier, session: &SessionId) -> mcp_courier::Result<()> {
    let done = CancellationToken::new();
    let last = done.clone();
    let sink = move |delivery: Delivery| {
        let last = last.clone();
        async move {
            let notification = delivery.notification().map_err(mcp_courier::SinkError::rejected)?;
            let params = notification.params.unwrap_or_default();
            println!("client: {} of {}", params["progress"], params["total"]);
            if params["progress"] == STEPS {
                last.cancel();
            }
            Ok(())
        }
    };
    let ended = courier.subscriber_loop(session, sink, done).await?;
    println!("server: {ended:?}");
    Ok(())
}
