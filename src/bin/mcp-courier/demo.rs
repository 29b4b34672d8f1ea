//! `mcp-courier demo`: workers push, servers deliver and are killed, and at the end everything is counted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use mcp_courier::{
    CancellationToken, Courier, Delivery, Notification, NotificationSink, Push, SessionId, SinkError,
};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::args::{self, Server};
use crate::output::{self, FAILED, Failure};
use crate::signals;

/// How often a server side is killed.
const KILLS: u32 = 5;
/// Without progress for so long, what is missing is lost.
const PATIENCE: Duration = Duration::from_secs(30);
/// Unacked messages a session that a worker leaves ahead: the queues stay short, as real ones are.
const ROUND: u32 = 50;
/// How long a demo that ends early may take to empty its queues.
const TIDY: Duration = Duration::from_secs(10);

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
    pushed: AtomicU64,
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
    let url = match server.given() {
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

    let mut stopping = std::pin::pin!(signals::stop()?);
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

    // A life ends when its share of the messages is delivered; the last one stays.
    let life = |kills: u32| {
        let share = total * u64::from(kills + 1) / u64::from(KILLS + 1);
        Arc::new(Life { ends_at: if kills < KILLS { share } else { u64::MAX }, ..Life::default() })
    };
    let mut serving = ServerSide::start(connect().await?, &sessions, &clients, start, life(0)).await?;
    let (mut kills, mut last, mut moved) = (0, 0, Instant::now());
    let early = loop {
        tokio::select! {
            () = &mut stopping => break Some(Failure::failed("interrupted")),
            () = serving.life.over.cancelled() => {
                kills += 1;
                drop(serving);
                serving = ServerSide::start(connect().await?, &sessions, &clients, start, life(kills)).await?;
                continue;
            }
            () = tokio::time::sleep(Duration::from_millis(10)) => {}
        }
        let failed = std::iter::from_fn(|| pushers.try_join_next()).find_map(|done| done.ok()?.err());
        if let Some(e) = failed {
            break Some(e.into());
        }
        let now = clients.seen().delivered;
        progress.set_position(now);
        progress.set_message(format!("{kills} kills"));
        if now > last {
            (last, moved) = (now, Instant::now());
        }
        let done = now >= total && !serving.life.over.is_cancelled();
        if done || moved.elapsed() > PATIENCE {
            break None;
        }
    };
    progress.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();
    if early.is_none() {
        // The last delivery may overtake the answer to its own push.
        let answered = async { while pushers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(TIDY, answered).await;
    }
    pushers.shutdown().await;
    let pushed = clients.pushed.load(Ordering::SeqCst);
    let summary = clients.seen().summary(pushed, kills, seconds);
    if early.is_some() || pushed < total || summary.lost > 0 {
        tidy(&worker).await;
    }
    serving.courier.shutdown(Duration::from_secs(5)).await;
    if let Some(failure) = early {
        return Err(failure);
    }

    let failed = pushed < total || summary.lost > 0 || summary.out_of_order > 0;
    if json {
        output::json(&summary)?;
    } else {
        table(&summary)?;
    }
    Ok(if failed { FAILED } else { 0 })
}

/// Lets the server side take what is left: nobody else would ever look at the queues of this demo.
async fn tidy(worker: &Courier) {
    let emptied = async {
        while worker.overview(0).await.is_ok_and(|all| all.waiting > 0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let _ = tokio::time::timeout(TIDY, emptied).await;
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
            clients.pushed.fetch_add(1, Ordering::SeqCst);
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

/// Claims every session and delivers to the clients. Dropped, it is killed: its tasks and connections are gone, and
/// nothing is told to anybody.
struct ServerSide {
    courier: Courier,
    life: Arc<Life>,
}

/// A life ends while deliveries are in progress: the client has the messages, Redis does not know.
#[derive(Default)]
struct Life {
    /// Messages that the clients have by then.
    ends_at: u64,
    /// From here on no delivery ends.
    over: CancellationToken,
}

impl ServerSide {
    async fn start(
        courier: Courier,
        sessions: &[SessionId],
        clients: &Arc<Clients>,
        start: Instant,
        life: Arc<Life>,
    ) -> Result<Self, Failure> {
        let mut claims = JoinSet::new();
        for session in sessions {
            let (registry, session) = (courier.subscribers(), session.clone());
            let sink = Sink { clients: clients.clone(), start, life: life.clone() };
            claims.spawn(async move { registry.ensure_running(&session, sink).await });
        }
        while let Some(claimed) = claims.join_next().await {
            if let Ok(claimed) = claimed {
                claimed?;
            }
        }
        Ok(Self { courier, life })
    }
}

struct Sink {
    clients: Arc<Clients>,
    start: Instant,
    life: Arc<Life>,
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
        let delivered = {
            let mut seen = self.clients.seen();
            seen.note(&delivery.session, n, now.saturating_sub(pushed_us));
            seen.delivered
        };
        if delivered >= self.life.ends_at {
            self.life.over.cancel();
            return std::future::pending().await;
        }
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

    fn summary(&mut self, pushed: u64, kills: u32, seconds: f64) -> Summary {
        self.latencies.sort_unstable();
        let at = |share: f64| -> u64 {
            let last = self.latencies.len().saturating_sub(1);
            self.latencies.get((last as f64 * share) as usize).copied().unwrap_or(0)
        };
        Summary {
            pushed,
            delivered: self.delivered,
            redelivered: self.redelivered,
            lost: pushed.saturating_sub(self.delivered),
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
