//! The crate in one file, on `memory://`: no server needed.
//!
//! `cargo run --example quickstart`, or with a server: `cargo run --example quickstart redis://localhost`.

use std::time::Duration;

use mcp_courier::{Courier, Delivery, Notification, SessionId, SinkError};
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://".into());
    let courier = Courier::connect(url).await?;
    let session = SessionId::new("session-1")?;

    // A worker says three things before anybody listens. They wait.
    for step in 1..=3 {
        let progress =
            Notification::new("notifications/progress").param("progressToken", "t").param("progress", step);
        courier.push_notification(&session, &progress).await?;
    }

    // The process with the client's connection. Here the client is a channel, and its second message fails once.
    let (client, mut received) = mpsc::channel(16);
    let sink = move |delivery: Delivery| {
        let client = client.clone();
        async move {
            let notification = delivery.notification().map_err(SinkError::rejected)?;
            let second = notification.params.as_ref().is_some_and(|p| p["progress"] == 2);
            if second && delivery.attempt == 1 {
                println!("(the client is busy, progress 2 will come again before progress 3)");
                return Err(SinkError::retry("busy"));
            }
            client.send(notification).await.map_err(|_| SinkError::Closed)
        }
    };
    courier.subscribers().ensure_running(&session, sink).await?;

    for _ in 1..=3 {
        let notification = received.recv().await.ok_or("the subscription ended")?;
        println!("{}", serde_json::to_string(&notification)?);
    }

    // Gives the session back: another process could serve it at once.
    courier.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
