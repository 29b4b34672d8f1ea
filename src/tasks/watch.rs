//! Following tasks: one entry for each in the process, however many follow it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OnceCell, watch};
use tokio::time::Instant;

use super::{DetailedTask, TaskId, Tasks, detailed};
use crate::core::Core;
use crate::engine::{Engine, Listening, Signal};
use crate::keys::Address;
use crate::script;
use crate::{Error, Result};

/// How long a node counts as watching without a renewal.
const WATCH: Duration = Duration::from_secs(60);
/// How often all watches are renewed and compared: what a lost signal costs at most.
const RENEW: Duration = Duration::from_secs(5);
/// Tasks in one call.
const BATCH: usize = 128;

/// The tasks that this process watches.
#[derive(Default)]
pub(crate) struct Watching {
    table: Mutex<HashMap<Address, Entry>>,
    listening: OnceCell<Listening>,
}

struct Entry {
    group: Arc<str>,
    /// The number of the newest change that was heard of; grows also when only "something" was heard.
    changes: watch::Sender<Heard>,
}

#[derive(Clone, Copy, Default)]
struct Heard {
    /// As the server numbers changes.
    rev: u64,
    /// Signals, which have no number.
    rings: u64,
    gone: bool,
}

impl Watching {
    fn lock(&self) -> MutexGuard<'_, HashMap<Address, Entry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens, and renews, from the first watch on.
    async fn start(self: &Arc<Self>, core: &Arc<Core>, engine: &Arc<Engine>) -> Result<()> {
        let watching = self.clone();
        self.listening
            .get_or_try_init(|| async {
                let weak = Arc::downgrade(&watching);
                let hear = move |signal: Signal<'_>| {
                    if let Some(watching) = weak.upgrade() {
                        watching.hear(signal);
                    }
                };
                let listening = engine.listen("task", hear).await?;
                tokio::spawn(renew(Arc::downgrade(&watching), core.clone()));
                Ok(listening)
            })
            .await
            .map(drop)
    }

    fn hear(&self, signal: Signal<'_>) {
        let table = self.lock();
        match signal {
            Signal::Rang(payload) => {
                let address = std::str::from_utf8(payload).map(Address::encoded);
                if let Some(entry) = address.ok().and_then(|address| table.get(&address)) {
                    entry.changes.send_modify(|heard| heard.rings += 1);
                }
            }
            Signal::LookAgain => {
                table.values().for_each(|entry| entry.changes.send_modify(|heard| heard.rings += 1));
            }
        }
    }

    fn subscribe(&self, address: &Address, group: &Arc<str>) -> watch::Receiver<Heard> {
        let mut table = self.lock();
        let fresh = || Entry { group: group.clone(), changes: watch::channel(Heard::default()).0 };
        table.entry(address.clone()).or_insert_with(fresh).changes.subscribe()
    }

    /// Takes the entry out when nobody follows the task any more.
    fn tidy(&self, address: &Address) {
        let mut table = self.lock();
        if table.get(address).is_some_and(|entry| entry.changes.receiver_count() == 0) {
            table.remove(address);
        }
    }

    /// All of them, by the group that they belong to.
    fn addresses(&self) -> HashMap<Arc<str>, Vec<Address>> {
        let mut groups: HashMap<Arc<str>, Vec<Address>> = HashMap::new();
        for (address, entry) in self.lock().iter() {
            groups.entry(entry.group.clone()).or_default().push(address.clone());
        }
        groups
    }

    fn learn(&self, address: &Address, rev: u64) {
        if let Some(entry) = self.lock().get(address) {
            entry.changes.send_if_modified(|heard| {
                let news = if rev == 0 { !heard.gone } else { rev > heard.rev };
                heard.gone = rev == 0;
                heard.rev = heard.rev.max(rev);
                news
            });
        }
    }
}

/// Renews all watches: one call for many tasks, which also finds what was missed.
async fn renew(watching: Weak<Watching>, core: Arc<Core>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(RENEW.mul_f64(0.9 + fastrand::f64() / 10.0)) => {}
            () = core.stop.cancelled() => return,
        }
        let Some(watching) = watching.upgrade() else { return };
        for (group, addresses) in watching.addresses() {
            for batch in addresses.chunks(BATCH) {
                let keys = core.keys_of(&group);
                match script::task_watch(&core.cmd, keys, &core.node, Some(WATCH), batch).await {
                    Ok(revs) => {
                        batch.iter().zip(revs).for_each(|(address, rev)| watching.learn(address, rev));
                    }
                    Err(error) => tracing::debug!(%error, "watches were not renewed"),
                }
            }
        }
    }
}

/// Follows one task: [`TaskWatch::next`] gives its state now, and then after each change. States that follow each other
/// faster than they are asked for are passed over, never the newest.
pub struct TaskWatch {
    tasks: Tasks,
    id: TaskId,
    address: Address,
    changes: watch::Receiver<Heard>,
    /// The last one that was given.
    shown: Option<u64>,
    ended: bool,
    expires: Option<Instant>,
}

impl std::fmt::Debug for TaskWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskWatch").field("task", &self.id).finish_non_exhaustive()
    }
}

impl TaskWatch {
    pub(super) async fn start(tasks: Tasks, id: TaskId, address: Address) -> Result<Self> {
        let courier = &tasks.courier;
        courier.watching.start(&courier.core, &courier.engine).await?;
        let changes = courier.watching.subscribe(&address, &tasks.group);
        let watch = Self { id, address, changes, shown: None, ended: false, expires: None, tasks };
        let core = watch.tasks.core();
        let one = std::slice::from_ref(&watch.address);
        let keys = watch.tasks.keys();
        let watching = || script::task_watch(&core.cmd, keys, &core.node, Some(WATCH), one);
        match watch.tasks.courier.repeat("task_watch", watching, true).await?.first() {
            Some(0) | None => Err(Error::TaskNotFound),
            Some(_) => Ok(watch),
        }
    }

    /// The task.
    pub fn id(&self) -> &TaskId {
        &self.id
    }

    /// The task's state: at once the first time, then after the next change. `None` after a terminal state was given, and
    /// when the task expired.
    ///
    /// # Errors
    /// [`Error::Unreachable`] and others after the courier's deadline; the watch goes on.
    ///
    /// # Cancel safety
    /// Nothing is missed by a dropped call.
    pub async fn next(&mut self) -> Result<Option<DetailedTask>> {
        loop {
            if self.ended {
                return Ok(None);
            }
            if self.shown.is_some() {
                let expires = self.expires.unwrap_or_else(Instant::now);
                tokio::select! {
                    changed = self.changes.changed() => if changed.is_err() { return Ok(None) },
                    // It may have been extended meanwhile.
                    () = tokio::time::sleep_until(expires) => {}
                }
            }
            self.changes.mark_unchanged();
            let raw = match self.tasks.raw(&self.address).await {
                Ok(raw) => raw,
                Err(Error::TaskNotFound) => {
                    self.ended = true;
                    return Ok(None);
                }
                Err(e) => {
                    self.changes.mark_changed();
                    return Err(e);
                }
            };
            // By the server's clock as of the last change at the latest; never in a loop without a pause.
            let life = Duration::from_millis(raw.expires_ms.saturating_sub(raw.updated_ms))
                .max(Duration::from_secs(1));
            self.expires = Some(Instant::now() + life);
            if self.shown.is_some_and(|shown| shown >= raw.rev) {
                continue;
            }
            self.shown = Some(raw.rev);
            let task = detailed(&self.id, raw)?;
            self.ended = task.status.is_terminal();
            return Ok(Some(task));
        }
    }
}

impl Drop for TaskWatch {
    fn drop(&mut self) {
        // The receiver is still ours here: one more than those that stay.
        let (_, closed) = watch::channel(Heard::default());
        self.changes = closed;
        self.tasks.courier.watching.tidy(&self.address);
    }
}
