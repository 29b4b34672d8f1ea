//! A worker: takes legs of a group's tasks and runs them, a few at a time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::handler::{AnyHandler, TaskHandler};
use super::held::{HeldLeg, HeldLegs};
use super::{Tasks, queue};
use crate::config::millis;
use crate::engine::{Listening, Signal};
use crate::keys::Address;
use crate::script::{self, Found, Stand};
use crate::{Courier, Error, Result};

/// Settings of a [`Worker`].
#[derive(Clone, Debug)]
#[must_use = "a worker does nothing until it is started"]
pub struct WorkerBuilder {
    tasks: Tasks,
    pub(super) settings: Settings,
    runtime: Option<Handle>,
}

#[derive(Clone, Debug)]
pub(super) struct Settings {
    concurrency: usize,
    pub(super) lease: Duration,
    pub(super) max_attempts: u32,
    pub(super) backoff: Duration,
    pub(super) backoff_cap: Duration,
    pub(super) max_result_bytes: usize,
    pub(super) work_budget: Option<Duration>,
}

macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $type:ty),* $(,)?) => {
        $($(#[$doc])* pub fn $name(mut self, $name: $type) -> Self {
            self.settings.$name = $name;
            self
        })*
    };
}

impl WorkerBuilder {
    pub(super) fn new(tasks: Tasks) -> Self {
        let config = &tasks.core().config;
        let settings = Settings {
            concurrency: 8,
            lease: config.lease,
            max_attempts: config.max_attempts,
            backoff: config.backoff,
            backoff_cap: config.backoff_cap,
            max_result_bytes: 1 << 20,
            work_budget: None,
        };
        Self { tasks, settings, runtime: None }
    }

    settings! {
        /// Most legs that work at a time; default 8. One that waits for an answer does not count.
        concurrency: usize,
        /// How long a leg is the worker's without a renewal; default the courier's lease, 10 s. It is renewed three times
        /// as often. So long after a worker died its legs run again.
        lease: Duration,
        /// Attempts at a leg before its task fails; default the courier's `max_attempts`, 3.
        max_attempts: u32,
        /// Pause before the second attempt, doubled for each further one, jittered by a quarter; default the courier's.
        backoff: Duration,
        /// Longest pause between attempts; default the courier's.
        backoff_cap: Duration,
        /// Largest result; default 1 MiB. A task with a larger one fails, and its error says so.
        max_result_bytes: usize,
    }

    /// Most time for one attempt, time of waiting for answers not counted; default none. What takes longer is a failed
    /// attempt.
    pub fn work_budget(mut self, budget: Duration) -> Self {
        self.settings.work_budget = Some(budget);
        self
    }

    /// Runs handlers on this runtime, in place of threads of the worker's own. If it is the courier's, a handler that
    /// blocks its threads keeps leases from being renewed.
    pub fn handlers_on(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Starts the worker in the background of the current runtime.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a setting; [`Error::Unreachable`] and others when the doorbell connection cannot be opened;
    /// [`Error::Closed`] after a shutdown of the courier.
    pub async fn start(self, handler: impl TaskHandler) -> Result<Worker> {
        let settings = self.settings;
        if settings.concurrency == 0 || settings.concurrency > 10_000 {
            return Err(Error::invalid("worker concurrency", "use 1 to 10,000"));
        }
        if settings.max_attempts == 0 {
            return Err(Error::invalid("max attempts", "is zero; a leg needs at least one attempt"));
        }
        millis("lease", settings.lease)?;
        millis("backoff", settings.backoff)?;
        millis("backoff cap", settings.backoff_cap)?;
        let (runtime, own) = match self.runtime {
            Some(runtime) => (runtime, None),
            None => {
                let own = OwnRuntime::start(settings.concurrency)?;
                (own.handle(), Some(own))
            }
        };
        static SERIALS: AtomicU64 = AtomicU64::new(1);
        let serial = SERIALS.fetch_add(1, Ordering::Relaxed);
        let core = self.tasks.core().clone();
        let inner = Arc::new(Inner {
            name: format!("{}:{serial}", core.node),
            slots: Arc::new(Semaphore::new(settings.concurrency)),
            held: HeldLegs::default(),
            hints: Mutex::default(),
            due: Mutex::new(Instant::now()),
            looking: AtomicBool::new(true),
            wake: Notify::new(),
            refresh: Mutex::default(),
            renew_now: Notify::new(),
            stop: core.stop.child_token(),
            abort: CancellationToken::new(),
            finished: CancellationToken::new(),
            interrupted: AtomicU64::new(0),
            legs: TaskTracker::new(),
            handler: Box::new(handler),
            runtime,
            engine: Handle::current(),
            settings,
            tasks: self.tasks,
        });
        let weak = Arc::downgrade(&inner);
        let hear = move |signal: Signal<'_>| {
            if let Some(inner) = weak.upgrade() {
                inner.hear(signal);
            }
        };
        script::probe(&core.cmd, &core.partitions[0].keys, script::Role::Worker).await?;
        let engine = inner.tasks.courier.engine.clone();
        let listening = engine.listen(&format!("work:{serial}"), hear).await?;
        let fetching = tokio::spawn(queue::fetch(inner.clone()));
        tokio::spawn(queue::renew(inner.clone()));
        Ok(Worker { inner, fetching: Some(fetching), _listening: listening, own })
    }

    /// Runs until `cancel` is cancelled, then as [`Worker::shutdown`] with the grace period.
    ///
    /// # Errors
    /// As [`WorkerBuilder::start`].
    ///
    /// # Cancel safety
    /// A dropped future stops the worker; its legs are given back in the background.
    pub async fn run(
        self,
        handler: impl TaskHandler,
        cancel: CancellationToken,
        grace: Duration,
    ) -> Result<WorkerEnd> {
        let worker = self.start(handler).await?;
        tokio::select! {
            () = cancel.cancelled() => {}
            () = worker.inner.stop.cancelled() => {}
        }
        Ok(worker.shutdown(grace).await)
    }
}

/// A running worker. Dropped, it takes no more legs and gives back those it has, without a counted attempt.
pub struct Worker {
    inner: Arc<Inner>,
    fetching: Option<tokio::task::JoinHandle<()>>,
    _listening: Listening,
    own: Option<OwnRuntime>,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

/// What a worker's shutdown did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerEnd {
    /// Legs that did not finish within the grace period, and were given back.
    pub interrupted: u64,
    /// Legs that could not be given back because the server was out of reach: they run again when their leases end.
    pub abandoned: usize,
}

impl Worker {
    /// The same as [`Tasks::worker`], for those who look here first.
    pub fn builder(courier: &Courier) -> WorkerBuilder {
        courier.tasks().worker()
    }

    /// Legs that this worker holds: those that work, and those that wait for answers in the imperative style.
    pub fn holding(&self) -> usize {
        self.inner.held.len()
    }

    /// Takes no more legs, lets those that run finish within `grace`, then drops them and gives them back, without a
    /// counted attempt. Waiting in [`TaskContext::request_input`](super::TaskContext::request_input) ends at once with
    /// `ShuttingDown`. Returns within `grace` plus about two seconds, also when Redis is out of reach.
    pub async fn shutdown(mut self, grace: Duration) -> WorkerEnd {
        let inner = self.inner.clone();
        inner.stop.cancel();
        // What is being taken is taken first.
        if let Some(fetching) = self.fetching.take() {
            let _ = tokio::time::timeout(Duration::from_secs(1), fetching).await;
        }
        inner.legs.close();
        if tokio::time::timeout(grace, inner.legs.wait()).await.is_err() {
            inner.abort.cancel();
            let _ = tokio::time::timeout(Duration::from_secs(1), inner.legs.wait()).await;
        }
        inner.finished.cancel();
        WorkerEnd { interrupted: inner.interrupted.load(Ordering::Relaxed), abandoned: inner.held.len() }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.inner.stop.cancel();
        self.inner.abort.cancel();
        self.inner.legs.close();
        let (inner, own) = (self.inner.clone(), self.own.take());
        // Its leases are renewed until the legs are given back; then the threads may go.
        self.inner.engine.spawn(async move {
            let _ = tokio::time::timeout(Duration::from_secs(5), inner.legs.wait()).await;
            inner.finished.cancel();
            drop(own);
        });
    }
}

/// What the parts of a worker share.
pub(super) struct Inner {
    pub(super) tasks: Tasks,
    pub(super) settings: Settings,
    /// `<node>:<serial>`, as the scripts know it.
    name: String,
    pub(super) slots: Arc<Semaphore>,
    pub(super) held: HeldLegs,
    /// Legs that we heard of, to be taken.
    hints: Mutex<VecDeque<Address>>,
    /// When to look for legs without having heard of any.
    pub(super) due: Mutex<Instant>,
    looking: AtomicBool,
    pub(super) wake: Notify,
    /// Legs whose tasks changed.
    refresh: Mutex<Vec<Address>>,
    pub(super) renew_now: Notify,
    /// No more legs.
    pub(super) stop: CancellationToken,
    /// Drop the legs that still run.
    pub(super) abort: CancellationToken,
    /// All is given back: leases need not be renewed any more.
    pub(super) finished: CancellationToken,
    pub(super) interrupted: AtomicU64,
    pub(super) legs: TaskTracker,
    pub(super) handler: Box<dyn AnyHandler>,
    /// Where handlers run.
    pub(super) runtime: Handle,
    /// Where everything else does.
    pub(super) engine: Handle,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("name", &self.name)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    pub(super) fn stand(&self) -> Stand<'_> {
        let look_again = self.tasks.core().config.look_again;
        Stand { group: &self.tasks.group, worker: &self.name, reserve: look_again, interest: look_again * 4 }
    }

    /// A frame for this worker, or the word that some may have been lost.
    fn hear(&self, signal: Signal<'_>) {
        let Signal::Rang(payload) = signal else {
            *lock(&self.refresh) = self.held.all().iter().map(|leg| leg.address.clone()).collect();
            self.renew_now.notify_one();
            return self.look();
        };
        let Ok(text) = std::str::from_utf8(payload) else { return };
        match text.split_once(' ') {
            Some(("new", address)) => self.hint([Address::encoded(address)]),
            Some(("look", address)) => {
                lock(&self.refresh).push(Address::encoded(address));
                self.renew_now.notify_one();
            }
            _ => {}
        }
    }

    /// There are legs to be taken.
    pub(super) fn hint(&self, addresses: impl IntoIterator<Item = Address>) {
        {
            let mut hints = lock(&self.hints);
            for address in addresses {
                if hints.len() < 10_000 && !hints.contains(&address) {
                    hints.push_back(address);
                }
            }
        }
        self.wake.notify_one();
    }

    /// Up to so many legs that we heard of and do not hold.
    pub(super) fn take_hints(&self, most: usize) -> Vec<Address> {
        let mut hints = lock(&self.hints);
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some(address) = hints.pop_front()
        {
            if self.held.get(&address).is_none() {
                taken.push(address);
            }
        }
        taken
    }

    pub(super) fn has_hints(&self) -> bool {
        !lock(&self.hints).is_empty()
    }

    pub(super) fn take_refresh(&self) -> Vec<Address> {
        std::mem::take(&mut *lock(&self.refresh))
    }

    /// Look for legs now.
    pub(super) fn look(&self) {
        self.looking.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Whether it is time to look without having heard of anything.
    pub(super) fn is_time_to_look(&self) -> bool {
        self.looking.swap(false, Ordering::AcqRel) || *lock(&self.due) <= Instant::now()
    }

    pub(super) fn next_look(&self) -> Instant {
        *lock(&self.due)
    }

    /// Takes in what a script found for us, or that it found too little.
    pub(super) fn learn(&self, found: Found) {
        // A lost doorbell is made up for by looking: each worker, now and then, however many tasks there are.
        let every = self.tasks.core().config.look_again.mul_f64(0.75 + fastrand::f64() / 4.0);
        *lock(&self.due) = Instant::now() + found.wait.map_or(every, |wait| wait.min(every));
        if !found.next.is_empty() {
            self.hint(found.next);
        }
        // The one that waits for the next look has to learn of the new time.
        self.wake.notify_one();
    }

    /// Has `notifications/tasks` queued in the background.
    pub(super) fn tell_session(self: &Arc<Self>, leg: &Arc<HeldLeg>) {
        if leg.session.is_empty() {
            return;
        }
        let (inner, leg) = (self.clone(), leg.clone());
        self.engine.spawn(async move { inner.tasks.tell_session(&leg.session, &leg.address, &leg.id).await });
    }
}

/// Threads for handlers.
#[derive(Debug)]
struct OwnRuntime(Option<tokio::runtime::Runtime>);

impl OwnRuntime {
    fn start(concurrency: usize) -> Result<Self> {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(concurrency.min(cores.max(2)))
            .thread_name("mcp-courier-worker")
            .enable_all()
            .build()
            .map_err(|e| Error::invalid("worker", format!("no threads: {e}")))?;
        Ok(Self(Some(runtime)))
    }

    fn handle(&self) -> Handle {
        self.0.as_ref().expect("there until it is dropped").handle().clone()
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Waits for nobody: it may be dropped where blocking is not allowed, and a handler may block for ever.
            runtime.shutdown_background();
        }
    }
}
