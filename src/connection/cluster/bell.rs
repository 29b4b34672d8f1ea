//! The doorbell side of a Cluster: each partition's inbox is a shard channel at the master that has its slot.
//!
//! Nobody else restores a shard subscription: a migrated slot, a failover and a lost connection each leave inboxes
//! silent. The keeper compares, whenever something happens, where each inbox is heard with where the map has it. What is
//! heard is taken from the server's confirmations, not from replies: a node may take a subscription back at any time
//! (`sunsubscribe`), and the client takes that for the reply of whatever is on its way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Cluster, Place, Redirect, down, late};
use crate::connection::failure::{connection_over, from_redis};
use crate::connection::link::OnMessage;
use crate::each::each;
use crate::{Error, Result};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The inboxes of all partitions in a Cluster. Clones share it.
#[derive(Clone)]
pub(crate) struct ClusterBell(Arc<Inner>);

/// The generation in which each partition is heard; `None` at the end.
pub(crate) type Generations = Option<Arc<[u64]>>;

struct Inner {
    cluster: Arc<Cluster>,
    /// Slot and channel, by partition.
    inboxes: Vec<(u16, String)>,
    partition_of: HashMap<String, usize>,
    hear: OnMessage,
    connect_timeout: Duration,
    table: Mutex<Table>,
    heard: watch::Sender<Generations>,
    trouble: Notify,
    why_down: Mutex<Option<Error>>,
    reconnects: AtomicU64,
}

#[derive(Default)]
struct Table {
    /// Numbers of connections and generations.
    next: u64,
    nodes: HashMap<Place, Node>,
    seats: Vec<Option<Seat>>,
}

struct Node {
    number: u64,
    connection: MultiplexedConnection,
}

/// Where a partition is heard.
#[derive(Clone)]
struct Seat {
    place: Place,
    node: u64,
    generation: u64,
}

impl ClusterBell {
    /// Listens to all inboxes, and goes on with that until `stop` is cancelled.
    pub(crate) async fn open(
        cluster: Arc<Cluster>,
        connect_timeout: Duration,
        inboxes: Vec<(u16, String)>,
        hear: OnMessage,
        stop: CancellationToken,
    ) -> Result<Self> {
        let count = inboxes.len();
        let inner = Arc::new(Inner {
            cluster,
            partition_of: inboxes.iter().enumerate().map(|(p, (_, channel))| (channel.clone(), p)).collect(),
            inboxes,
            hear,
            connect_timeout,
            table: Mutex::new(Table { seats: vec![None; count], ..Table::default() }),
            heard: watch::Sender::new(Some(vec![0; count].into())),
            trouble: Notify::new(),
            why_down: Mutex::default(),
            reconnects: AtomicU64::new(0),
        });
        let deadline = Instant::now() + connect_timeout;
        loop {
            match inner.round().await {
                Ok(()) => break,
                Err(e) if e.is_passing() && Instant::now() < deadline => {
                    inner.cluster.look_again();
                    tokio::time::sleep(FIRST_PAUSE).await;
                }
                Err(e) => return Err(e),
            }
        }
        tokio::spawn(inner.clone().keep(stop));
        Ok(Self(inner))
    }

    pub(crate) fn heard(&self) -> watch::Receiver<Generations> {
        self.0.heard.subscribe()
    }

    /// A doorbell did not come back: the connection it should have come over is given up.
    pub(crate) fn suspect(&self, partition: usize, generation: u64) {
        let node = self.0.lock().seats[partition].clone().filter(|seat| seat.generation == generation);
        if let Some(seat) = node {
            self.0.lost(seat.node);
        }
    }

    pub(crate) fn down(&self) -> Option<Error> {
        if self.0.heard.borrow().is_none() {
            return Some(Error::Closed { op: "connect" });
        }
        if self.0.lock().seats.iter().all(Option::is_some) {
            return None;
        }
        let why = self.0.why_down.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Some(why.unwrap_or_else(|| down("subscribe")))
    }

    pub(crate) fn reconnects(&self) -> u64 {
        self.0.reconnects.load(Ordering::Relaxed)
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows what is heard. With the table's lock held, so that no older state is shown last.
    fn show(&self, table: &Table) {
        let generation = |seat: &Option<Seat>| seat.as_ref().map_or(0, |seat| seat.generation);
        self.heard.send_if_modified(|heard| {
            let shown = heard.is_some();
            if shown {
                *heard = Some(table.seats.iter().map(generation).collect());
            }
            shown
        });
    }

    /// Something came in by itself. Inside the driver of that connection: it must not block.
    fn pushed(&self, node: u64, place: &Place, info: &PushInfo) {
        let text = |at: usize| match info.data.get(at) {
            Some(Value::BulkString(bytes)) => Some(&bytes[..]),
            _ => None,
        };
        let partition = || self.partition_of.get(std::str::from_utf8(text(0)?).ok()?).copied();
        match info.kind {
            PushKind::Message | PushKind::SMessage => {
                if let Some(payload) = text(1) {
                    (self.hear)(payload);
                }
            }
            PushKind::SSubscribe => {
                if let Some(partition) = partition() {
                    let mut table = self.lock();
                    table.next += 1;
                    let seat = Seat { place: place.clone(), node, generation: table.next };
                    table.seats[partition] = Some(seat);
                    self.show(&table);
                }
            }
            PushKind::SUnsubscribe => {
                if let Some(partition) = partition() {
                    let mut table = self.lock();
                    // Also the answer when we leave an inbox that is heard elsewhere by now.
                    if table.seats[partition].as_ref().is_some_and(|seat| seat.node == node) {
                        table.seats[partition] = None;
                        self.show(&table);
                        drop(table);
                        tracing::debug!(partition, node = ?place, "the node took the inbox back");
                        self.cluster.look_again();
                        self.trouble.notify_one();
                    }
                }
            }
            PushKind::Disconnection => self.lost(node),
            _ => {}
        }
    }

    /// A connection is of no use any more.
    fn lost(&self, node: u64) {
        let mut table = self.lock();
        let Some(place) = table.nodes.iter().find(|(_, n)| n.number == node).map(|(p, _)| p.clone()) else {
            return;
        };
        table.nodes.remove(&place);
        for seat in &mut table.seats {
            if seat.as_ref().is_some_and(|seat| seat.node == node) {
                *seat = None;
            }
        }
        self.show(&table);
        drop(table);
        self.reconnects.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(link = "bell", server = %format!("{}:{}", place.0, place.1), "connection lost, reconnecting");
        self.cluster.look_again();
        self.trouble.notify_one();
    }

    async fn keep(self: Arc<Self>, stop: CancellationToken) {
        let mut map = self.cluster.map();
        let mut pause = FIRST_PAUSE;
        let mut told = String::new();
        loop {
            let round = tokio::select! {
                round = self.round() => round,
                // A connection attempt to a node that has nothing any more is not waited for.
                changed = map.changed() => if changed.is_ok() { continue } else { break },
                () = stop.cancelled() => break,
            };
            let wait = match round {
                Ok(()) => {
                    if !told.is_empty() {
                        tracing::info!(link = "bell", "every inbox is heard again");
                        told.clear();
                    }
                    pause = FIRST_PAUSE;
                    None
                }
                Err(e) => {
                    let why = e.trouble();
                    if why != told {
                        tracing::warn!(link = "bell", error = %e, "not every inbox is heard, trying on");
                        told = why;
                    }
                    *self.why_down.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
                    self.cluster.look_again();
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    Some(pause.mul_f64(0.75 + fastrand::f64() / 2.0))
                }
            };
            tokio::select! {
                () = self.trouble.notified() => {}
                changed = map.changed() => if changed.is_err() { break },
                () = async {
                    match wait {
                        Some(pause) => tokio::time::sleep(pause).await,
                        None => std::future::pending().await,
                    }
                } => {}
                () = stop.cancelled() => break,
            }
        }
        self.heard.send_replace(None);
        let mut table = self.lock();
        table.nodes.clear();
        table.seats.fill(None);
    }

    /// Listens to each inbox at the master that the map names, where it is not listened to yet.
    async fn round(self: &Arc<Self>) -> Result<()> {
        let map = self.cluster.map.borrow().clone();
        let mut work: HashMap<Place, Vec<usize>> = HashMap::new();
        let mut failed = None;
        {
            let table = self.lock();
            for (partition, (slot, _)) in self.inboxes.iter().enumerate() {
                match (map.master(*slot), &table.seats[partition]) {
                    (None, _) => failed = Some(down("subscribe")),
                    (Some(place), Some(seat)) if seat.place == *place => {}
                    (Some(place), _) => work.entry(place.clone()).or_default().push(partition),
                }
            }
        }
        let mut nodes = JoinSet::new();
        for (place, partitions) in work {
            nodes.spawn(self.clone().listen(place, partitions));
        }
        while let Some(done) = nodes.join_next().await {
            if let Ok(Err(e)) = done {
                failed = Some(e);
            }
        }
        let mut table = self.lock();
        // Nodes at which nothing is heard: they have no slot of ours any more.
        let Table { nodes, seats, .. } = &mut *table;
        nodes.retain(|_, node| seats.iter().flatten().any(|seat| seat.node == node.number));
        drop(table);
        failed.map_or(Ok(()), Err)
    }

    async fn listen(self: Arc<Self>, place: Place, partitions: Vec<usize>) -> Result<()> {
        let (number, connection) = self.node(&place).await?;
        let address = format!("{}:{}", place.0, place.1);
        let subscribing = partitions.iter().map(|&partition| {
            let mut connection = connection.clone();
            let (channel, before) = (&self.inboxes[partition].1, self.lock().seats[partition].clone());
            let (address, this) = (&address, &self);
            async move {
                let mut cmd = redis::cmd("SSUBSCRIBE");
                cmd.arg(channel);
                let answer = connection.send_packed_command(&cmd).await.and_then(Value::extract_error);
                if let Err(e) = answer {
                    if connection_over(&e) {
                        this.lost(number);
                    }
                    if let Some(Redirect::Moved) = this.cluster.redirect(&e, address) {
                        tracing::debug!(partition, "the inbox is elsewhere");
                    }
                    return Err(from_redis("subscribe", address, &e, false));
                }
                if let Some(before) = before.filter(|seat| seat.node != number) {
                    this.leave(&before, channel);
                }
                Ok(())
            }
        });
        match tokio::time::timeout(self.connect_timeout, each(subscribing)).await {
            Ok(answers) => answers.into_iter().collect(),
            Err(_) => {
                self.lost(number);
                Err(late(&place, self.connect_timeout))
            }
        }
    }

    /// An inbox that is heard elsewhere by now need not be heard here too.
    fn leave(&self, seat: &Seat, channel: &str) {
        let node = self.lock().nodes.get(&seat.place).map(|node| (node.number, node.connection.clone()));
        if let Some((_, mut connection)) = node.filter(|(number, _)| *number == seat.node) {
            let mut cmd = redis::cmd("SUNSUBSCRIBE");
            cmd.arg(channel);
            tokio::spawn(async move {
                let _ = connection.send_packed_command(&cmd).await;
            });
        }
    }

    /// The connection to a node, opened when there is none.
    async fn node(self: &Arc<Self>, place: &Place) -> Result<(u64, MultiplexedConnection)> {
        let number = {
            let mut table = self.lock();
            if let Some(node) = table.nodes.get(place) {
                return Ok((node.number, node.connection.clone()));
            }
            table.next += 1;
            table.next
        };
        let watcher: Weak<Self> = Arc::downgrade(self);
        let at = place.clone();
        let on_push = Arc::new(move |info: PushInfo| {
            if let Some(bell) = watcher.upgrade() {
                bell.pushed(number, &at, &info);
            }
        });
        let node = self.cluster.endpoint.node(place);
        let (connection, _) = node.open(self.connect_timeout, on_push).await?;
        self.lock().nodes.insert(place.clone(), Node { number, connection: connection.clone() });
        Ok((number, connection))
    }
}
