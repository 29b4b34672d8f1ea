//! Topics in this process: who listens, and how what comes in reaches them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, OnceCell};
use tokio::time::Instant;

use super::frame::{Frame, Kind, SIGNAL};
use super::interest::Interest;
use super::publish::Waiting;
use super::stream::TopicStream;
use super::window::Windows;
use crate::core::Core;
use crate::engine::{Engine, Hint, Listening, Signal};
use crate::keys::{Sid, Tid};
use crate::{Error, Result, script};

/// How long Redis keeps the list of a topic's listening nodes after one of them said that it listens.
const LISTEN_TTL: Duration = Duration::from_secs(60);
/// How often it says so.
const SAY_AGAIN: Duration = Duration::from_secs(20);
/// Topics in one call.
pub(super) const CHUNK: usize = 500;

type WindowKey = (Kind, Tid, Arc<str>);

pub(crate) struct Hub {
    pub(super) core: Arc<Core>,
    engine: Arc<Engine>,
    interest: Mutex<Interest>,
    windows: Mutex<Windows<WindowKey, Frame>>,
    /// Publishes that wait for the end of their window.
    pub(super) publishing: Mutex<HashMap<(Tid, String), Option<Waiting>>>,
    /// Wakes what runs in the background.
    wake: Notify,
    say_again: AtomicBool,
    closed: AtomicBool,
    /// Topics whose list of nodes has this one. The lock is held across a call: a node that leaves and one that comes
    /// must not overtake each other.
    listed: tokio::sync::Mutex<HashSet<Tid>>,
    started: OnceCell<Listening>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").finish_non_exhaustive()
    }
}

impl Hub {
    pub(crate) fn new(core: Arc<Core>, engine: Arc<Engine>) -> Arc<Self> {
        Arc::new(Self {
            interest: Mutex::default(),
            windows: Mutex::new(Windows::new(core.config.topic_window)),
            publishing: Mutex::default(),
            wake: Notify::new(),
            say_again: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            listed: tokio::sync::Mutex::default(),
            started: OnceCell::new(),
            core,
            engine,
        })
    }

    /// Opens the bell connection if need be, and listens from now on.
    async fn start(self: &Arc<Self>) -> Result<()> {
        if self.closed.load(Ordering::Acquire) || self.core.stop.is_cancelled() {
            return Err(Error::Closed { op: "listen" });
        }
        self.started
            .get_or_try_init(|| async {
                let hub = Arc::downgrade(self);
                let listening = self.engine.listen(SIGNAL, move |signal| {
                    if let Some(hub) = hub.upgrade() {
                        hub.hear(signal);
                    }
                });
                let listening = listening.await?;
                tokio::spawn(run(Arc::downgrade(self), self.core.stop.clone()));
                Ok(listening)
            })
            .await?;
        Ok(())
    }

    pub(super) async fn open(self: &Arc<Self>, topics: &[Tid]) -> Result<TopicStream> {
        self.start().await?;
        let (id, shared) = self.interest().add_stream();
        // From here on dropping it takes it out again.
        let stream = TopicStream { id, hub: self.clone(), shared };
        self.listen(id, topics).await?;
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed { op: "listen" });
        }
        Ok(stream)
    }

    pub(super) async fn listen(self: &Arc<Self>, stream: u64, topics: &[Tid]) -> Result<()> {
        {
            let mut interest = self.interest();
            for topic in topics {
                interest.listen(stream, topic);
            }
        }
        self.list(topics).await
    }

    /// A session of this process hears hints of topics from now on. False when it is not served here.
    pub(super) async fn join(self: &Arc<Self>, sid: &Sid, topics: &[Tid]) -> Result<bool> {
        if !self.engine.serves(sid.as_str()) {
            return Ok(false);
        }
        self.start().await?;
        {
            let mut interest = self.interest();
            topics.iter().for_each(|topic| interest.join(sid, topic));
        }
        self.list(topics).await?;
        Ok(true)
    }

    pub(super) fn part(self: &Arc<Self>, sid: &Sid, topics: &[Tid]) {
        let deaf = self.interest().retain_sessions(|topic, other| other != sid || !topics.contains(topic));
        self.unlist(deaf);
    }

    pub(super) fn topics_of(&self, sid: &Sid) -> Vec<Tid> {
        self.interest().topics_of(sid)
    }

    pub(super) fn forget_stream(self: &Arc<Self>, stream: u64, only: Option<&Tid>) {
        let deaf = self.interest().remove_stream(stream, only);
        self.unlist(deaf);
    }

    /// No more messages; streams end when theirs are read.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let streams = self.interest().streams();
        streams.iter().for_each(|stream| stream.close());
    }

    /// Says that this node listens, where that was not said yet.
    async fn list(&self, topics: &[Tid]) -> Result<()> {
        let mut listed = self.listed.lock().await;
        let new: Vec<Tid> = topics.iter().filter(|topic| !listed.contains(*topic)).cloned().collect();
        self.say(&new).await?;
        listed.extend(new);
        Ok(())
    }

    /// One call for the topics of a partition, at most [`CHUNK`] of them.
    async fn say(&self, topics: &[Tid]) -> Result<()> {
        let core = &self.core;
        for chunk in topics.chunk_by(|a, b| std::ptr::eq(core.keys_of(a.as_str()), core.keys_of(b.as_str())))
        {
            for topics in chunk.chunks(CHUNK) {
                let keys = core.keys_of(topics[0].as_str());
                script::topic_listen(&core.cmd, keys, &core.node, LISTEN_TTL, topics).await?;
            }
        }
        Ok(())
    }

    /// In the background: without it, the node would hear of these topics until its lease ends, and forget them.
    fn unlist(self: &Arc<Self>, topics: Vec<Tid>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if topics.is_empty() || self.core.stop.is_cancelled() {
            return;
        }
        let hub = self.clone();
        runtime.spawn(async move {
            let core = &hub.core;
            let mut listed = hub.listed.lock().await;
            for topic in topics {
                if hub.interest().wants(&topic) || !listed.remove(&topic) {
                    continue;
                }
                let keys = core.keys_of(topic.as_str());
                if let Err(e) = script::topic_unlisten(&core.cmd, keys, &core.node, &topic).await {
                    tracing::debug!(error = %e, "this node stays on the list of a topic for a while");
                }
            }
        });
    }

    /// Runs in the driver of the bell connection.
    fn hear(self: &Arc<Self>, signal: Signal<'_>) {
        let payload = match signal {
            Signal::Rang(payload) => payload,
            Signal::LookAgain => {
                // The server may have lost the lists as well.
                self.say_again.store(true, Ordering::Release);
                self.wake.notify_one();
                let streams = self.interest().streams();
                return streams.iter().for_each(|stream| stream.missed());
            }
        };
        let Some(frame) = Frame::read(payload) else { return };
        if !self.interest().wants(&frame.topic) {
            return;
        }
        if frame.key.is_empty() {
            return self.hand_out(&frame);
        }
        let key = (frame.kind, frame.topic.clone(), frame.key.clone());
        let now = self.windows().offer(key, frame, Instant::now());
        if let Some(frame) = now {
            self.wake.notify_one();
            self.hand_out(&frame);
        }
    }

    fn hand_out(&self, frame: &Frame) {
        let (sessions, streams) = self.interest().ears(&frame.topic, frame.kind == Kind::Hint);
        for stream in streams {
            stream.push(&frame.topic, &frame.key, &frame.body);
        }
        if sessions.is_empty() {
            return;
        }
        let key = if frame.key.is_empty() {
            "".into()
        } else {
            format!("{} {}", frame.topic.as_str(), frame.key).into()
        };
        let hint = Hint { key, body: frame.body.clone() };
        for sid in sessions {
            self.engine.hint(sid.as_str(), hint.clone());
        }
    }

    /// What waited in windows goes on; answers when to come again.
    fn end_windows(&self) -> Option<Instant> {
        let (ended, next) = {
            let mut windows = self.windows();
            (windows.ended(Instant::now()), windows.next_end())
        };
        ended.iter().for_each(|frame| self.hand_out(frame));
        next
    }

    /// Says again what this node listens to, and forgets sessions that it serves no more.
    async fn renew(self: &Arc<Self>) -> Result<()> {
        let gone = self.interest().retain_sessions(|_, sid| self.engine.serves(sid.as_str()));
        self.unlist(gone);
        let mut listed = self.listed.lock().await;
        let topics = self.interest().topics();
        self.say(&topics).await?;
        listed.extend(topics);
        Ok(())
    }

    fn interest(&self) -> MutexGuard<'_, Interest> {
        self.interest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn windows(&self) -> MutexGuard<'_, Windows<WindowKey, Frame>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends windows and says again, for all topics of the process.
async fn run(hub: Weak<Hub>, stop: tokio_util::sync::CancellationToken) {
    let mut say = Instant::now() + SAY_AGAIN;
    loop {
        let Some(here) = hub.upgrade() else { return };
        let end = here.end_windows();
        if here.say_again.swap(false, Ordering::AcqRel) || say <= Instant::now() {
            let renewed = here.renew().await;
            if let Err(e) = &renewed {
                tracing::debug!(error = %e, "not said which topics this node listens to, trying on");
            }
            let pause = if renewed.is_ok() { SAY_AGAIN } else { SAY_AGAIN / 20 };
            say = Instant::now() + pause.mul_f64(0.75 + fastrand::f64() / 4.0);
            continue;
        }
        let until = end.map_or(say, |end| end.min(say));
        let woken = async {
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                () = here.wake.notified() => {}
            }
        };
        tokio::select! {
            () = woken => {}
            () = stop.cancelled() => return here.close(),
        }
    }
}
