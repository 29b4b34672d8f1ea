//! Sentinel: who the master is, asked each time a connection is opened, and when the master refuses writes as one does
//! that was replaced.
//!
//! All sentinels are asked at once, and what most of them say counts: one that was cut off from the others still names
//! the old master. What is named must call itself master too, or nothing is sent to it.

use std::future::Future;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionInfo, Value};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::endpoint::{Place, client, moved, with};
use super::failure::from_redis;
use super::{Credentials, Tls};
use crate::{Error, Result};

/// A sentinel that has not answered by then does not count.
const ANSWER_WITHIN: Duration = Duration::from_millis(700);
/// While a master does not answer: how often the sentinels are asked whether it is still the master.
const ASK_AGAIN: Duration = Duration::from_millis(300);

pub(crate) struct Sentinel {
    /// The master's name among the sentinels.
    name: String,
    /// Address for people, and how to reach it.
    sentinels: Vec<(String, ConnectionInfo)>,
    /// How to reach the master: everything but its address.
    master: ConnectionInfo,
    tls: Tls,
    /// The master that most of the sentinels named last, whoever asked.
    named: watch::Sender<Option<Place>>,
}

impl std::fmt::Debug for Sentinel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sentinel({:?})", self.name)
    }
}

impl Sentinel {
    pub(super) fn new(
        name: String,
        sentinels: Vec<(String, ConnectionInfo)>,
        master: ConnectionInfo,
        tls: Tls,
    ) -> Self {
        Self { name, sentinels, master, tls, named: watch::Sender::new(None) }
    }

    /// A connection to the master. When the sentinels name another one while the first does not answer, that one is
    /// taken.
    pub(super) async fn open_master<F>(
        &self,
        timeout: Duration,
        credentials: Option<&Credentials>,
        open: impl Fn(redis::Client) -> F,
    ) -> Result<(MultiplexedConnection, Place)>
    where
        F: Future<Output = Result<MultiplexedConnection>>,
    {
        loop {
            let place = self.ask(timeout, credentials).await?;
            tracing::debug!(master = %self.name, host = %place.0, port = place.1, "the sentinels name the master");
            let opening = async {
                let client = client(self.at(&place), &self.tls)
                    .map_err(|e| from_redis("connect", &shown(&place), &e, false))?;
                let mut connection = open(client).await?;
                self.check_role(&place, &mut connection).await?;
                Ok(connection)
            };
            tokio::select! {
                opened = opening => return opened.map(|connection| (connection, place)),
                () = self.moved_from(&place, timeout, credentials) => {}
            }
        }
    }

    fn at(&self, place: &Place) -> ConnectionInfo {
        self.master.clone().set_addr(moved(self.master.addr(), place))
    }

    /// Ends when most of the sentinels have named another master than this one. Asks nobody: somebody else did.
    pub(super) async fn replaced(&self, place: &Place) {
        let mut named = self.named.subscribe();
        let other = named.wait_for(|now| now.as_ref().is_some_and(|now| now != place)).await;
        debug_assert!(other.is_ok(), "the sender is our own");
    }

    /// Asks who the master is, for all who wait for another one. No answer is no news.
    pub(super) async fn look(&self, timeout: Duration, credentials: Option<&Credentials>) {
        let _ = self.ask(timeout, credentials).await;
    }

    /// Ends when the sentinels name another master than this one.
    async fn moved_from(&self, place: &Place, timeout: Duration, credentials: Option<&Credentials>) {
        loop {
            tokio::time::sleep(ASK_AGAIN).await;
            if self.ask(timeout, credentials).await.is_ok_and(|now| now != *place) {
                return;
            }
        }
    }

    /// A sentinel that has not heard of a failover, or a master that was demoted a moment ago: nothing may be written
    /// there. `HELLO` answers the role and needs no right that the connection does not use anyway.
    async fn check_role(&self, place: &Place, connection: &mut MultiplexedConnection) -> Result<()> {
        let answer = connection
            .send_packed_command(&redis::cmd("HELLO"))
            .await
            .and_then(Value::extract_error)
            .map_err(|e| from_redis("connect", &shown(place), &e, false))?;
        match role(&answer).as_deref() {
            Some("replica" | "slave") => Err(Error::Refused {
                op: "connect",
                code: "READONLY".into(),
                message: format!(
                    "{} is named master {:?} and calls itself a replica",
                    shown(place),
                    self.name
                ),
            }),
            _ => Ok(()),
        }
    }

    /// What most sentinels say, as soon as that is certain.
    async fn ask(&self, timeout: Duration, credentials: Option<&Credentials>) -> Result<Place> {
        let limit = timeout.min(ANSWER_WITHIN);
        let mut asked = JoinSet::new();
        for (address, info) in &self.sentinels {
            let info = credentials.map_or_else(|| info.clone(), |who| with(info.clone(), who));
            let (address, name, tls) = (address.clone(), self.name.clone(), self.tls.clone());
            asked.spawn(async move {
                let answer = tokio::time::timeout(limit, ask_one(&address, info, &name, &tls)).await;
                let late = || Err(Error::Timeout { op: "connect", address, after: limit, ambiguous: false });
                answer.unwrap_or_else(|_| late())
            });
        }
        let mut named: Vec<(Place, usize)> = Vec::new();
        let mut failed = Vec::new();
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok(Ok(place)) => {
                    let at = named.iter().position(|(known, _)| *known == place).unwrap_or_else(|| {
                        named.push((place, 0));
                        named.len() - 1
                    });
                    named[at].1 += 1;
                    if named[at].1 * 2 > self.sentinels.len() {
                        let place = named.swap_remove(at).0;
                        self.named.send_if_modified(|known| {
                            let news = known.as_ref() != Some(&place);
                            *known = Some(place.clone());
                            news
                        });
                        return Ok(place);
                    }
                }
                Ok(Err(e)) => failed.push(e),
                Err(_) => {} // Only when the runtime ends.
            }
        }
        if let Some((place, _)) = named.into_iter().max_by_key(|(_, count)| *count) {
            return Ok(place);
        }
        // One that answers and refuses says more than one that is away.
        failed.sort_by_key(|e| !matches!(e, Error::Refused { .. }));
        Err(failed.into_iter().next().unwrap_or(Error::Closed { op: "connect" }))
    }
}

fn shown((host, port): &Place) -> String {
    format!("{host}:{port}")
}

async fn ask_one(address: &str, info: ConnectionInfo, name: &str, tls: &Tls) -> Result<Place> {
    let failed = |e: redis::RedisError| match from_redis("connect", address, &e, false) {
        Error::Refused { op, code, message } => {
            Error::Refused { op, code, message: format!("{message} (sentinel {address})") }
        }
        other => other,
    };
    let client = client(info, tls).map_err(failed)?;
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let mut sentinel = client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)?;
    let mut question = redis::cmd("SENTINEL");
    question.arg("get-master-addr-by-name").arg(name);
    let answer: Option<Place> = question.query_async(&mut sentinel).await.map_err(failed)?;
    answer.ok_or_else(|| Error::Refused {
        op: "connect",
        code: "MASTER".into(),
        message: format!("sentinel {address} knows no master {name:?}"),
    })
}

/// The role in an answer to `HELLO`.
fn role(hello: &Value) -> Option<String> {
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    };
    let Value::Map(fields) = hello else { return None };
    fields.iter().find(|(name, _)| text(name).as_deref() == Some("role")).and_then(|(_, role)| text(role))
}
