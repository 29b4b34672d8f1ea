//! Small costs of this process: `cargo bench --bench micro`. What the whole costs under load is measured by
//! `cargo run --release --features cli -- bench`, beside raw baselines.
//!
//! Everything here goes through the public API. The rows on `memory://` hold the engine in memory and its Lua as well:
//! compare them with themselves, from one change to the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use divan::Bencher;
use mcp_courier::{Courier, Delivery, MessageId, Notification, Push, SessionId};
use tokio::runtime::Runtime;

fn main() {
    divan::main();
}

const ID: &str = "00000000-0000-5e55-1011-000000000001";

fn progress() -> Notification {
    Notification::new("notifications/progress")
        .param("progressToken", "task-1")
        .param("progress", 42)
        .param("total", 100)
        .meta("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
}

#[divan::bench]
fn session_id() -> SessionId {
    SessionId::new(divan::black_box(ID)).expect("valid")
}

#[divan::bench]
fn notification_to_push(bencher: Bencher<'_, '_>) {
    let (session, notification) = (SessionId::new(ID).expect("valid"), progress());
    bencher.bench(|| Push::notification(&session, &notification).expect("it has a method"));
}

#[divan::bench]
fn delivery_to_notification(bencher: Bencher<'_, '_>) {
    let (session, id) = (SessionId::new(ID).expect("valid"), MessageId::new("m").expect("valid"));
    let body = serde_json::to_vec(&progress()).expect("JSON");
    let delivery = Delivery::synthetic(&session, &id, 1, body);
    bencher.bench(|| delivery.notification().expect("a notification"));
}

/// A courier that serves sessions, and how many messages came.
struct Served {
    runtime: Runtime,
    courier: Courier,
    sessions: Vec<SessionId>,
    delivered: Arc<AtomicU64>,
}

impl Served {
    fn new(sessions: usize) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let sessions: Vec<_> =
            (0..sessions).map(|n| SessionId::new(format!("{ID}-{n}")).expect("valid")).collect();
        let delivered = Arc::new(AtomicU64::new(0));
        let courier = runtime.block_on(async {
            let courier = Courier::builder().dedupe(Duration::ZERO).connect("memory://").await;
            let courier = courier.expect("it is in this process");
            for session in &sessions {
                let delivered = delivered.clone();
                let sink = move |_: Delivery| {
                    delivered.fetch_add(1, Ordering::Relaxed);
                    std::future::ready(Ok(()))
                };
                courier.subscribers().ensure_running(session, sink).await.expect("claimed");
            }
            courier
        });
        Self { runtime, courier, sessions, delivered }
    }

    /// Until so many more messages were delivered and acked.
    async fn acked(&self, all: u64) {
        while self.courier.metrics().acked < all {
            tokio::task::yield_now().await;
        }
        assert_eq!(self.delivered.load(Ordering::Relaxed), all, "each of them once");
    }
}

/// Push, doorbell, delivery, ack: one message, nothing else to do.
#[divan::bench(args = [1, 1000])]
fn one_message(bencher: Bencher<'_, '_>, sessions: usize) {
    let served = Served::new(sessions);
    let mut sent = 0_u64;
    bencher.bench_local(|| {
        served.runtime.block_on(async {
            let session = &served.sessions[sent as usize % sessions];
            served.courier.push(Push::new(session, vec![b'x'; 256])).await.expect("queued");
            sent += 1;
            served.acked(sent).await;
        });
    });
}

/// 64 messages in one call, over as many sessions or to a single one: what the batching of acks is worth.
#[divan::bench(args = [1, 64])]
fn sixty_four_messages(bencher: Bencher<'_, '_>, sessions: usize) {
    let served = Served::new(sessions);
    let mut sent = 0_u64;
    bencher.counter(divan::counter::ItemsCount::new(64_u32)).bench_local(|| {
        served.runtime.block_on(async {
            let batch = (0..64).map(|n| Push::new(&served.sessions[n % sessions], vec![b'x'; 256]));
            for pushed in served.courier.push_many(batch).await {
                pushed.expect("queued");
            }
            sent += 64;
            served.acked(sent).await;
        });
    });
}
