//! `mcp-courier bridge`: carries messages from and to another queue.

use mcp_courier::CancellationToken;
use mcp_courier::bridge::fastmcp::{FastMcp, Sessions};

use crate::args::{BridgeFastMcp, Server};
use crate::output::{self, Failure};
use crate::signals;

pub async fn fastmcp(server: &Server, json: bool, args: BridgeFastMcp) -> Result<u8, Failure> {
    let stopping = signals::stop()?;
    let courier = server.connect().await?;
    let url = match &args.fastmcp_url {
        Some(url) => url.as_str(),
        None => server.shared_url()?,
    };
    let bridge = FastMcp::connect(&courier, url, &args.docket).await?.look_every(args.look_every);
    let sessions = if args.sessions.is_empty() { Sessions::All } else { Sessions::These(args.sessions) };
    let cancel = CancellationToken::new();
    let end = {
        let cancel = cancel.clone();
        tokio::spawn(async move {
            stopping.await;
            cancel.cancel();
        })
    };
    if args.to_courier {
        let brought = bridge.run_to_courier(sessions, &cancel).await;
        if json {
            output::json(&serde_json::json!({
                "messages": brought.messages, "expired": brought.expired, "held": brought.held,
            }))?;
        } else {
            output::line(&format!(
                "brought {} messages; {} expired, {} held",
                brought.messages, brought.expired, brought.held
            ))?;
        }
    } else {
        bridge.run_to_fastmcp(sessions, &cancel).await?;
        let metrics = courier.metrics();
        if json {
            output::json(&serde_json::json!({"messages": metrics.delivered, "dead": metrics.dead}))?;
        } else {
            output::line(&format!(
                "handed over {} messages; {} dead letters",
                metrics.delivered, metrics.dead
            ))?;
        }
    }
    end.abort();
    courier.shutdown(std::time::Duration::from_secs(5)).await;
    Ok(0)
}
