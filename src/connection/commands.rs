//! The command connection: runs scripts, nothing else.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use super::Link;
use super::failure::{connection_over, from_redis, script_missing};
use crate::metrics::{Counters, add};
use crate::script::Invocation;
use crate::{Error, Result};

/// Runs scripts over the shared connection.
#[derive(Clone)]
pub(crate) struct Commands {
    link: Link,
    call_timeout: Duration,
    counters: Arc<Counters>,
}

impl Commands {
    pub(crate) fn new(link: Link, call_timeout: Duration, counters: Arc<Counters>) -> Self {
        Self { link, call_timeout, counters }
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// The command that rings a doorbell on this topology.
    pub(crate) fn publish(&self) -> &'static str {
        "PUBLISH"
    }

    /// Runs a script: EVALSHA, and EVAL at once when the server does not have it.
    ///
    /// One try within the call timeout. A call that timed out marks the connection as broken, since a half-open one
    /// looks just like that; whether it was executed is unknown then.
    pub(crate) async fn run(&self, call: &Invocation) -> Result<Value> {
        match self.send(call.script.name, call.command(false)).await {
            Err(Sent::NoScript) => match self.send(call.script.name, call.command(true)).await {
                Err(Sent::NoScript) => Err(Error::Refused {
                    op: call.script.name,
                    code: "NOSCRIPT".into(),
                    message: "although the text was sent".into(),
                }),
                Err(Sent::Failed(e)) => Err(e),
                Ok(value) => Ok(value),
            },
            Err(Sent::Failed(e)) => Err(e),
            Ok(value) => Ok(value),
        }
    }

    /// Runs calls in one round trip, in order; one answer each.
    ///
    /// The first of each script goes by EVAL, which makes it known to the server, and the others by EVALSHA behind it.
    pub(crate) async fn run_many(&self, calls: &[Invocation]) -> Result<Vec<Result<Value>>> {
        let Some(op) = calls.first().map(|call| call.script.name) else { return Ok(Vec::new()) };
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
        let (generation, mut connection) = self.link.ready(op, deadline).await?;
        let sending = connection.send_packed_commands(&pipeline, 0, calls.len());
        let values = match tokio::time::timeout_at(deadline, sending).await {
            Ok(Ok(values)) => values,
            Ok(Err(e)) => {
                if connection_over(&e) {
                    self.link.broken(generation);
                }
                return Err(from_redis(op, self.link.address(), &e, true));
            }
            Err(_) => return Err(self.unanswered(op, generation)),
        };
        let answers = values.into_iter().map(|value| match value {
            Value::ServerError(e) => {
                Err(from_redis(op, self.link.address(), &redis::RedisError::from(e), true))
            }
            value => Ok(value),
        });
        Ok(answers.collect())
    }

    fn unanswered(&self, op: &'static str, generation: u64) -> Error {
        tracing::warn!(script = op, after = ?self.call_timeout, "no answer");
        add(&self.counters.timeouts, 1);
        self.link.broken(generation);
        let address = self.link.address().to_owned();
        Error::Timeout { op, address, after: self.call_timeout, ambiguous: true }
    }

    /// Any command, for the checks at connect.
    pub(crate) async fn raw(&self, op: &'static str, cmd: redis::Cmd) -> Result<Value> {
        match self.send(op, cmd).await {
            Ok(value) => Ok(value),
            Err(Sent::Failed(e)) => Err(e),
            Err(Sent::NoScript) => {
                Err(Error::Refused { op, code: "NOSCRIPT".into(), message: String::new() })
            }
        }
    }

    async fn send(&self, op: &'static str, cmd: redis::Cmd) -> Result<Value, Sent> {
        let deadline = Instant::now() + self.call_timeout;
        let (generation, mut connection) = self.link.ready(op, deadline).await.map_err(Sent::Failed)?;
        let answered = tokio::time::timeout_at(deadline, connection.send_packed_command(&cmd)).await;
        match answered.map(|answer| answer.and_then(Value::extract_error)) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(e)) if script_missing(&e) => Err(Sent::NoScript),
            Ok(Err(e)) => {
                if connection_over(&e) || matches!(e.code(), Some("READONLY" | "MASTERDOWN")) {
                    self.link.broken(generation);
                }
                Err(self.failed(op, &e))
            }
            Err(_) => Err(Sent::Failed(self.unanswered(op, generation))),
        }
    }

    fn failed(&self, op: &'static str, e: &redis::RedisError) -> Sent {
        let e = from_redis(op, self.link.address(), e, true);
        tracing::debug!(script = op, error = %e, "script failed");
        Sent::Failed(e)
    }
}

enum Sent {
    NoScript,
    Failed(Error),
}
