//! `mcp-courier demo`: workers push, servers deliver and are killed, and at the end everything is counted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use mcp_courier::{Courier, Delivery, Notification, NotificationSink, Push, SessionId, SinkError};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::args::{self, Server};
use crate::output::{self, FAILED, Failure};

/// How often a server side is killed.
const KILLS: u32 = 5;
/// Without progress for so long, what is missing is lost.
const PATIENCE: Duration = Duration::from_secs(30);
/// Unacked messages a session that a worker leaves ahead: the queues stay short, as real ones are.
const ROUND: u32 = 50;

/// The table at the end.
#[derive(Serialize)]
struct Summary {
    pushed: u64,
    delivered: u64,
    redelivered: u64,
    lost: u64,
    out_of_order: u64,
    latency: Latency,
    kills: u32,
    seconds: f64,
}

/// From push to first delivery, in microseconds.
#[derive(Serialize)]
struct Latency {
    p50_us: u64,
    p99_us: u64,
    max_us: u64,
}

/// What the clients saw. It outlives every server side, as a client does.
#[derive(Default)]
struct Clients {
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// For each session, the number that comes next, and which came already.
    sessions: HashMap<SessionId, Vec<bool>>,
    next: HashMap<SessionId, usize>,
    delivered: u64,
    redelivered: u64,
    out_of_order: u64,
    latencies: Vec<u64>,
}

pub async fn run(server: &Server, json: bool, args: args::Demo) -> Result<u8, Failure> {
    let unique = uuid::Uuid::new_v4().simple().to_string();
    let url = match server.url.as_deref() {
        None | Some("memory://") => format!("memory://demo-{unique}"),
        Some(url) => url.to_owned(),
    };
    let prefix = format!("{}:demo:{}", server.prefix, &unique[..12]);
    let connect = || {
        let builder = Courier::builder()
            .prefix(&prefix)
            .dedupe(Duration::from_secs(30))
            .dead_ttl(Duration::from_secs(60));
        builder.max_attempts(1_000).max_pending(10_000_000).connect(&url)
    };
    let worker = connect().await?;
    let sessions: Vec<SessionId> =
        (0..args.sessions).map(|n| SessionId::new(format!("session-{n}"))).collect::<Result<_, _>>()?;
    let total = u64::from(args.messages);
    if !json {
        let workers = args.workers;
        output::line(&format!(
            "{total} messages to {} sessions by {workers} workers through {}; the server side is killed up to {KILLS} times",
            sessions.len(),
            if url.starts_with("memory:") { "memory://, in this process" } else { "Redis" },
        ))?;
    }
    let progress = if json { ProgressBar::hidden() } else { ProgressBar::new(total) };
    let style = "{elapsed_precise} {wide_bar} {pos}/{len} delivered, {msg}";
    progress.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));

    let start = Instant::now();
    let clients = Arc::new(Clients::default());
    let mut pushers = JoinSet::new();
    for w in 0..args.workers {
        let (worker, clients) = (worker.clone(), clients.clone());
        let mine: Vec<_> = (w..args.sessions).step_by(args.workers as usize).collect();
        let (sessions, per_session) = (sessions.clone(), shares(args.messages, args.sessions));
        pushers
            .spawn(async move { push_all(&worker, &clients, &sessions, &mine, &per_session, start).await });
    }

    let mut serving = serve(&connect().await?, &sessions, &clients, start).await?;
    let (mut kills, mut last, mut moved) = (0, 0, Instant::now());
    let mut failed_push = None;
    let delivered = loop {
        tokio::time::sleep(Duration::from_millis(10)).await;
        while let Some(done) = pushers.try_join_next() {
            if let Ok(Err(e)) = done {
                failed_push = Some(e);
            }
        }
        let now = clients.seen().delivered;
        progress.set_position(now);
        progress.set_message(format!("{kills} kills"));
        if now > last {
            (last, moved) = (now, Instant::now());
        }
        if now >= total || failed_push.is_some() || moved.elapsed() > PATIENCE {
            break now;
        }
        // In the middle of its work: nothing is released, nothing is told, its tasks are gone.
        if kills < KILLS && now * u64::from(KILLS + 1) >= total * u64::from(kills + 1) {
            kills += 1;
            drop(serving);
            serving = serve(&connect().await?, &sessions, &clients, start).await?;
        }
    };
    progress.finish_and_clear();
    if let Some(e) = failed_push {
        return Err(e.into());
    }
    serving.shutdown(Duration::from_secs(5)).await;

    let seconds = start.elapsed().as_secs_f64();
    let summary = clients.seen().summary(total, delivered, kills, seconds);
    let failed = summary.lost > 0 || summary.out_of_order > 0;
    if json {
        output::json(&summary)?;
    } else {
        table(&summary)?;
    }
    Ok(if failed { FAILED } else { 0 })
}

/// Messages of each session: as even as can be, the total as asked for.
fn shares(messages: u32, sessions: u32) -> Vec<u32> {
    (0..sessions).map(|n| messages / sessions + u32::from(n < messages % sessions)).collect()
}

async fn push_all(
    worker: &Courier,
    clients: &Clients,
    sessions: &[SessionId],
    mine: &[u32],
    per_session: &[u32],
    start: Instant,
) -> mcp_courier::Result<()> {
    let longest = mine.iter().map(|&s| per_session[s as usize]).max().unwrap_or(0);
    for n in 0..longest {
        let now = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        let round = mine.iter().filter(|&&s| n < per_session[s as usize]).map(|&s| {
            let notification =
                Notification::new("notifications/message").param("n", n).param("pushed_us", now);
            Push::notification(&sessions[s as usize], &notification)
        });
        for pushed in worker.push_many(round.collect::<Result<Vec<_>, _>>()?).await {
            pushed?;
        }
        // Not faster than the slowest of the clients, by much.
        while n > ROUND
            && mine.iter().any(|&s| {
                clients.next_of(&sessions[s as usize]) + ROUND as usize <= n as usize
                    && n < per_session[s as usize]
            })
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    Ok(())
}

/// A server side: claims every session and delivers to the clients.
async fn serve(
    courier: &Courier,
    sessions: &[SessionId],
    clients: &Arc<Clients>,
    start: Instant,
) -> Result<Courier, Failure> {
    let mut claims = JoinSet::new();
    for session in sessions {
        let (registry, session, clients) = (courier.subscribers(), session.clone(), clients.clone());
        claims.spawn(async move { registry.ensure_running(&session, Sink { clients, start }).await });
    }
    while let Some(claimed) = claims.join_next().await {
        if let Ok(claimed) = claimed {
            claimed?;
        }
    }
    Ok(courier.clone())
}

struct Sink {
    clients: Arc<Clients>,
    start: Instant,
}

impl NotificationSink for Sink {
    async fn deliver(&self, delivery: Delivery) -> Result<(), SinkError> {
        let notification = delivery.notification().map_err(SinkError::rejected)?;
        let params = notification.params.unwrap_or_default();
        let number = |name: &str| params.get(name).and_then(serde_json::Value::as_u64);
        let (Some(n), Some(pushed_us)) = (number("n"), number("pushed_us")) else {
            return Err(SinkError::rejected("not of this demo"));
        };
        let now = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        let n = usize::try_from(n).map_err(SinkError::rejected)?;
        self.clients.seen().note(&delivery.session, n, now.saturating_sub(pushed_us));
        Ok(())
    }
}

impl Clients {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_of(&self, session: &SessionId) -> usize {
        self.seen().next.get(session).copied().unwrap_or(0)
    }
}

impl Seen {
    fn note(&mut self, session: &SessionId, n: usize, latency_us: u64) {
        let came = self.sessions.entry(session.clone()).or_default();
        if came.len() <= n {
            came.resize(n + 1, false);
        }
        if came[n] {
            self.redelivered += 1;
            return;
        }
        came[n] = true;
        let next = self.next.entry(session.clone()).or_default();
        if n != *next {
            self.out_of_order += 1;
        }
        *next = n + 1;
        self.delivered += 1;
        self.latencies.push(latency_us);
    }

    fn summary(&mut self, pushed: u64, delivered: u64, kills: u32, seconds: f64) -> Summary {
        self.latencies.sort_unstable();
        let at = |share: f64| -> u64 {
            let last = self.latencies.len().saturating_sub(1);
            self.latencies.get((last as f64 * share) as usize).copied().unwrap_or(0)
        };
        Summary {
            pushed,
            delivered,
            redelivered: self.redelivered,
            lost: pushed.saturating_sub(delivered),
            out_of_order: self.out_of_order,
            latency: Latency { p50_us: at(0.5), p99_us: at(0.99), max_us: at(1.0) },
            kills,
            seconds,
        }
    }
}

fn table(s: &Summary) -> Result<(), Failure> {
    let rate = s.delivered as f64 / s.seconds;
    for (name, value) in [
        ("pushed", s.pushed.to_string()),
        ("delivered", format!("{}  ({rate:.0} a second)", s.delivered)),
        ("redelivered", format!("{}  (at {} kills)", s.redelivered, s.kills)),
        ("lost", s.lost.to_string()),
        ("out_of_order", s.out_of_order.to_string()),
        (
            "latency",
            format!(
                "p50 {}, p99 {}, max {}",
                us(s.latency.p50_us),
                us(s.latency.p99_us),
                us(s.latency.max_us)
            ),
        ),
    ] {
        output::line(&format!("{name:<14}{value}"))?;
    }
    Ok(())
}

fn us(us: u64) -> String {
    if us < 10_000 { format!("{us} us") } else { format!("{:.1} ms", us as f64 / 1000.0) }
}
