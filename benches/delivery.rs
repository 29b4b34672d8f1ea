//! Delivery against a raw baseline, interleaved in one run: `cargo bench --bench delivery`.
//!
//! Needs `REDIS_URL`, or a `redis-server` on the PATH that it starts for itself on the loopback. Every figure is the
//! median of the rounds; read the ratios, not the absolute values. Nothing may be lost or out of order: each run counts.
//!
//! - idle latency: one message at a time, push to sink, with N sessions claimed; baseline: `LPUSH` to a connection
//!   that waits in `BRPOP`.
//! - throughput: 64 pushers, push to delivered and acked, over N sessions; baseline: 64 pushers and 64 connections
//!   that wait in `BRPOP`, which acknowledges nothing.

use std::collections::HashMap;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mcp_courier::{Courier, Delivery, Push, SessionId};
use redis::aio::MultiplexedConnection;
use tokio::sync::Notify;
use tokio::task::JoinSet;

const ROUNDS: usize = 5;
const PUSHERS: usize = 64;
const BODY: usize = 256;

#[tokio::main]
async fn main() {
    let server = Server::find();
    let client = redis::Client::open(&*server.url).expect("a Redis URL");
    let mut info = client.get_multiplexed_async_connection().await.expect("the server answers");
    println!(
        "redis {}, mcp-courier {}, {ROUNDS} rounds",
        version(&mut info).await,
        env!("CARGO_PKG_VERSION")
    );
    println!("{:<34} {:>12} {:>12} {:>8}", "", "courier", "baseline", "ratio");

    for sessions in [1, 1_000] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            theirs.push(brpop_latency(&client, 500).await);
            ours.push(courier_latency(&server.url, sessions, 500).await);
        }
        report(&format!("idle latency p50, {sessions} sessions, us"), median(ours), median(theirs));
    }
    for sessions in [64, 1_000] {
        let messages = 40_000;
        let (mut ours, mut theirs, mut our_cpu, mut their_cpu) = (vec![], vec![], vec![], vec![]);
        for _ in 0..ROUNDS {
            let before = cpu(&mut info).await;
            theirs.push(brpop_throughput(&client, messages).await);
            let between = cpu(&mut info).await;
            ours.push(courier_throughput(&server.url, sessions, messages).await);
            let after = cpu(&mut info).await;
            their_cpu.push((between - before) / messages as f64 * 1e6);
            our_cpu.push((after - between) / messages as f64 * 1e6);
        }
        report(&format!("throughput, {sessions} sessions, msg/s"), median(ours), median(theirs));
        report("  Redis CPU a message, us", median(our_cpu), median(their_cpu));
    }
}

fn report(what: &str, ours: f64, theirs: f64) {
    println!("{what:<34} {ours:>12.1} {theirs:>12.1} {:>8.2}", ours / theirs);
    println!(
        "{}",
        serde_json::json!({ "bench": what.trim(), "courier": ours, "baseline": theirs, "ratio": ours / theirs })
    );
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn courier_latency(url: &str, sessions: usize, messages: usize) -> f64 {
    let courier = connect(url).await;
    let heard = Arc::new((Notify::new(), Mutex::new(None)));
    for n in 0..sessions {
        let heard = heard.clone();
        let sink = move |_: Delivery| {
            *heard.1.lock().expect("not poisoned") = Some(Instant::now());
            heard.0.notify_one();
            async { Ok(()) }
        };
        courier.subscribers().ensure_running(&session(n), sink).await.expect("claimed");
    }
    let worker = connect_as(url, &courier).await;
    let mut taken = Vec::with_capacity(messages);
    for n in 0..messages {
        let start = Instant::now();
        let pushed = worker.push(Push::new(&session(n % sessions), vec![b'x'; BODY]));
        let (pushed, ()) = tokio::join!(pushed, heard.0.notified());
        pushed.expect("queued");
        let at = heard.1.lock().expect("not poisoned").take().expect("heard");
        taken.push((at - start).as_secs_f64() * 1e6);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    courier.shutdown(Duration::from_secs(10)).await;
    median(taken)
}

async fn brpop_latency(client: &redis::Client, messages: usize) -> f64 {
    let mut waiting = blocking(client).await;
    let mut pushing = client.get_multiplexed_async_connection().await.expect("connected");
    let key = format!("bench:{}", unique());
    let mut taken = Vec::with_capacity(messages);
    for _ in 0..messages {
        let mut pop = redis::cmd("BRPOP");
        pop.arg(&key).arg(5);
        let popping = pop.exec_async(&mut waiting);
        let pushing = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let start = Instant::now();
            redis::cmd("LPUSH")
                .arg(&key)
                .arg(vec![b'x'; BODY])
                .exec_async(&mut pushing)
                .await
                .expect("pushed");
            start
        };
        let popping = async {
            popping.await.expect("popped");
            Instant::now()
        };
        let (start, end) = tokio::join!(pushing, popping);
        taken.push((end - start).as_secs_f64() * 1e6);
    }
    median(taken)
}

async fn courier_throughput(url: &str, sessions: usize, messages: usize) -> f64 {
    let courier = connect(url).await;
    let seen: Arc<Mutex<HashMap<SessionId, usize>>> = Arc::default();
    let delivered = Arc::new(AtomicUsize::new(0));
    for n in 0..sessions {
        let (seen, delivered) = (seen.clone(), delivered.clone());
        let sink = move |d: Delivery| {
            let number: usize =
                std::str::from_utf8(&d.body()[..8]).ok().and_then(|n| n.parse().ok()).expect("a number");
            let mut seen = seen.lock().expect("not poisoned");
            let last = seen.entry(d.session.clone()).or_insert(0);
            assert!(number > *last, "out of order: {number} after {last}");
            *last = number;
            delivered.fetch_add(1, Ordering::Relaxed);
            async { Ok(()) }
        };
        courier.subscribers().ensure_running(&session(n), sink).await.expect("claimed");
    }
    let worker = connect_as(url, &courier).await;
    let start = Instant::now();
    let mut pushers = JoinSet::new();
    for p in 0..PUSHERS {
        let worker = worker.clone();
        pushers.spawn(async move {
            // Each session has one pusher, so that its order is known.
            let mine: Vec<_> = (p..sessions).step_by(PUSHERS).collect();
            for n in 0..messages / PUSHERS {
                let mut body = format!("{:08}", n + 1).into_bytes();
                body.resize(BODY, b'x');
                worker.push(Push::new(&session(mine[n % mine.len()]), body)).await.expect("queued");
            }
        });
    }
    while pushers.join_next().await.is_some() {}
    let total = messages / PUSHERS * PUSHERS;
    while courier.metrics().acked < total as u64 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = start.elapsed().as_secs_f64();
    assert_eq!(delivered.load(Ordering::Relaxed), total, "delivered once each");
    courier.shutdown(Duration::from_secs(10)).await;
    total as f64 / took
}

async fn brpop_throughput(client: &redis::Client, messages: usize) -> f64 {
    let run = unique();
    let each = messages / PUSHERS;
    let mut all = JoinSet::new();
    let mut poppers = Vec::new();
    for _ in 0..PUSHERS {
        poppers.push(blocking(client).await);
    }
    let pushing = client.get_multiplexed_async_connection().await.expect("connected");
    let start = Instant::now();
    for (p, mut waiting) in poppers.into_iter().enumerate() {
        let key = format!("bench:{run}:{p}");
        let mut pushing = pushing.clone();
        let pushed_key = key.clone();
        all.spawn(async move {
            for _ in 0..each {
                redis::cmd("LPUSH")
                    .arg(&pushed_key)
                    .arg(vec![b'x'; BODY])
                    .exec_async(&mut pushing)
                    .await
                    .expect("pushed");
            }
        });
        all.spawn(async move {
            for _ in 0..each {
                redis::cmd("BRPOP").arg(&key).arg(5).exec_async(&mut waiting).await.expect("popped");
            }
        });
    }
    while let Some(done) = all.join_next().await {
        done.expect("no panic");
    }
    (each * PUSHERS) as f64 / start.elapsed().as_secs_f64()
}

async fn blocking(client: &redis::Client) -> MultiplexedConnection {
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    client.get_multiplexed_async_connection_with_config(&config).await.expect("connected")
}

fn session(n: usize) -> SessionId {
    SessionId::new(format!("session-{n}")).expect("valid")
}

fn unique() -> u64 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    (u64::from(std::process::id()) << 20) + NEXT.fetch_add(1, Ordering::Relaxed) as u64
}

static PREFIX: Mutex<String> = Mutex::new(String::new());

async fn connect(url: &str) -> Courier {
    let prefix = format!("bench:{}", unique());
    PREFIX.lock().expect("not poisoned").clone_from(&prefix);
    Courier::builder().prefix(prefix).dedupe(Duration::from_secs(2)).connect(url).await.expect("connected")
}

/// A second courier on the queues of the first, as a worker in another process would be.
async fn connect_as(url: &str, _: &Courier) -> Courier {
    let prefix = PREFIX.lock().expect("not poisoned").clone();
    Courier::builder().prefix(prefix).dedupe(Duration::from_secs(2)).connect(url).await.expect("connected")
}

async fn info(connection: &mut MultiplexedConnection, section: &str) -> String {
    redis::cmd("INFO").arg(section).query_async(connection).await.expect("INFO")
}

async fn version(connection: &mut MultiplexedConnection) -> String {
    let text = info(connection, "server").await;
    text.lines().find_map(|l| l.strip_prefix("redis_version:")).unwrap_or("?").trim().to_owned()
}

async fn cpu(connection: &mut MultiplexedConnection) -> f64 {
    let text = info(connection, "cpu").await;
    let value = |name: &str| -> f64 {
        text.lines().find_map(|l| l.strip_prefix(name)).and_then(|v| v.trim().parse().ok()).unwrap_or(0.0)
    };
    value("used_cpu_user:") + value("used_cpu_sys:")
}

/// `REDIS_URL`, or a server of our own that ends with us.
struct Server {
    url: String,
    child: Option<Child>,
}

impl Server {
    fn find() -> Self {
        if let Ok(url) = std::env::var("REDIS_URL") {
            return Self { url, child: None };
        }
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .expect("set REDIS_URL, or put redis-server on the PATH");
        let up = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        assert!(up, "redis-server did not start");
        Self { url: format!("redis://127.0.0.1:{port}"), child: Some(child) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
