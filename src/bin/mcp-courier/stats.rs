//! `mcp-courier stats`.

use std::time::Duration;

use mcp_courier::SessionStats;

use crate::args::{Server, Stats};
use crate::output::{self, Failure};

pub async fn run(server: &Server, json: bool, args: Stats) -> Result<u8, Failure> {
    let courier = server.connect().await?;
    if !args.sessions.is_empty() {
        let mut found = Vec::new();
        for session in &args.sessions {
            found.push(courier.stats(session).await?);
        }
        if json {
            for stats in &found {
                output::json(stats)?;
            }
        } else {
            table(&found)?;
        }
        return Ok(0);
    }
    let overview = courier.overview(args.most).await?;
    if json {
        output::json(&overview)?;
        return Ok(0);
    }
    output::line(&format!(
        "{} sessions owned, {} waiting with {} messages, the oldest for {}",
        overview.owned,
        overview.waiting,
        overview.pending,
        age(overview.oldest_age_ms),
    ))?;
    for node in &overview.nodes {
        let state = if node.alive { "alive" } else { "gone" };
        let since = humantime::format_duration(Duration::from_secs(node.lease_ms.unsigned_abs() / 1000));
        output::line(&format!(
            "node {} {state}, lease {} {since}",
            node.node,
            if node.alive { "for" } else { "over since" }
        ))?;
    }
    if !overview.sessions.is_empty() {
        table(&overview.sessions)?;
    }
    Ok(0)
}

fn table(sessions: &[SessionStats]) -> Result<(), Failure> {
    let headings = ["session", "pending", "oldest", "attempts", "waits", "dead", "owner"];
    output::line(&format!(
        "{:<32} {:>8} {:>10} {:>8} {:>10} {:>6}  {}",
        headings[0], headings[1], headings[2], headings[3], headings[4], headings[5], headings[6]
    ))?;
    for s in sessions {
        let owner = match &s.owner {
            Some(node) if s.owner_alive => node.clone(),
            Some(node) => format!("{node} (gone)"),
            None => "-".into(),
        };
        let name = s.session.escape_debug().to_string();
        output::line(&format!(
            "{name:<32} {:>8} {:>10} {:>8} {:>10} {:>6}  {owner}",
            s.pending,
            age(s.oldest_age_ms),
            s.head_attempts,
            age(s.head_wait_ms),
            s.dead,
        ))?;
    }
    Ok(())
}

fn age(ms: u64) -> String {
    match ms {
        0 => "-".into(),
        _ => output::time(ms),
    }
}
