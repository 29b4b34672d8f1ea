//! `mcp-courier dead`.

use mcp_courier::DeadLetter;
use serde_json::json;

use crate::args::{Dead, Server};
use crate::output::{self, Failure};

pub async fn run(server: &Server, json: bool, args: Dead) -> Result<u8, Failure> {
    let courier = server.connect().await?;
    match args {
        Dead::List { session, limit, offset } => {
            let (total, letters) = courier.dead_letters(&session).list(offset, limit).await?;
            for letter in &letters {
                output::line(&if json { as_json(session.as_str(), letter) } else { as_text(letter) })?;
            }
            if !json {
                output::line(&format!("{} of {total} dead letters", letters.len()))?;
            }
        }
        Dead::Requeue(chosen) => {
            let count = courier.dead_letters(&chosen.session).requeue(chosen.id.as_ref()).await?;
            done(json, "requeued", count)?;
        }
        Dead::Purge(chosen) => {
            let count = courier.dead_letters(&chosen.session).purge(chosen.id.as_ref()).await?;
            done(json, "purged", count)?;
        }
    }
    Ok(0)
}

fn done(json: bool, what: &str, count: u64) -> Result<(), Failure> {
    if json {
        output::json(&json!({ what: count }))?;
    } else {
        output::line(&format!("{count} {what}"))?;
    }
    Ok(())
}

fn as_json(session: &str, letter: &DeadLetter) -> String {
    let head = json!({
        "session": session,
        "id": letter.id,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "first_error": letter.first_error,
        "last_error": letter.last_error,
        "enqueued_at_ms": letter.enqueued_at_ms,
        "died_at_ms": letter.died_at_ms,
    });
    output::with_body(&head, &letter.body)
}

fn as_text(letter: &DeadLetter) -> String {
    format!(
        "{} {} after {} attempts: {} ({} bytes)",
        if letter.id.is_empty() { "-".into() } else { letter.id.escape_debug().to_string() },
        letter.reason,
        letter.attempts,
        letter.last_error.escape_debug(),
        letter.body.len(),
    )
}
