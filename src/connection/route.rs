//! Which link a call takes.

use redis::{RedisError, RedisResult, Value};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::endpoint::Place;
use super::failure::{connection_over, misled, replaced_perhaps};
use super::link::Up;
use super::{Endpoint, Link};
use crate::{Error, Result};

/// The way to the servers. Clones share it.
#[derive(Clone)]
pub(super) enum Route {
    /// One server has everything.
    One(Link),
    /// Each slot has a server.
    #[cfg(feature = "cluster")]
    Cluster(std::sync::Arc<super::cluster::Cluster>),
}

/// A connection that is up, with what it takes to call it broken.
pub(super) struct Ready {
    link: Link,
    up: Up,
    /// The node takes the call although the slot is not its own yet.
    #[cfg(feature = "cluster")]
    asking: bool,
}

impl Route {
    pub(super) async fn open(
        endpoint: Endpoint,
        connect_timeout: std::time::Duration,
        stop: CancellationToken,
    ) -> Result<Self> {
        #[cfg(feature = "cluster")]
        if endpoint.is_cluster() {
            return Ok(Self::Cluster(super::cluster::Cluster::open(endpoint, connect_timeout, stop).await?));
        }
        Ok(Self::One(Link::open("cmd", endpoint, connect_timeout, None, stop).await?))
    }

    /// Why it cannot be used now, as far as is known.
    pub(super) fn down(&self) -> Option<Error> {
        match self {
            Self::One(link) => link.down(),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.down(),
        }
    }

    pub(super) fn reconnects(&self) -> u64 {
        match self {
            Self::One(link) => link.reconnects(),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.reconnects(),
        }
    }

    /// The connection to whoever has this key, waiting for it until the deadline when it is down.
    pub(super) async fn ready(
        &self,
        op: &'static str,
        _key: Option<&[u8]>,
        _asked: Option<&Place>,
        deadline: Instant,
    ) -> Result<Ready> {
        match self {
            Self::One(link) => {
                let up = link.ready(op, deadline).await?;
                Ok(Ready {
                    link: link.clone(),
                    up,
                    #[cfg(feature = "cluster")]
                    asking: false,
                })
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => {
                let slot = _key.map(crate::partitions::slot_of_key);
                let (link, up) = cluster.ready(op, slot, _asked, deadline).await?;
                Ok(Ready { link, up, asking: _asked.is_some() })
            }
        }
    }

    /// What an error says about the way: a connection that is of no use is given up, another map is learned. Answers
    /// where the same call should be sent now: `Some(None)` the same way again, `Some(Some(node))` to that node.
    pub(super) fn learn(&self, ready: &Ready, e: &RedisError) -> Option<Option<Place>> {
        if connection_over(e) {
            self.broken(ready);
        } else if misled(e) {
            ready.link.misled(ready.up.generation);
            self.look_again();
        }
        if replaced_perhaps(e) {
            ready.link.doubt();
        }
        match self {
            Self::One(_) => None,
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => {
                if matches!(e.code(), Some("CLUSTERDOWN" | "TRYAGAIN")) {
                    cluster.look_again();
                }
                Some(match cluster.redirect(e, ready.address())? {
                    super::cluster::Redirect::Moved => None,
                    super::cluster::Redirect::Ask(node) => Some(node),
                })
            }
        }
    }

    /// The connection is of no use any more.
    pub(super) fn broken(&self, ready: &Ready) {
        ready.link.broken(ready.up.generation);
        self.look_again();
    }

    /// The map of a Cluster may be another one by now.
    fn look_again(&self) {
        match self {
            Self::One(_) => {}
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.look_again(),
        }
    }
}

impl Ready {
    /// Of the server at the other end.
    pub(super) fn address(&self) -> &str {
        self.link.address()
    }

    /// Cancelled when the connection is given up.
    pub(super) fn over(&self) -> CancellationToken {
        self.up.over.clone()
    }

    /// Answers to a command and, when there is one, to the command right behind it.
    pub(super) async fn send(
        &mut self,
        cmd: &redis::Cmd,
        behind: Option<&redis::Cmd>,
    ) -> RedisResult<(Value, Option<RedisResult<Value>>)> {
        #[cfg(feature = "cluster")]
        let asking = self.asking;
        #[cfg(not(feature = "cluster"))]
        let asking = false;
        if !asking && behind.is_none() {
            return Ok((self.up.connection.send_packed_command(cmd).await?.extract_error()?, None));
        }
        let mut pipeline = redis::Pipeline::with_capacity(3);
        pipeline.ignore_errors();
        if asking {
            pipeline.cmd("ASKING");
        }
        pipeline.add_command(cmd.clone());
        if let Some(behind) = behind {
            pipeline.add_command(behind.clone());
        }
        let count = usize::from(asking) + 1 + usize::from(behind.is_some());
        let answers = self.up.connection.send_packed_commands(&pipeline, 0, count).await?;
        let mut answers = answers.into_iter().skip(usize::from(asking));
        let answer = answers.next().unwrap_or(Value::Nil).extract_error()?;
        Ok((answer, answers.next().map(Value::extract_error)))
    }
}
