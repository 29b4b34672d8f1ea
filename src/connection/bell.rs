//! The doorbell side: the inboxes of all partitions, listened to and kept.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::link::OnMessage;
use super::{Commands, Endpoint, Link, LinkState};
use crate::{Error, Result};

/// Hears the inboxes of all partitions. Clones share it.
#[derive(Clone)]
pub(crate) enum Bell {
    /// One connection hears everything.
    One(Link),
    /// Each master of a Cluster has a connection.
    #[cfg(feature = "cluster")]
    Cluster(super::cluster::ClusterBell),
}

/// Which inboxes are heard now.
pub(crate) enum Heard {
    One(watch::Receiver<LinkState>),
    #[cfg(feature = "cluster")]
    Cluster(watch::Receiver<super::cluster::Generations>),
}

impl Bell {
    /// Listens to the inboxes, one a partition with its slot, and goes on with that until `stop` is cancelled.
    pub(crate) async fn open(
        _cmd: &Commands,
        endpoint: Endpoint,
        connect_timeout: Duration,
        inboxes: Vec<(u16, String)>,
        hear: OnMessage,
        stop: CancellationToken,
    ) -> Result<Self> {
        #[cfg(feature = "cluster")]
        if let Some(cluster) = _cmd.shards() {
            let bell = super::cluster::ClusterBell::open(cluster, connect_timeout, inboxes, hear, stop);
            return Ok(Self::Cluster(bell.await?));
        }
        let inboxes = inboxes.into_iter().map(|(_, channel)| channel).collect();
        Ok(Self::One(Link::open("bell", endpoint, connect_timeout, Some((inboxes, hear)), stop).await?))
    }

    /// To follow what is heard.
    pub(crate) fn heard(&self) -> Heard {
        match self {
            Self::One(link) => Heard::One(link.states()),
            #[cfg(feature = "cluster")]
            Self::Cluster(bell) => Heard::Cluster(bell.heard()),
        }
    }

    /// A doorbell of a partition did not come back though its inbox seemed to be heard in that generation: it is listened
    /// to anew. Late words about an old generation change nothing.
    pub(crate) fn suspect(&self, _partition: usize, generation: u64) {
        match self {
            Self::One(link) => link.broken(generation),
            #[cfg(feature = "cluster")]
            Self::Cluster(bell) => bell.suspect(_partition, generation),
        }
    }

    /// Why an inbox is not heard, if one is not.
    pub(crate) fn down(&self) -> Option<Error> {
        match self {
            Self::One(link) => link.down(),
            #[cfg(feature = "cluster")]
            Self::Cluster(bell) => bell.down(),
        }
    }

    /// How often a connection was opened again.
    pub(crate) fn reconnects(&self) -> u64 {
        match self {
            Self::One(link) => link.reconnects(),
            #[cfg(feature = "cluster")]
            Self::Cluster(bell) => bell.reconnects(),
        }
    }
}

impl Heard {
    /// The generation in which each partition's inbox is heard, 0 when it is not; it grows each time that doorbells may
    /// have been missed. `None` at the end.
    pub(crate) fn now(&mut self, partitions: usize) -> Option<Vec<u64>> {
        match self {
            Self::One(states) => match &*states.borrow_and_update() {
                LinkState::Up(up) => Some(vec![up.generation; partitions]),
                LinkState::Down(_) => Some(vec![0; partitions]),
                LinkState::Closed => None,
            },
            #[cfg(feature = "cluster")]
            Self::Cluster(heard) => heard.borrow_and_update().as_ref().map(|heard| heard.to_vec()),
        }
    }

    /// Until there is something new; false at the end.
    pub(crate) async fn changed(&mut self) -> bool {
        match self {
            Self::One(states) => states.changed().await.is_ok(),
            #[cfg(feature = "cluster")]
            Self::Cluster(heard) => heard.changed().await.is_ok(),
        }
    }
}
