//! Counts every message and its place: nothing may be lost, nothing may come out of its order.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::sync::Notify;

use super::measures::histogram;
use crate::output::Failure;

/// Bytes of a body that say which message it is.
const HEAD: usize = 20;
/// Without progress for so long, what is missing is lost.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A run of messages whose order is known, since one pusher sends them to one queue, one after the other.
#[derive(Default)]
struct Stream {
    sent: AtomicU32,
    seen: AtomicU32,
}

/// What was sent and what came, over the whole life of a set of queues.
pub struct Ledger {
    start: Instant,
    streams: Vec<Stream>,
    pushers: Vec<Notify>,
    sent: AtomicU64,
    seen: AtomicU64,
    /// Came after a later one, or without an earlier one.
    disordered: AtomicU64,
    /// Came again: at least once is what is promised.
    again: AtomicU64,
    foreign: AtomicU64,
    latencies: Mutex<Histogram<u64>>,
}

impl Ledger {
    pub fn new(streams: usize, pushers: usize) -> Result<Self, Failure> {
        Ok(Self {
            start: Instant::now(),
            streams: (0..streams).map(|_| Stream::default()).collect(),
            pushers: (0..pushers).map(|_| Notify::new()).collect(),
            sent: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            disordered: AtomicU64::new(0),
            again: AtomicU64::new(0),
            foreign: AtomicU64::new(0),
            latencies: Mutex::new(histogram()?),
        })
    }

    /// The body of the next message of a stream. Its clock runs from here.
    pub fn next(&self, stream: usize, pusher: usize, bytes: usize) -> Vec<u8> {
        let number = self.streams[stream].sent.fetch_add(1, Ordering::Relaxed);
        self.sent.fetch_add(1, Ordering::Relaxed);
        let mut body = vec![b'x'; bytes.max(HEAD)];
        body[0..4].copy_from_slice(&(stream as u32).to_le_bytes());
        body[4..8].copy_from_slice(&number.to_le_bytes());
        body[8..12].copy_from_slice(&(pusher as u32).to_le_bytes());
        body[12..20].copy_from_slice(&self.now_ns().to_le_bytes());
        body
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A message has come.
    pub fn note(&self, body: &[u8]) {
        let now = self.now_ns();
        let Some((stream, number, pusher, at)) = head(body) else {
            self.foreign.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let (Some(stream), Some(pusher)) = (self.streams.get(stream), self.pushers.get(pusher)) else {
            self.foreign.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let due = stream.seen.load(Ordering::Relaxed);
        if number < due {
            self.again.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if number > due {
            self.disordered.fetch_add(1, Ordering::Relaxed);
        }
        stream.seen.store(number + 1, Ordering::Relaxed);
        let mut latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        latencies.saturating_record(now.saturating_sub(at).max(1));
        drop(latencies);
        self.seen.fetch_add(1, Ordering::Release);
        pusher.notify_one();
    }

    /// Until the message that this pusher sent last has come. For pushers with one message in flight.
    pub async fn delivered(&self, pusher: usize) {
        self.pushers[pusher].notified().await;
    }

    /// Forgets what pushers that did not wait were told.
    pub fn forget_signals(&self) {
        for pusher in &self.pushers {
            let _ = std::pin::pin!(pusher.notified()).enable();
        }
    }

    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    pub fn seen(&self) -> u64 {
        self.seen.load(Ordering::Acquire)
    }

    /// Latencies since the last call, in nanoseconds.
    pub fn take_latencies(&self) -> Result<Histogram<u64>, Failure> {
        let mut latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::replace(&mut *latencies, histogram()?))
    }

    /// Until all that was sent has come; then everything must add up.
    pub async fn settle(&self, what: &str) -> Result<(), Failure> {
        let (mut last, mut moved) = (self.seen(), Instant::now());
        while self.seen() < self.sent() && moved.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_micros(200)).await;
            if self.seen() > last {
                (last, moved) = (self.seen(), Instant::now());
            }
        }
        self.check(what)
    }

    /// An error when something is missing or out of order.
    pub fn check(&self, what: &str) -> Result<(), Failure> {
        let lost = self.sent().saturating_sub(self.seen());
        let disordered = self.disordered.load(Ordering::Relaxed);
        let foreign = self.foreign.load(Ordering::Relaxed);
        if lost + disordered + foreign > 0 {
            return Err(Failure::failed(format!(
                "{what}: of {} messages {lost} lost, {disordered} out of order, {foreign} not ours",
                self.sent()
            )));
        }
        Ok(())
    }

    /// Deliveries beyond the first.
    pub fn again(&self) -> u64 {
        self.again.load(Ordering::Relaxed)
    }
}

fn head(body: &[u8]) -> Option<(usize, u32, usize, u64)> {
    let word = |at: usize| Some(u32::from_le_bytes(body.get(at..at + 4)?.try_into().ok()?));
    let at = u64::from_le_bytes(body.get(12..20)?.try_into().ok()?);
    Some((word(0)? as usize, word(4)?, word(8)? as usize, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> (Ledger, [Vec<u8>; 3]) {
        let ledger = Ledger::new(2, 1).expect("a ledger");
        let bodies = std::array::from_fn(|_| ledger.next(1, 0, 64));
        (ledger, bodies)
    }

    #[test]
    fn all_in_order_adds_up_and_a_repeated_one_is_no_fault() {
        let (ledger, bodies) = three();
        for body in bodies.iter().chain(&bodies) {
            ledger.note(body);
        }
        assert!(ledger.check("t").is_ok());
        assert_eq!((ledger.seen(), ledger.again()), (3, 3));
    }

    #[test]
    fn a_lost_one_is_told() {
        let (ledger, [a, b, _]) = three();
        ledger.note(&a);
        ledger.note(&b);
        assert!(ledger.check("t").expect_err("one is missing").to_string().contains("1 lost"));
    }

    #[test]
    fn an_overtaken_one_is_told() {
        let (ledger, [a, b, c]) = three();
        for body in [&a, &c, &b] {
            ledger.note(body);
        }
        assert!(ledger.check("t").expect_err("c came before b").to_string().contains("1 out of order"));
    }

    #[test]
    fn what_is_not_ours_is_told() {
        let (ledger, bodies) = three();
        bodies.iter().for_each(|body| ledger.note(body));
        ledger.note(b"short");
        assert!(ledger.check("t").is_err());
    }
}
