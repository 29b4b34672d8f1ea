//! Three masters with a replica each.

use super::{DOWN_AFTER, PATIENCE, Server, Servers, raw, until};
use crate::output::Failure;
use crate::soak::args::Soak;

/// Inclusive ranges of a third of the slots each.
const THIRDS: [(u16, u16); 3] = [(0, 5461), (5462, 10922), (10923, 16383)];

/// A line of `CLUSTER NODES`.
#[derive(Debug)]
pub(super) struct Node {
    id: String,
    pub(super) port: u16,
    flags: String,
    /// The id of its master.
    follows: String,
    /// Inclusive.
    pub(super) slots: Vec<(u16, u16)>,
}

impl Node {
    pub(super) fn is_master(&self) -> bool {
        self.flags.contains("master") && !self.flags.contains("fail")
    }

    fn read(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let slots = words.get(8..).unwrap_or_default().iter().filter(|w| !w.starts_with('['));
        let range = |w: &&str| {
            let (first, last) = w.split_once('-').unwrap_or((w, w));
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        Some(Self {
            id: words.first()?.to_string(),
            port: words.get(1)?.split(['@', ',']).next()?.rsplit(':').next()?.parse().ok()?,
            flags: words.get(2)?.to_string(),
            follows: words.get(3)?.to_string(),
            slots: slots.filter_map(range).collect(),
        })
    }
}

impl Servers {
    pub(super) async fn start_cluster(&mut self, args: &Soak) -> Result<(), Failure> {
        for _ in 0..6 {
            let configuration = |port: u16, announced: u16| {
                format!(
                    "cluster-enabled yes\ncluster-config-file nodes.conf\ncluster-node-timeout {}\n\
                     cluster-replica-validity-factor 0\ncluster-announce-ip 127.0.0.1\n\
                     cluster-announce-port {announced}\ncluster-announce-bus-port {}\n",
                    DOWN_AFTER.as_millis(),
                    port + 10_000
                )
            };
            self.all.push(Server::start(args, &configuration).await?);
        }
        for (server, (first, last)) in self.all.iter().zip(THIRDS) {
            let (first, last) = (first.to_string(), last.to_string());
            server.ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await?;
        }
        let first = &self.all[0];
        let (port, bus) = (first.proxy.port.to_string(), (first.port() + 10_000).to_string());
        for (n, server) in self.all.iter().enumerate() {
            server.ask::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(n + 1).to_string()]).await?;
            if n > 0 {
                server.ask::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await?;
            }
        }
        for server in &self.all {
            until("all nodes to know each other", PATIENCE, async || {
                let nodes: String = server.ask(&["CLUSTER", "NODES"]).await?;
                let known = nodes.lines().count() == 6 && !nodes.contains("handshake");
                if known { Ok(()) } else { Err(Failure::failed(nodes)) }
            })
            .await?;
        }
        for (n, replica) in self.all[3..].iter().enumerate() {
            let id: String = self.all[n].ask(&["CLUSTER", "MYID"]).await?;
            replica.ask::<()>(&["CLUSTER", "REPLICATE", &id]).await?;
        }
        Ok(())
    }

    /// As the first node tells it that knows the Cluster to be well, or the first that answers.
    pub(super) async fn cluster_nodes(&self) -> Result<Vec<Node>, Failure> {
        let mut best: Option<(usize, Vec<Node>)> = None;
        for server in &self.all {
            let asked = tokio::time::timeout(std::time::Duration::from_millis(500), async {
                let mut raw = raw::connect(server.port()).await?;
                raw::ask::<String>(&mut raw, &["CLUSTER", "NODES"]).await
            });
            let Ok(Ok(text)) = asked.await else { continue };
            let nodes: Vec<Node> = text.lines().filter_map(Node::read).collect();
            let covered: usize = nodes
                .iter()
                .filter(|n| n.is_master())
                .flat_map(|n| &n.slots)
                .map(|(a, b)| usize::from(b - a) + 1)
                .sum();
            if covered == 16_384 {
                return Ok(nodes);
            }
            if best.as_ref().is_none_or(|(most, _)| covered > *most) {
                best = Some((covered, nodes));
            }
        }
        best.map(|(_, nodes)| nodes).ok_or_else(|| Failure::failed("no node of the cluster answers"))
    }

    pub(super) async fn owner_of(&self, slot: u16) -> Result<usize, Failure> {
        let nodes = self.cluster_nodes().await?;
        nodes
            .iter()
            .find(|n| n.is_master() && n.slots.iter().any(|&(a, b)| (a..=b).contains(&slot)))
            .and_then(|n| self.behind(n.port))
            .ok_or_else(|| Failure::failed(format!("nobody has slot {slot}")))
    }

    /// A replica of a master.
    async fn replica_of(&self, master: usize) -> Result<usize, Failure> {
        let nodes = self.cluster_nodes().await?;
        let port = self.all[master].proxy.port;
        let id = nodes.iter().find(|n| n.port == port).map(|n| n.id.clone()).unwrap_or_default();
        nodes
            .iter()
            .find(|n| n.follows == id && !n.flags.contains("fail"))
            .and_then(|n| self.behind(n.port))
            .ok_or_else(|| Failure::failed(format!("server {master} has no replica")))
    }

    /// Has a master's replica take its place, with everything alive. It gives up by itself after 5 s: to be told again.
    pub async fn order_cluster_failover(&self, master: usize) -> Result<(), Failure> {
        let replica = self.replica_of(master).await?;
        self.all[replica].ask::<()>(&["CLUSTER", "FAILOVER"]).await
    }

    /// Moves a session's slot with all its keys to another master, as `redis-cli --cluster reshard` does; says which.
    pub async fn migrate(&self, session: u32) -> Result<usize, Failure> {
        let slot = super::slots::of_session(session);
        let from = self.owner_of(slot).await?;
        let masters = self.masters().await?;
        let to = masters.into_iter().find(|&m| m != from);
        let to = to.ok_or_else(|| Failure::failed("there is no other master"))?;
        let (here, there) = (&self.all[from], &self.all[to]);
        let source: String = here.ask(&["CLUSTER", "MYID"]).await?;
        let target: String = there.ask(&["CLUSTER", "MYID"]).await?;
        let slot = slot.to_string();
        there.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]).await?;
        here.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]).await?;
        loop {
            let keys: Vec<String> = here.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "500"]).await?;
            if keys.is_empty() {
                break;
            }
            let port = there.port().to_string();
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            here.ask::<redis::Value>(&words).await?;
        }
        for server in [there, here] {
            server.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]).await?;
        }
        Ok(to)
    }

    pub(super) async fn cluster_whole(&self) -> Result<(), Failure> {
        for (n, server) in self.all.iter().enumerate() {
            let wrong = |what: String| Err(Failure::failed(format!("server {n}: {what}")));
            let state: String = server.ask(&["CLUSTER", "INFO"]).await?;
            let role = server.role().await?;
            let in_step = role.contains("master_link_status:up")
                || role.contains("role:master") && role.contains("connected_slaves:1");
            if !state.contains("cluster_state:ok") || !in_step {
                return wrong(state + &role);
            }
            let text: String = server.ask(&["CLUSTER", "NODES"]).await?;
            let nodes: Vec<Node> = text.lines().filter_map(Node::read).collect();
            let masters = nodes.iter().filter(|n| n.is_master() && !n.slots.is_empty()).count();
            if nodes.len() != 6 || masters != 3 || nodes.iter().any(|n| n.flags.contains("fail")) {
                return wrong(text);
            }
        }
        Ok(())
    }
}
