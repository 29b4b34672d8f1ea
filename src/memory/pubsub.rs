//! Connections, their output, and who subscribed to what.

use super::resp::{Blob, Reply};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// A subscriber that lets more than this pile up is cut off, as Redis does with its default settings.
const MAX_BACKLOG: usize = 32 * 1024 * 1024;

/// The one ordered stream of bytes to a client: replies and pushes, in the order in which the engine made them.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    state: Mutex<Pending>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    bytes: Vec<u8>,
    resp3: bool,
    finished: bool,
    killed: bool,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses the protocol version of all that follows.
    pub(super) fn speak(&self, resp3: bool) {
        self.lock().resp3 = resp3;
    }

    /// Adds a reply, to be sent at the next [`Outbox::flush`].
    pub(super) fn reply(&self, reply: &Reply) {
        let mut pending = self.lock();
        let resp3 = pending.resp3;
        reply.encode(&mut pending.bytes, resp3);
    }

    /// Adds a push and sends it soon.
    fn push(&self, reply: &Reply) {
        let mut pending = self.lock();
        let resp3 = pending.resp3;
        reply.encode(&mut pending.bytes, resp3);
        pending.killed |= pending.bytes.len() > MAX_BACKLOG;
        drop(pending);
        self.wake.notify_one();
    }

    /// Sends what is there.
    pub(super) fn flush(&self) {
        self.wake.notify_one();
    }

    /// Ends the connection when everything is sent.
    pub(super) fn finish(&self) {
        self.lock().finished = true;
        self.wake.notify_one();
    }

    /// Ends the connection now.
    pub(super) fn kill(&self) {
        self.lock().killed = true;
        self.wake.notify_one();
    }

    /// Waits for bytes to send; `None` when the connection is to end.
    pub(super) async fn next(&self) -> Option<Vec<u8>> {
        loop {
            {
                let mut pending = self.lock();
                if pending.killed {
                    return None;
                }
                if !pending.bytes.is_empty() {
                    return Some(std::mem::take(&mut pending.bytes));
                }
                if pending.finished {
                    return None;
                }
            }
            self.wake.notified().await;
        }
    }
}

/// A connection as the others see it.
#[derive(Debug)]
struct Client {
    outbox: Arc<Outbox>,
    subscriptions: usize,
}

/// All connections and subscriptions of an engine.
#[derive(Debug, Default)]
pub(super) struct Channels {
    clients: BTreeMap<u64, Client>,
    channels: HashMap<Blob, BTreeMap<u64, Arc<Outbox>>>,
    last_id: u64,
}

impl Channels {
    /// A new connection's id.
    pub(super) fn join(&mut self, outbox: Arc<Outbox>) -> u64 {
        self.last_id += 1;
        self.clients.insert(self.last_id, Client { outbox, subscriptions: 0 });
        self.last_id
    }

    /// Forgets a connection; `subscribed` is what it listens to.
    pub(super) fn leave<'a>(&mut self, id: u64, subscribed: impl Iterator<Item = &'a Blob>) {
        for channel in subscribed {
            self.unsubscribe(id, channel);
        }
        self.clients.remove(&id);
    }

    /// Adds a subscription.
    pub(super) fn subscribe(&mut self, id: u64, channel: &Blob) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let listeners = self.channels.entry(channel.clone()).or_default();
        if listeners.insert(id, client.outbox.clone()).is_none() {
            client.subscriptions += 1;
        }
    }

    /// Takes a subscription away.
    pub(super) fn unsubscribe(&mut self, id: u64, channel: &[u8]) {
        let Some(listeners) = self.channels.get_mut(channel) else {
            return;
        };
        if listeners.remove(&id).is_some()
            && let Some(client) = self.clients.get_mut(&id)
        {
            client.subscriptions -= 1;
        }
        if listeners.is_empty() {
            self.channels.remove(channel);
        }
    }

    /// Sends a message to all who listen, and says how many they are.
    pub(super) fn publish(&self, channel: &[u8], message: &[u8]) -> usize {
        let Some(listeners) = self.channels.get(channel) else {
            return 0;
        };
        let push = Reply::Push(vec![Reply::text("message"), Reply::text(channel), Reply::text(message)]);
        for outbox in listeners.values() {
            outbox.push(&push);
        }
        listeners.len()
    }

    /// How many listen to a channel.
    pub(super) fn listeners(&self, channel: &[u8]) -> usize {
        self.channels.get(channel).map_or(0, BTreeMap::len)
    }

    /// Cuts the connections `doomed` picks by id and by whether they have subscriptions; says how many.
    pub(super) fn kill(&self, doomed: impl Fn(u64, bool) -> bool) -> usize {
        let picked = self.clients.iter().filter(|(id, client)| doomed(**id, client.subscriptions > 0));
        picked.map(|(_, client)| client.outbox.kill()).count()
    }
}
