//! Reading an event log as it grows: what a client that reads a stream gets, whichever replica sends on it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rmcp::transport::common::server_side_http::ServerSseMessage;
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::hub::Hub;
use super::limits::ms;
use super::wire;
use crate::engine::Signal;
use crate::keys::Sid;
use crate::script::{self, Page};
use crate::{Error, Result};

/// Events in one reply, and about how many bytes.
const PAGE: (u64, u64) = (64, 1 << 20);
/// Events that came by the bell and wait to be taken.
const HEARD: usize = 64;

/// The logs that are read here.
#[derive(Default)]
pub(super) struct Tails {
    numbers: AtomicU64,
    by_stream: Mutex<HashMap<Sid, Vec<Arc<Tail>>>>,
}

/// One reader of a log.
pub(super) struct Tail {
    pub(super) stream: Sid,
    /// Whose keys the log is among.
    pub(super) home: String,
    pub(super) token: String,
    /// A log of one request, which ends with its answer.
    pub(super) request_wise: bool,
    number: u64,
    progress: Mutex<Progress>,
    wake: Notify,
    end: CancellationToken,
}

struct Progress {
    after: u64,
    /// `(before, number, event)`, as the bell brought them.
    heard: VecDeque<(u64, u64, Bytes)>,
    /// The log has to be asked.
    look: bool,
}

/// Where a reader begins.
pub(super) enum From {
    /// After this event, in a log that there is.
    Event(u64),
    /// After what the last reader was given.
    Given,
}

impl Tails {
    fn lock(&self) -> MutexGuard<'_, HashMap<Sid, Vec<Arc<Tail>>>> {
        self.by_stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn all(&self) -> Vec<Arc<Tail>> {
        self.lock().values().flatten().cloned().collect()
    }

    /// Runs inside the driver of the bell connection.
    pub(super) fn hear(&self, signal: Signal<'_>) {
        match signal {
            Signal::LookAgain => self.all().iter().for_each(|tail| tail.look()),
            Signal::Rang(payload) => {
                let end = payload.iter().position(|&b| b == b'\n');
                let line = std::str::from_utf8(&payload[..end.unwrap_or(payload.len())]).unwrap_or_default();
                let mut words = line.split(' ');
                let Some(stream) = words.next() else { return };
                let mut number = || words.next().and_then(|word| word.parse().ok());
                let (before, newest) = (number(), number());
                for tail in self.lock().get(stream).into_iter().flatten() {
                    match (before, newest, end) {
                        (Some(before), Some(newest), Some(end)) => {
                            tail.heard(before, newest, Bytes::copy_from_slice(&payload[end + 1..]));
                        }
                        _ => tail.look(),
                    }
                }
            }
        }
    }

    fn remove(&self, tail: &Tail) {
        let mut all = self.lock();
        if let Some(same) = all.get_mut(&tail.stream) {
            same.retain(|other| other.number != tail.number);
            if same.is_empty() {
                all.remove(&tail.stream);
            }
        }
    }
}

impl Tail {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn after(&self) -> u64 {
        self.progress().after
    }

    pub(super) fn look(&self) {
        self.progress().look = true;
        self.wake.notify_one();
    }

    /// Nobody will write to the log any more.
    pub(super) fn end(&self) {
        self.end.cancel();
    }

    fn heard(&self, before: u64, number: u64, event: Bytes) {
        let mut progress = self.progress();
        if progress.heard.len() < HEARD {
            progress.heard.push_back((before, number, event));
        } else {
            progress.look = true;
        }
        drop(progress);
        self.wake.notify_one();
    }

    /// What the bell brought, if it follows what was read. Otherwise the log has to be asked.
    fn take_heard(&self) -> Option<(u64, Bytes)> {
        let mut progress = self.progress();
        while let Some((before, number, event)) = progress.heard.pop_front() {
            if number <= progress.after {
                continue;
            }
            if before == progress.after && !progress.look {
                return Some((number, event));
            }
            progress.look = true;
        }
        None
    }

    fn take_look(&self) -> bool {
        std::mem::take(&mut self.progress().look)
    }
}

/// Opens a reader; the newest one of a log gets what comes, an older one stays open and gets nothing.
pub(super) async fn open(
    hub: &Arc<Hub>,
    stream: &str,
    from: From,
    end: CancellationToken,
) -> Result<ReceiverStream<ServerSseMessage>> {
    hub.start().await?;
    let key = Hub::stream_key(stream);
    let home = Hub::home_of(stream).to_owned();
    let number = hub.tails.numbers.fetch_add(1, Ordering::Relaxed);
    let token = format!("{}:{number}", hub.name);
    let core = &hub.courier.core;
    let must_exist = matches!(from, From::Event(_));
    let ttl_ms = ms(hub.limits.event_ttl);
    let opening = || script::event_open(&core.cmd, hub.keys_of(&home), &key, &token, must_exist, ttl_ms);
    let opened = hub.courier.repeat("event_open", opening, true).await?;
    let opened = opened.ok_or_else(|| Error::invalid("event id", "its stream is not kept any more"))?;
    let after = match from {
        From::Event(number) => number,
        From::Given => opened.given,
    };
    let tail = Arc::new(Tail {
        request_wise: home == stream,
        stream: key.clone(),
        home,
        token,
        number,
        progress: Mutex::new(Progress { after, heard: VecDeque::new(), look: true }),
        wake: Notify::new(),
        end,
    });
    hub.tails.lock().entry(key).or_default().push(tail.clone());
    // One event waits here at most: what is further on its way than that counts as given.
    let (tx, rx) = mpsc::channel(1);
    tokio::spawn(run(hub.clone(), tail, tx));
    Ok(ReceiverStream::new(rx))
}

async fn run(hub: Arc<Hub>, tail: Arc<Tail>, tx: mpsc::Sender<ServerSseMessage>) {
    let stop = hub.courier.core.stop.clone();
    tokio::select! {
        () = deliver(&hub, &tail, &tx) => {}
        () = tx.closed() => {}
        () = tail.end.cancelled() => {}
        () = stop.cancelled() => {}
    }
    drop(tx);
    hub.tails.remove(&tail);
    let core = &hub.courier.core;
    let closing =
        script::event_close(&core.cmd, hub.keys_of(&tail.home), &tail.stream, &tail.token, tail.after());
    if let Err(e) = closing.await {
        tracing::debug!(error = %e, "an event log keeps a reader that is gone, until the next one comes");
    }
}

/// Returns when the stream is complete.
async fn deliver(hub: &Hub, tail: &Tail, tx: &mpsc::Sender<ServerSseMessage>) {
    let core = &hub.courier.core;
    let mut pause = Duration::from_millis(20);
    loop {
        if let Some((number, event)) = tail.take_heard() {
            if !give(tail, tx, number, &event).await {
                return;
            }
            continue;
        }
        if !tail.take_look() {
            tail.wake.notified().await;
            continue;
        }
        let after = tail.after();
        let read =
            script::event_read(&core.cmd, hub.keys_of(&tail.home), &tail.stream, &tail.token, after, PAGE);
        match read.await {
            Ok(Page::Shadow) => {}
            Ok(Page::Events { floor, events }) => {
                pause = Duration::from_millis(20);
                if after > 0 && floor > after {
                    tracing::warn!(
                        stream = tail.stream.as_str(),
                        "events were trimmed before a client read them"
                    );
                }
                if !events.is_empty() {
                    tail.progress().look = true;
                }
                for event in events {
                    let Some((number, event)) = numbered(&event) else { continue };
                    if !give(tail, tx, number, event).await {
                        return;
                    }
                }
            }
            Err(e) => {
                tracing::debug!(error = %e, "could not read an event log");
                tail.progress().look = true;
                tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
                pause = (pause * 2).min(Duration::from_secs(1));
            }
        }
    }
}

fn numbered(member: &[u8]) -> Option<(u64, &[u8])> {
    let colon = member.iter().position(|&b| b == b':')?;
    Some((std::str::from_utf8(&member[..colon]).ok()?.parse().ok()?, &member[colon + 1..]))
}

/// False when the stream is over.
async fn give(tail: &Tail, tx: &mpsc::Sender<ServerSseMessage>, number: u64, event: &[u8]) -> bool {
    let id = format!("{}/{number}", tail.stream.as_str());
    match wire::decode_event(id, event) {
        Ok(event) => {
            let last = tail.request_wise && wire::is_final(&event);
            if tx.send(event).await.is_err() || last {
                return false;
            }
        }
        Err(why) => {
            tracing::warn!(stream = tail.stream.as_str(), number, why, "an event that is not understood")
        }
    }
    tail.progress().after = number;
    true
}
