//! `mcp-courier doctor`: looks at the server and says what to change.

use std::time::Duration;

use mcp_courier::{Courier, Delivery, Push, ServerInfo, SessionId};
use serde_json::json;
use tokio::sync::mpsc;

use crate::args::Server;
use crate::output::{self, FAILED, Failure};

/// How a check came out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ok,
    Unknown,
    /// Works, and may lose messages one day.
    Warning,
    Problem,
}

struct Check {
    name: &'static str,
    verdict: Verdict,
    found: String,
    /// What to change.
    advice: &'static str,
}

pub async fn run(server: &Server, json: bool) -> Result<u8, Failure> {
    let courier = server.connect().await?;
    let info = courier.server_info().await?;
    let mut checks = vec![version(&info), eviction(&info), memory(&info), persistence(&info), role(&info)];
    checks.extend([replicas(&info), output_buffers(&info)]);
    checks.push(waiting(&courier).await);
    checks.push(ping(&courier).await);
    checks.push(round_trip(&courier).await);
    let bad = checks.iter().any(|c| c.verdict == Verdict::Problem);
    for check in &checks {
        let word = match check.verdict {
            Verdict::Ok => "ok",
            Verdict::Unknown => "unknown",
            Verdict::Warning => "warning",
            Verdict::Problem => "problem",
        };
        if json {
            output::json(
                &json!({ "check": check.name, "verdict": word, "found": check.found, "advice": check.advice }),
            )?;
        } else {
            let advice =
                if check.advice.is_empty() { String::new() } else { format!("\n          {}", check.advice) };
            output::line(&format!("{word:<8} {}: {}{advice}", check.name, check.found))?;
        }
    }
    courier.shutdown(Duration::from_secs(1)).await;
    Ok(if bad { FAILED } else { 0 })
}

fn version(info: &ServerInfo) -> Check {
    // A server that is too old was refused at connect.
    match (&info.version, &info.valkey_version) {
        (_, Some(valkey)) => check("version", Verdict::Ok, format!("Valkey {valkey}"), ""),
        (Some(redis), None) => check("version", Verdict::Ok, format!("Redis {redis}"), ""),
        (None, None) => {
            check("version", Verdict::Unknown, "the server does not tell: INFO is forbidden".into(), "")
        }
    }
}

fn eviction(info: &ServerInfo) -> Check {
    let name = "eviction policy";
    match (info.maxmemory_policy.as_deref(), info.maxmemory) {
        (Some("noeviction"), _) => check(name, Verdict::Ok, "noeviction".into(), ""),
        (Some(policy), Some(0)) => check(
            name,
            Verdict::Warning,
            format!("{policy}, and no memory limit"),
            "set maxmemory-policy noeviction before somebody sets a limit: pending messages would be evicted",
        ),
        (Some(policy), _) => check(
            name,
            Verdict::Problem,
            policy.into(),
            "set maxmemory-policy noeviction: this policy deletes pending messages at the memory limit",
        ),
        (None, _) => {
            check(name, Verdict::Unknown, "the server does not tell".into(), "it should be noeviction")
        }
    }
}

/// From so much of its limit on, a server will soon refuse pushes.
const NEARLY_FULL: f64 = 0.8;

fn memory(info: &ServerInfo) -> Check {
    let name = "memory";
    match (info.used_memory, info.maxmemory, info.evicted_keys) {
        (_, _, Some(evicted @ 1..)) => check(
            name,
            Verdict::Warning,
            format!("{evicted} keys evicted since the server started"),
            "pending messages may be among them: set maxmemory-policy noeviction",
        ),
        (Some(used), Some(limit @ 1..), _) if used as f64 > limit as f64 * NEARLY_FULL => check(
            name,
            Verdict::Warning,
            format!("{used} of {limit} bytes"),
            "raise maxmemory, or let queues drain: a full server refuses pushes (OOM)",
        ),
        (Some(used), Some(limit @ 1..), _) => {
            check(name, Verdict::Ok, format!("{used} of {limit} bytes"), "")
        }
        (Some(used), Some(0), _) => check(name, Verdict::Ok, format!("{used} bytes, no limit"), ""),
        _ => check(name, Verdict::Unknown, "the server does not tell".into(), ""),
    }
}

fn replicas(info: &ServerInfo) -> Check {
    let name = "replicas";
    match info.replicas {
        Some(0) => check(name, Verdict::Ok, "none: this server's disk is all there is".into(), ""),
        Some(n) => check(name, Verdict::Ok, n.to_string(), ""),
        None => check(name, Verdict::Unknown, "the server does not tell".into(), ""),
    }
}

fn output_buffers(info: &ServerInfo) -> Check {
    let name = "output buffers";
    match info.output_buffer_cuts {
        Some(0) => check(name, Verdict::Ok, "no client was cut".into(), ""),
        Some(n) => check(
            name,
            Verdict::Warning,
            format!("{n} clients were cut since the server started"),
            "if they are ours, doorbells were lost: raise client-output-buffer-limit pubsub, or lower handoff_bytes",
        ),
        // Redis before 7.0 does not count it.
        None => check(name, Verdict::Unknown, "the server does not tell".into(), ""),
    }
}

/// A message that waits for so long waits for somebody.
const LONG_WAIT: Duration = Duration::from_secs(60);

async fn waiting(courier: &Courier) -> Check {
    let name = "oldest message";
    match courier.overview(1000).await {
        Ok(numbers) if numbers.pending == 0 => check(name, Verdict::Ok, "none waits".into(), ""),
        Ok(numbers) => {
            let age = Duration::from_millis(numbers.oldest_age_ms);
            let found = format!("{:?} old, {} wait in {} sessions", age, numbers.pending, numbers.waiting);
            if age > LONG_WAIT {
                let advice = "nobody serves its session, or its sink fails: see `mcp-courier stats`";
                return check(name, Verdict::Warning, found, advice);
            }
            check(name, Verdict::Ok, found, "")
        }
        Err(e) => check(
            name,
            Verdict::Problem,
            e.to_string(),
            "the rights that are needed stand in docs/protocol.md",
        ),
    }
}

fn persistence(info: &ServerInfo) -> Check {
    let name = "persistence";
    match (info.aof, info.persistence_ok) {
        (_, Some(false)) => check(
            name,
            Verdict::Problem,
            "the last write or snapshot failed".into(),
            "look at the server's disk and log",
        ),
        (Some(true), _) => check(name, Verdict::Ok, "append-only file".into(), ""),
        (Some(false), _) => check(
            name,
            Verdict::Warning,
            "no append-only file".into(),
            "set appendonly yes, or a restart of the server loses what came after its last snapshot",
        ),
        (None, _) => check(name, Verdict::Unknown, "the server does not tell".into(), ""),
    }
}

fn role(info: &ServerInfo) -> Check {
    match info.role.as_deref() {
        Some("master") => check("role", Verdict::Ok, "primary".into(), ""),
        Some(role) => check(
            "role",
            Verdict::Problem,
            role.into(),
            "connect to the primary: this server takes no writes",
        ),
        None => check("role", Verdict::Unknown, "the server does not tell".into(), ""),
    }
}

async fn ping(courier: &Courier) -> Check {
    let mut took = Vec::new();
    for _ in 0..5 {
        match courier.ping().await {
            Ok(time) => took.push(time),
            Err(e) => {
                return check(
                    "round trip",
                    Verdict::Problem,
                    e.to_string(),
                    "look at the network and the server's load",
                );
            }
        }
    }
    took.sort();
    let median = took[took.len() / 2];
    if median > Duration::from_millis(50) {
        return check(
            "round trip",
            Verdict::Warning,
            format!("{median:?}"),
            "each delivery waits for it: move closer to the server",
        );
    }
    check("round trip", Verdict::Ok, format!("{median:?}"), "")
}

/// A push, its doorbell, a delivery and an ack, under a session of its own: every right that is needed is used.
async fn round_trip(courier: &Courier) -> Check {
    let name = "push, doorbell, delivery, ack";
    let problem = |why: String| {
        check(name, Verdict::Problem, why, "the rights that are needed stand in docs/protocol.md")
    };
    let session = match SessionId::new(format!("doctor-{}", uuid::Uuid::new_v4())) {
        Ok(session) => session,
        Err(e) => return problem(e.to_string()),
    };
    let (heard, mut hears) = mpsc::channel(1);
    let sink = move |_: Delivery| {
        let heard = heard.clone();
        async move {
            let _ = heard.send(()).await;
            Ok(())
        }
    };
    if let Err(e) = courier.subscribers().ensure_running(&session, sink).await {
        return problem(e.to_string());
    }
    let start = tokio::time::Instant::now();
    let push = Push::new(&session, "{}").ttl(Duration::from_secs(5)).dedupe(Duration::from_secs(1));
    if let Err(e) = courier.push(push).await {
        return problem(e.to_string());
    }
    match tokio::time::timeout(Duration::from_secs(5), hears.recv()).await {
        Ok(Some(())) if courier.metrics().doorbells_missed > 0 => {
            problem("delivered, and the doorbell was not heard: no right to its channel?".into())
        }
        Ok(Some(())) => {
            let took = start.elapsed();
            courier.subscribers().stop(&session).await;
            check(name, Verdict::Ok, format!("{took:?}"), "")
        }
        _ => problem("not delivered within 5 s".into()),
    }
}

fn check(name: &'static str, verdict: Verdict, found: String, advice: &'static str) -> Check {
    Check { name, verdict, found, advice }
}
