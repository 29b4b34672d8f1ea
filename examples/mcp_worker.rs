//! A worker of `mcp_server`: takes jobs, reports progress to the client that waits, and asks its user a question or
//! two. One works at a time: a second one takes over from the first, which then ends.
//!
//! ```sh
//! cargo run --example mcp_worker -- redis://localhost
//! ```

use std::time::Duration;

use mcp_courier::relay::{Ask, Outcome, Request, TaskRef};
use mcp_courier::{
    CancellationToken, Courier, Delivery, Ended, LogLevel, Notification, RequestId, SessionId, SinkError,
};
use serde_json::{Value, json};

/// Does one job. Whatever fails here is tried again, by this worker or by another one.
async fn work(courier: &Courier, job: &Value) -> Result<(), Box<dyn std::error::Error>> {
    let text = |name: &str| job[name].as_str().unwrap_or_default();
    let session = SessionId::new(text("session"))?;
    println!("{}: a report about {}", text("job"), text("topic"));
    let progress = async |step: u32, message: &str| {
        let note = match &job["token"] {
            Value::Null => Notification::message(LogLevel::Info, message),
            token => {
                Notification::progress(token.clone(), step.into()).param("total", 3).param("message", message)
            }
        };
        courier.push_notification(&session, &note).await
    };

    progress(1, "collecting sources").await?;
    tokio::time::sleep(Duration::from_millis(300)).await;

    // The same id at every attempt: a worker that takes the job over hears the answer that the first one waited for.
    let task = TaskRef::new(text("job"));
    let ask = async |id: String, message: &str, name: &str, schema: Value| {
        let schema = json!({ "type": "object", "properties": { name: schema }, "required": [name] });
        let question = Ask::new(&session, Request::form(message, schema))
            .id(RequestId::new(id)?)
            .task(task.clone())
            .timeout(Duration::from_secs(120));
        courier.relay().ask(question).await
    };
    let stop = async |why: &str| {
        println!("{}: {why}", text("job"));
        progress(3, &format!("stopped: {why}")).await
    };

    let pages = json!({ "type": "integer", "minimum": 1, "maximum": 100 });
    let pages = match ask(text("job").to_owned(), "How many pages?", "pages", pages).await? {
        Outcome::Accepted(content) => content.value()["pages"].as_u64().unwrap_or(1),
        other => return Ok(stop(other.as_str()).await.map(drop)?),
    };
    if pages > 50 {
        let id = format!("{}-sure", text("job"));
        match ask(id, "So many?", "sure", json!({ "type": "boolean" })).await? {
            Outcome::Accepted(content) if content.value()["sure"] == true => {}
            Outcome::Accepted(_) => return Ok(stop("too long").await.map(drop)?),
            other => return Ok(stop(other.as_str()).await.map(drop)?),
        }
    }

    progress(2, "writing").await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    progress(3, &format!("a report of {pages} pages about {}", text("topic"))).await?;
    println!("{}: done", text("job"));
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "redis://localhost".into());
    let prefix = args.next().unwrap_or_else(|| "courier".into());
    let courier = Courier::builder().prefix(prefix).connect(url).await?;
    let jobs = SessionId::new("jobs")?;
    println!("waiting for jobs");

    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        stopping.cancel();
    });
    let worker = courier.clone();
    let sink = move |delivery: Delivery| {
        let courier = worker.clone();
        async move {
            let job = serde_json::from_slice(delivery.body()).map_err(SinkError::rejected)?;
            work(&courier, &job).await.map_err(SinkError::retry)
        }
    };
    match courier.subscriber_loop(&jobs, sink, stop).await? {
        Ended::Superseded => println!("another worker took over"),
        _ => println!("stopped"),
    }
    courier.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
