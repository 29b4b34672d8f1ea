//! The command connection: runs scripts, nothing else.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Endpoint;
use super::failure::{from_redis, script_missing};
use super::route::{Ready, Route};
use crate::each::each;
use crate::metrics::{Counters, add};
use crate::script::Invocation;
use crate::{Error, Result};

/// Redirections that one call follows. More mean that the nodes do not agree: the caller tries again later.
const MOST_REDIRECTIONS: usize = 5;

/// Runs scripts over the shared connection.
#[derive(Clone)]
pub(crate) struct Commands {
    route: Route,
    call_timeout: Duration,
    counters: Arc<Counters>,
    /// Whether doorbells of a Cluster go to all of its nodes, since it has no shard channels.
    everywhere: Arc<OnceLock<()>>,
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
        Ok(Self { route, call_timeout, counters, everywhere: Arc::default() })
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
        match self.send(call.script.name, call.first_key(), call.command(false)).await {
            Err(Sent::NoScript) => {
                match self.send(call.script.name, call.first_key(), call.command(true)).await {
                    Err(Sent::NoScript) => Err(Error::Refused {
                        op: call.script.name,
                        code: "NOSCRIPT".into(),
                        message: "although the text was sent".into(),
                    }),
                    Err(Sent::Failed(e)) => Err(e),
                    Ok(value) => Ok(value),
                }
            }
            Err(Sent::Failed(e)) => Err(e),
            Ok(value) => Ok(value),
        }
    }

    /// Runs calls in one round trip, in order; one answer each. In a Cluster: one round trip to each node, side by side,
    /// in order on each of them.
    pub(crate) async fn run_many(&self, calls: &[Invocation]) -> Result<Vec<Result<Value>>> {
        let mut groups: Vec<(Option<(String, u16)>, Vec<usize>)> = Vec::new();
        for (n, call) in calls.iter().enumerate() {
            let place = self.route.place(call.first_key());
            match groups.iter_mut().find(|(known, _)| *known == place) {
                Some((_, group)) => group.push(n),
                None => groups.push((place, vec![n])),
            }
        }
        let sending = groups.iter().map(|(_, group)| {
            let calls: Vec<&Invocation> = group.iter().map(|&n| &calls[n]).collect();
            async move { self.run_pipeline(&calls).await }
        });
        let answered = each(sending).await;
        let mut answers: Vec<Option<Result<Value>>> = calls.iter().map(|_| None).collect();
        for ((_, group), values) in groups.iter().zip(answered) {
            for (&n, value) in group.iter().zip(values?) {
                answers[n] = Some(value);
            }
        }
        let missing = |n: usize| {
            let op = calls[n].script.name;
            Err(Error::Reply { op, got: "fewer answers than calls".into() })
        };
        Ok(answers.into_iter().enumerate().map(|(n, answer)| answer.unwrap_or_else(|| missing(n))).collect())
    }

    /// The first of each script goes by EVAL, which makes it known to the server, and the others by EVALSHA behind it.
    async fn run_pipeline(&self, calls: &[&Invocation]) -> Result<Vec<Result<Value>>> {
        let Some(first) = calls.first() else { return Ok(Vec::new()) };
        let op = first.script.name;
        let mut pipeline = redis::Pipeline::with_capacity(calls.len());
        pipeline.ignore_errors();
        let mut known: Vec<&str> = Vec::new();
        for call in calls {
            let with_text = !known.contains(&call.script.name);
            if with_text {
                known.push(call.script.name);
            }
            pipeline.add_command(call.command(with_text));
        }
        let deadline = Instant::now() + self.call_timeout;
        let mut ready = self.route.ready(op, first.first_key(), None, deadline).await?;
        let values = match tokio::time::timeout_at(deadline, ready.send_all(&pipeline, calls.len())).await {
            Ok(Ok(values)) => values,
            Ok(Err(e)) => {
                self.route.learn(&ready, &e);
                return Err(from_redis(op, ready.address(), &e, true));
            }
            Err(_) => return Err(self.unanswered(op, &ready)),
        };
        let answers = values.into_iter().map(|value| match value {
            Value::ServerError(e) => {
                let e = redis::RedisError::from(e);
                self.route.learn(&ready, &e);
                Err(from_redis(op, ready.address(), &e, true))
            }
            value => Ok(value),
        });
        Ok(answers.collect())
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
        let deadline = Instant::now() + self.call_timeout;
        let (mut asked, mut redirections) = (None, 0);
        loop {
            let ready = self.route.ready(op, key, asked.as_ref(), deadline).await;
            let mut ready = ready.map_err(Sent::Failed)?;
            match tokio::time::timeout_at(deadline, ready.send(&cmd)).await {
                Ok(Ok(value)) => return Ok(value),
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
                Err(_) => return Err(Sent::Failed(self.unanswered(op, &ready))),
            }
        }
    }
}

enum Sent {
    NoScript,
    Failed(Error),
}
