//! The command connection: runs scripts, nothing else.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use redis::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Endpoint;
use super::failure::{from_redis, script_missing};
use super::route::{Ready, Route};
use crate::metrics::{Counters, add};
use crate::script::{self, Invocation};
use crate::{Error, Result};

/// Redirections that one call follows. More mean that the nodes do not agree: the caller tries again later.
const MOST_REDIRECTIONS: usize = 5;
/// A connection that was given up, since another call had no answer over it, may still bring an answer for so long: a
/// server that only stood still comes back with all of them.
const LAST_WORDS: Duration = Duration::from_millis(250);
tokio::task_local! {
    /// When the operation that this call belongs to ends, if it is part of one.
    static OPERATION_ENDS: Instant;
}

/// Runs an operation until its deadline. `None`: it did not end in time, and whether its last call was executed is
/// unknown. A call that is still waiting for a connection gives up by itself a little earlier: that one was never sent.
pub(crate) async fn until<F: Future>(deadline: Instant, operation: F) -> Option<F::Output> {
    OPERATION_ENDS.scope(deadline, tokio::time::timeout_at(deadline, operation)).await.ok()
}

/// Runs scripts over the shared connection.
#[derive(Clone)]
pub(crate) struct Commands {
    route: Route,
    call_timeout: Duration,
    counters: Arc<Counters>,
    /// Whether doorbells of a Cluster go to all of its nodes, since it has no shard channels.
    everywhere: Arc<OnceLock<()>>,
    wait: Option<Arc<Wait>>,
}

/// A WAIT right behind each call, and what came of it.
struct Wait {
    cmd: redis::Cmd,
    within: Duration,
    /// The fewest replicas that any of the calls was confirmed by.
    confirmed: Mutex<Result<u64>>,
}

impl Commands {
    /// Connects, and stays connected until `stop` is cancelled.
    pub(crate) async fn open(
        endpoint: Endpoint,
        connect_timeout: Duration,
        call_timeout: Duration,
        counters: Arc<Counters>,
        stop: CancellationToken,
    ) -> Result<Self> {
        let route = Route::open(endpoint, connect_timeout, stop).await?;
        Ok(Self { route, call_timeout, counters, everywhere: Arc::default(), wait: None })
    }

    /// The same connection, and behind each call WAIT for so many replicas, so long at most.
    pub(crate) fn waiting(&self, replicas: u32, within: Duration) -> Self {
        let mut cmd = redis::cmd("WAIT");
        cmd.arg(replicas).arg(within.as_nanos().div_ceil(1_000_000).max(1) as u64);
        let wait = Wait { cmd, within, confirmed: Mutex::new(Ok(u64::MAX)) };
        Self { wait: Some(Arc::new(wait)), ..self.clone() }
    }

    /// By how many replicas the calls were confirmed, the least of all.
    pub(crate) fn confirmed(&self) -> Result<u64> {
        let Some(wait) = &self.wait else { return Ok(0) };
        match wait.confirmed.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            Ok(u64::MAX) => Ok(0),
            other => other,
        }
    }

    /// Doorbells ring as those of another connection to the same servers do.
    pub(crate) fn ring_like(mut self, other: &Self) -> Self {
        self.everywhere = other.everywhere.clone();
        self
    }

    /// Why the connection is down, if it is.
    pub(crate) fn down(&self) -> Option<Error> {
        self.route.down()
    }

    /// How often a connection was opened again.
    pub(crate) fn reconnects(&self) -> u64 {
        self.route.reconnects()
    }

    /// The Cluster, if doorbells ring in shard channels there.
    #[cfg(feature = "cluster")]
    pub(super) fn shards(&self) -> Option<Arc<super::cluster::Cluster>> {
        match &self.route {
            Route::Cluster(cluster) if self.everywhere.get().is_none() => Some(cluster.clone()),
            _ => None,
        }
    }

    /// The servers have no shard channels (before 7.0): doorbells of a Cluster go to all of its nodes.
    pub(crate) fn without_shard_channels(&self) {
        let _ = self.everywhere.set(());
    }

    /// The command that rings a doorbell on this topology.
    pub(crate) fn publish(&self) -> &'static str {
        match &self.route {
            Route::One(_) => "PUBLISH",
            #[cfg(feature = "cluster")]
            Route::Cluster(_) if self.everywhere.get().is_some() => "PUBLISH",
            #[cfg(feature = "cluster")]
            Route::Cluster(_) => "SPUBLISH",
        }
    }

    /// Runs a script: EVALSHA, and EVAL at once when the server does not have it.
    ///
    /// One try within the call timeout. A call that timed out marks the connection as broken, since a half-open one
    /// looks just like that; whether it was executed is unknown then.
    pub(crate) async fn run(&self, call: &Invocation) -> Result<Value> {
        let answer = match self.send(call.script.name, call.first_key(), call.command(false)).await {
            Err(Sent::NoScript) => self.run_text(call).await,
            Err(Sent::Failed(e)) => Err(e),
            Ok(value) => Ok(value),
        };
        match answer {
            // The server names neither the command nor the key.
            Err(Error::Refused { op, code, message }) if code == "NOPERM" => {
                Err(script::explain(self, call, op, message).await)
            }
            answer => answer,
        }
    }

    /// Runs a script by its text.
    pub(crate) async fn run_text(&self, call: &Invocation) -> Result<Value> {
        match self.send(call.script.name, call.first_key(), call.command(true)).await {
            Ok(value) => Ok(value),
            Err(Sent::Failed(e)) => Err(e),
            Err(Sent::NoScript) => Err(forgotten(call)),
        }
    }

    fn unanswered(&self, op: &'static str, ready: &Ready) -> Error {
        tracing::warn!(script = op, server = ready.address(), after = ?self.call_timeout, "no answer");
        add(&self.counters.timeouts, 1);
        self.route.broken(ready);
        Error::Timeout { op, address: ready.address().to_owned(), after: self.call_timeout, ambiguous: true }
    }

    /// Any command, for the checks at connect. In a Cluster one of the nodes answers.
    pub(crate) async fn raw(&self, op: &'static str, cmd: redis::Cmd) -> Result<Value> {
        match self.send(op, None, cmd).await {
            Ok(value) => Ok(value),
            Err(Sent::Failed(e)) => Err(e),
            Err(Sent::NoScript) => {
                Err(Error::Refused { op, code: "NOSCRIPT".into(), message: String::new() })
            }
        }
    }

    async fn send(&self, op: &'static str, key: Option<&[u8]>, cmd: redis::Cmd) -> Result<Value, Sent> {
        let wait = self.wait.as_deref();
        let begun = Instant::now();
        let deadline = begun + self.call_timeout + wait.map_or(Duration::ZERO, |wait| wait.within);
        let (mut asked, mut redirections) = (None, 0);
        loop {
            let ready = self.route.ready(op, key, asked.as_ref(), ready_by(deadline)).await;
            let mut ready = ready.map_err(Sent::Failed)?;
            let over = ready.over();
            let answer = {
                let mut sending = std::pin::pin!(ready.send(&cmd, wait.map(|wait| &wait.cmd)));
                tokio::select! {
                    biased;
                    answer = tokio::time::timeout_at(deadline, &mut sending) => answer,
                    () = over.cancelled() => {
                        tokio::time::timeout_at(deadline.min(Instant::now() + LAST_WORDS), sending).await
                    }
                }
            };
            match answer {
                Ok(Ok((value, behind))) => {
                    if let (Some(wait), Some(answer)) = (wait, behind) {
                        wait.settle(ready.address(), answer);
                    }
                    return Ok(value);
                }
                Ok(Err(e)) if script_missing(&e) => return Err(Sent::NoScript),
                Ok(Err(e)) => match self.route.learn(&ready, &e) {
                    Some(to) if redirections < MOST_REDIRECTIONS => {
                        (asked, redirections) = (to, redirections + 1);
                    }
                    _ => {
                        let e = from_redis(op, ready.address(), &e, true);
                        tracing::debug!(script = op, error = %e, "script failed");
                        return Err(Sent::Failed(e));
                    }
                },
                // Long before the deadline, as it may be: the next connection is there, or on its way.
                Err(_) if over.is_cancelled() => {
                    return Err(Sent::Failed(given_up(op, &ready, begun.elapsed())));
                }
                Err(_) => return Err(Sent::Failed(self.unanswered(op, &ready))),
            }
        }
    }
}

impl Wait {
    fn settle(&self, address: &str, answer: redis::RedisResult<Value>) {
        let count = answer.and_then(|value| Ok(redis::from_redis_value::<u64>(value)?));
        let mut confirmed = self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        match (count, &mut *confirmed) {
            (Ok(count), Ok(least)) => *least = count.min(*least),
            (Ok(_), Err(_)) => {}
            (Err(e), confirmed) => *confirmed = Err(from_redis("wait", address, &e, false)),
        }
    }
}

/// As unknown as after the whole time: the command may have been executed.
fn given_up(op: &'static str, ready: &Ready, after: Duration) -> Error {
    tracing::debug!(script = op, server = ready.address(), ?after, "the connection was given up");
    Error::Timeout { op, address: ready.address().to_owned(), after, ambiguous: true }
}

/// How long a call with this deadline may wait for a connection.
fn ready_by(deadline: Instant) -> Instant {
    let margin = Duration::from_millis(10);
    OPERATION_ENDS.try_with(|ends| *ends - margin).map_or(deadline, |ends| ends.min(deadline))
}

fn forgotten(call: &Invocation) -> Error {
    Error::Refused {
        op: call.script.name,
        code: "NOSCRIPT".into(),
        message: "although the text was sent".into(),
    }
}

enum Sent {
    NoScript,
    Failed(Error),
}
