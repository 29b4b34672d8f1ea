//! Cluster: a link to each master that is needed, and the map that tells which one has a slot.
//!
//! Routing is our own, over the same supervised links as elsewhere. The client's Cluster connection reconnects and
//! subscribes by itself: replies then reach the wrong caller, shard subscriptions are not restored after a migration,
//! and a half-open node is its to find. Here every script has one slot, which makes routing a look-up.

mod bell;
mod slots;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::RedisError;
use redis::aio::MultiplexedConnection;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use self::bell::{ClusterBell, Generations};
use self::slots::Slots;
pub(crate) use super::endpoint::Place;
use super::failure::from_redis;
use super::link::Up;
use super::{Endpoint, Link};
use crate::{Error, Result};

/// A node that has not told its map by then is not waited for.
const ANSWER_WITHIN: Duration = Duration::from_millis(700);
/// After the first map: what comes within this time counts too, since one node may be behind the others.
const MAPS_WITHIN: Duration = Duration::from_millis(100);
/// Between two looks at the map while something is wrong, and while nothing is.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
const LOOK_ANYWAY: Duration = Duration::from_secs(15);
/// However many ask for it: a look at the map at most so often.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// What a node said instead of an answer.
pub(super) enum Redirect {
    /// The slot is elsewhere for good; the map is corrected.
    Moved,
    /// This call's keys are elsewhere already.
    Ask(Place),
}

/// The command side of a Cluster.
pub(crate) struct Cluster {
    endpoint: Endpoint,
    seeds: Vec<Place>,
    connect_timeout: Duration,
    map: watch::Sender<Arc<Slots>>,
    look: Notify,
    links: Mutex<HashMap<Place, (Link, CancellationToken)>>,
    stop: CancellationToken,
}

impl Cluster {
    /// Learns the map from any of the seeds, then keeps it up to date until `stop` is cancelled.
    pub(super) async fn open(
        endpoint: Endpoint,
        connect_timeout: Duration,
        stop: CancellationToken,
    ) -> Result<Arc<Self>> {
        let seeds = endpoint.seeds().to_vec();
        let cluster = Arc::new(Self {
            endpoint,
            seeds,
            connect_timeout,
            map: watch::Sender::new(Arc::default()),
            look: Notify::new(),
            links: Mutex::default(),
            stop,
        });
        let map = tokio::time::timeout(connect_timeout, cluster.read_map()).await.map_err(|_| {
            Error::Timeout {
                op: "connect",
                address: cluster.endpoint.address.clone(),
                after: connect_timeout,
                ambiguous: false,
            }
        })??;
        cluster.learn(map);
        tokio::spawn(cluster.clone().keep_map());
        Ok(cluster)
    }

    fn links(&self) -> MutexGuard<'_, HashMap<Place, (Link, CancellationToken)>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The map as far as it is known, for those who follow it.
    fn map(&self) -> watch::Receiver<Arc<Slots>> {
        self.map.subscribe()
    }

    /// Has the map looked at soon.
    pub(super) fn look_again(&self) {
        self.look.notify_one();
    }

    /// The link to a node, which may still be opening.
    fn link(&self, place: &Place) -> Link {
        let mut links = self.links();
        if let Some((link, _)) = links.get(place) {
            return link.clone();
        }
        let stop = self.stop.child_token();
        let link = Link::keep("cmd", self.endpoint.node(place), self.connect_timeout, stop.clone());
        links.insert(place.clone(), (link.clone(), stop));
        link
    }

    /// A connection to the master of a slot, or to the node that was asked for. Waits until the deadline: also for
    /// another master to take over, as in a failover.
    pub(super) async fn ready(
        &self,
        op: &'static str,
        slot: Option<u16>,
        asked: Option<&Place>,
        deadline: Instant,
    ) -> Result<(Link, Up)> {
        let mut map = self.map();
        loop {
            let place = asked.cloned().or_else(|| map.borrow_and_update().master(slot.unwrap_or(0)).cloned());
            let Some(place) = place else {
                self.look_again();
                match tokio::time::timeout_at(deadline, map.changed()).await {
                    Ok(Ok(())) => continue,
                    Ok(Err(_)) => return Err(Error::Closed { op }),
                    Err(_) => return Err(down(op)),
                }
            };
            let link = self.link(&place);
            if link.down().is_some() {
                self.look_again();
            }
            tokio::select! {
                biased;
                ready = link.ready(op, deadline) => match ready {
                    Ok(up) => return Ok((link, up)),
                    // The node left; who has the slot now is in the map.
                    Err(Error::Closed { .. }) if !self.stop.is_cancelled() => {
                        if Instant::now() >= deadline {
                            return Err(down(op));
                        }
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    Err(e) => return Err(e),
                },
                changed = map.changed() => if changed.is_err() {
                    return Err(Error::Closed { op });
                },
            }
        }
    }

    /// Reads a redirection, and corrects the map by it.
    pub(super) fn redirect(&self, e: &RedisError, from: &str) -> Option<Redirect> {
        let (to, slot) = e.redirect_node()?;
        let (host, port) = to.rsplit_once(':')?;
        // A node that does not know its host leaves it out: it is the one that was asked.
        let host = if host.is_empty() { from.rsplit_once(':')?.0 } else { host };
        let place = (host.to_owned(), port.parse().ok()?);
        if e.code() == Some("ASK") {
            return Some(Redirect::Ask(place));
        }
        self.moved(slot, place);
        Some(Redirect::Moved)
    }

    fn moved(&self, slot: u16, to: Place) {
        self.map.send_if_modified(|map| {
            let news = map.master(slot) != Some(&to);
            if news {
                *map = Arc::new(map.with_moved(slot, to));
            }
            news
        });
        // One moved slot is seldom alone.
        self.look_again();
    }

    /// Why some of it cannot be used, if that is so.
    pub(super) fn down(&self) -> Option<Error> {
        let map = self.map.borrow().clone();
        if self.stop.is_cancelled() {
            return Some(Error::Closed { op: "connect" });
        }
        if !map.is_whole() {
            return Some(down("connect"));
        }
        let links = self.links();
        map.masters().iter().find_map(|place| links.get(place)?.0.down())
    }

    pub(super) fn reconnects(&self) -> u64 {
        self.links().values().map(|(link, _)| link.reconnects()).sum()
    }

    async fn keep_map(self: Arc<Self>) {
        let mut told = String::new();
        loop {
            let pause = if self.down().is_none() { LOOK_ANYWAY } else { LOOK_AGAIN };
            tokio::select! {
                () = self.look.notified() => {}
                () = tokio::time::sleep(pause) => {}
                () = self.stop.cancelled() => return,
            }
            match self.read_map().await {
                Ok(map) => {
                    told.clear();
                    self.learn(map);
                }
                Err(e) => {
                    let why = e.trouble();
                    if why != told {
                        tracing::warn!(error = %e, "no node tells the map of the cluster, trying on");
                        told = why;
                    }
                }
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    fn learn(&self, map: Slots) {
        let map = Arc::new(map);
        let news = self.map.send_if_modified(|known| {
            let news = *known != map;
            *known = map.clone();
            news
        });
        if news {
            tracing::debug!(
                masters = map.masters().len(),
                whole = map.is_whole(),
                "another map of the cluster"
            );
            // Nobody asks a node without slots for anything; a call that waits for it looks at the map again.
            self.links().retain(|place, (_, stop)| {
                let needed = map.masters().contains(place);
                if !needed {
                    stop.cancel();
                }
                needed
            });
        }
    }

    /// What most of the nodes say that can be asked: over links that are up, else by short connections to every node
    /// that was ever named.
    async fn read_map(&self) -> Result<Slots> {
        let mut asked = JoinSet::new();
        let up: Vec<(Place, MultiplexedConnection)> = (self.links().iter())
            .filter_map(|(place, (link, _))| Some((place.clone(), link.connection()?)))
            .collect();
        for (place, connection) in up {
            asked.spawn(async move {
                let answer = tokio::time::timeout(ANSWER_WITHIN, ask(&place, connection)).await;
                answer.unwrap_or_else(|_| Err(late(&place, ANSWER_WITHIN)))
            });
        }
        let answer = most_said(&mut asked).await;
        if answer.is_ok() {
            return answer;
        }
        let mut places = self.map.borrow().masters().to_vec();
        places.extend(self.seeds.iter().cloned());
        places.sort();
        places.dedup();
        let limit = self.connect_timeout;
        for place in places {
            let node = self.endpoint.node(&place);
            asked.spawn(async move {
                let (connection, _) = node.open(limit, Arc::new(|_| {})).await?;
                let answer = tokio::time::timeout(ANSWER_WITHIN, ask(&place, connection)).await;
                answer.unwrap_or_else(|_| Err(late(&place, ANSWER_WITHIN)))
            });
        }
        most_said(&mut asked).await
    }
}

fn down(op: &'static str) -> Error {
    Error::Refused { op, code: "CLUSTERDOWN".into(), message: "no node has this slot".into() }
}

fn late((host, port): &Place, after: Duration) -> Error {
    Error::Timeout { op: "connect", address: format!("{host}:{port}"), after, ambiguous: false }
}

async fn ask(place: &Place, mut connection: MultiplexedConnection) -> Result<Slots> {
    let address = format!("{}:{}", place.0, place.1);
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    let answer = connection
        .send_packed_command(&question)
        .await
        .and_then(redis::Value::extract_error)
        .map_err(|e| from_redis("connect", &address, &e, false));
    match answer {
        Ok(answer) => Slots::read(&answer, place),
        Err(Error::Refused { code, message, .. }) if code == "ERR" && message.contains("cluster support") => {
            Err(Error::invalid(
                "url",
                format!("{address} is no cluster node; use redis:// for a single server"),
            ))
        }
        Err(e) => Err(e),
    }
}

/// The map that comes most often among those that come in time.
async fn most_said(asked: &mut JoinSet<Result<Slots>>) -> Result<Slots> {
    let (mut maps, mut failed): (Vec<(Slots, usize)>, Vec<Error>) = (Vec::new(), Vec::new());
    let mut end: Option<Instant> = None;
    loop {
        let next = match end {
            None => asked.join_next().await,
            Some(end) => tokio::time::timeout_at(end, asked.join_next()).await.unwrap_or(None),
        };
        match next {
            None => break,
            Some(Ok(Ok(map))) => {
                end.get_or_insert(Instant::now() + MAPS_WITHIN);
                match maps.iter_mut().find(|(known, _)| *known == map) {
                    Some((_, count)) => *count += 1,
                    None => maps.push((map, 1)),
                }
            }
            Some(Ok(Err(e))) => failed.push(e),
            Some(Err(_)) => {} // Only when the runtime ends.
        }
    }
    asked.abort_all();
    if let Some((map, _)) = maps.into_iter().max_by_key(|(map, count)| (*count, map.is_whole())) {
        return Ok(map);
    }
    // One that answers and refuses says more than one that is away.
    failed.sort_by_key(|e| !matches!(e, Error::Refused { .. } | Error::Invalid { .. }));
    let nobody = || Error::Unreachable {
        op: "connect",
        address: "cluster".into(),
        why: "no node to ask".into(),
        ambiguous: false,
    };
    Err(failed.into_iter().next().unwrap_or_else(nobody))
}
