//! A Cluster of three masters and three replicas, as processes of this machine.

use std::path::Path;
use std::time::Duration;

use redis::aio::MultiplexedConnection;

use super::binary::{self, Process};
use super::ready::free_port;
use super::server;
use super::wait::wait_until;

/// Lives as long as this value. The first three nodes began as masters.
#[derive(Debug)]
pub struct Cluster {
    pub nodes: Vec<Process>,
    /// Where they speak TLS; empty without it. Their other ports are there as well.
    pub tls_ports: Vec<u16>,
}

/// Half-open ranges of a third of the slots each.
const THIRDS: [(u16, u16); 3] = [(0, 5462), (5462, 10923), (10923, 16384)];

async fn ask<T: redis::FromRedisValue>(raw: &mut MultiplexedConnection, words: &[&str]) -> Result<T, String> {
    let mut cmd = redis::cmd(words[0]);
    for word in &words[1..] {
        cmd.arg(word);
    }
    cmd.query_async(raw).await.map_err(|e| format!("{words:?}: {e}"))
}

async fn raw_of(port: u16) -> MultiplexedConnection {
    server::raw(&format!("redis://127.0.0.1:{port}")).await
}

impl Cluster {
    /// Up, all slots served, all replicas in sync. A node that is silent for `node_timeout` is taken for dead.
    pub async fn start(program: &Path, node_timeout: Duration, extra: &[&str]) -> Result<Self, String> {
        Self::start_with(program, node_timeout, extra, &[]).await
    }

    /// The same; with options that name certificates (`--tls-cert-file`, its file, …) all nodes speak TLS with each other.
    pub async fn start_with(
        program: &Path,
        node_timeout: Duration,
        extra: &[&str],
        certificates: &[String],
    ) -> Result<Self, String> {
        let timeout = node_timeout.as_millis().to_string();
        let mut options: Vec<String> = ["--cluster-enabled", "yes", "--cluster-node-timeout", &timeout]
            .into_iter()
            .chain(["--repl-diskless-sync-delay", "0", "--cluster-replica-validity-factor", "0"])
            .map(str::to_owned)
            .collect();
        options.extend(extra.iter().map(|&w| w.to_owned()));
        let (mut nodes, mut tls_ports) = (Vec::new(), Vec::new());
        for _ in 0..6 {
            let mut options = options.clone();
            if !certificates.is_empty() {
                let port = free_port();
                options.extend(
                    ["--tls-cluster", "yes", "--tls-replication", "yes", "--tls-port"].map(str::to_owned),
                );
                options.push(port.to_string());
                options.extend_from_slice(certificates);
                tls_ports.push(port);
            }
            nodes.push(Process::start(program, &options).await?);
        }
        let cluster = Self { nodes, tls_ports };
        cluster.form().await?;
        Ok(cluster)
    }

    async fn form(&self) -> Result<(), String> {
        let mut raws = Vec::new();
        for node in &self.nodes {
            raws.push(raw_of(node.port).await);
        }
        for (n, (first, end)) in THIRDS.into_iter().enumerate() {
            let slots: Vec<String> = (first..end).map(|slot| slot.to_string()).collect();
            let mut add = redis::cmd("CLUSTER");
            add.arg("ADDSLOTS").arg(&slots);
            add.exec_async(&mut raws[n]).await.map_err(|e| e.to_string())?;
        }
        let first = self.tls_ports.first().unwrap_or(&self.nodes[0].port).to_string();
        for (n, raw) in raws.iter_mut().enumerate() {
            let epoch = (n + 1).to_string();
            ask::<String>(raw, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await?;
            ask::<String>(raw, &["CLUSTER", "MEET", "127.0.0.1", &first]).await?;
        }
        for raw in &raws {
            wait_until("all nodes to know each other", Duration::from_secs(40), || {
                let mut raw = raw.clone();
                async move {
                    let nodes: String = ask(&mut raw, &["CLUSTER", "NODES"]).await?;
                    if nodes.lines().count() == 6 && !nodes.contains("handshake") {
                        Ok(())
                    } else {
                        Err(nodes)
                    }
                }
            })
            .await;
        }
        for n in 0..3 {
            let id: String = ask(&mut raws[n], &["CLUSTER", "MYID"]).await?;
            wait_until("a replica to follow", Duration::from_secs(40), || {
                let (mut raw, id) = (raws[n + 3].clone(), id.clone());
                async move { ask::<String>(&mut raw, &["CLUSTER", "REPLICATE", &id]).await.map(drop) }
            })
            .await;
        }
        self.wait_whole().await;
        Ok(())
    }

    /// Until every node sees all slots served by a master with a replica, and every replica is in sync.
    async fn wait_whole(&self) {
        for node in &self.nodes {
            let raw = raw_of(node.port).await;
            wait_until("the cluster to be whole", Duration::from_secs(60), || {
                let mut raw = raw.clone();
                async move {
                    let state: String = ask(&mut raw, &["CLUSTER", "INFO"]).await?;
                    let role: String = ask(&mut raw, &["INFO", "replication"]).await?;
                    let in_step = role.contains("role:master") || role.contains("master_link_status:up");
                    if !state.contains("cluster_state:ok") || !in_step {
                        return Err(state + &role);
                    }
                    for (slot, _) in THIRDS {
                        let (master, replica) = owner_of(&mut raw, slot).await?;
                        replica.ok_or_else(|| format!("no replica of {master} is known"))?;
                    }
                    Ok(())
                }
            })
            .await;
        }
    }

    /// What a courier connects to.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|n| format!("127.0.0.1:{}", n.port)).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// The same over TLS.
    pub fn tls_url(&self) -> String {
        let hosts: Vec<String> = self.tls_ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("rediss+cluster://{}", hosts.join(","))
    }

    /// The node with that port.
    pub fn node(&self, port: u16) -> &Process {
        self.nodes.iter().find(|node| node.port == port).expect("a node of ours")
    }

    /// One command to one node.
    pub async fn ask<T: redis::FromRedisValue>(&self, port: u16, words: &[&str]) -> Result<T, String> {
        ask(&mut raw_of(port).await, words).await
    }

    /// The id of a node.
    pub async fn id(&self, port: u16) -> String {
        self.ask(port, &["CLUSTER", "MYID"]).await.expect("an id")
    }

    /// Who has a slot, as the node on `asked` sees it, and the first replica there.
    pub async fn owner(&self, asked: u16, slot: u16) -> (u16, Option<u16>) {
        owner_of(&mut raw_of(asked).await, slot).await.expect("somebody has the slot")
    }

    /// Has a replica take its master's place, with everything alive. It gives up by itself after 5 s: then it is told
    /// again.
    pub async fn failover(&self, replica: u16) {
        for _ in 0..8 {
            let _ = self.ask::<String>(replica, &["CLUSTER", "FAILOVER"]).await;
            let end = std::time::Instant::now() + Duration::from_secs(6);
            while std::time::Instant::now() < end {
                let role: String = self.ask(replica, &["INFO", "replication"]).await.unwrap_or_default();
                if role.contains("role:master") {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        panic!("{replica} does not become a master");
    }

    /// Moves a slot with all its keys, as `redis-cli --cluster reshard` does.
    pub async fn migrate(&self, slot: u16, from: u16, to: u16) {
        let (source, target, slot) = (self.id(from).await, self.id(to).await, slot.to_string());
        let (mut there, mut here) = (raw_of(to).await, raw_of(from).await);
        ask::<String>(&mut there, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source])
            .await
            .expect("importing");
        ask::<String>(&mut here, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target])
            .await
            .expect("migrating");
        loop {
            let keys: Vec<String> =
                ask(&mut here, &["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).await.expect("keys");
            if keys.is_empty() {
                break;
            }
            let mut migrate = redis::cmd("MIGRATE");
            migrate.arg("127.0.0.1").arg(to).arg("").arg(0).arg(5000).arg("KEYS").arg(&keys);
            migrate.exec_async(&mut here).await.expect("migrated");
        }
        for raw in [&mut there, &mut here] {
            ask::<String>(raw, &["CLUSTER", "SETSLOT", &slot, "NODE", &target]).await.expect("moved");
        }
    }
}

/// A master's port and its first replica's.
async fn owner_of(raw: &mut MultiplexedConnection, slot: u16) -> Result<(u16, Option<u16>), String> {
    type Node = (String, u16);
    let ranges: Vec<Vec<redis::Value>> = ask(raw, &["CLUSTER", "SLOTS"]).await?;
    for range in ranges {
        let number = |at: usize| redis::from_redis_value_ref::<u16>(&range[at]).expect("a slot");
        if (number(0)..=number(1)).contains(&slot) {
            let port = |value: &redis::Value| {
                let redis::Value::Array(parts) = value else { panic!("{value:?}") };
                redis::from_redis_value_ref::<Node>(&redis::Value::Array(parts[..2].to_vec()))
                    .expect("a node")
                    .1
            };
            return Ok((port(&range[2]), range.get(3).map(port)));
        }
    }
    Err(format!("nobody has slot {slot}"))
}

/// The slot of the tag `{0}`, where a fixture's only partition is.
pub const SLOT_OF_0: u16 = 13_907;

/// `redis://` of the master that has a fixture's partition now.
pub async fn direct(url: &str) -> String {
    let first = url.trim_start_matches("redis+cluster://").split(',').next().expect("a node");
    let mut raw = Box::pin(server::raw(&format!("redis://{first}"))).await;
    let (port, _) = owner_of(&mut raw, SLOT_OF_0).await.expect("the slot is served");
    format!("redis://127.0.0.1:{port}")
}

/// `redis://` of every master.
pub async fn masters(url: &str) -> Vec<String> {
    let first = url.trim_start_matches("redis+cluster://").split(',').next().expect("a node");
    let mut raw = server::raw(&format!("redis://{first}")).await;
    let mut ports = Vec::new();
    for (slot, _) in THIRDS {
        ports.push(owner_of(&mut raw, slot).await.expect("the slot is served").0);
    }
    ports.into_iter().map(|port| format!("redis://127.0.0.1:{port}")).collect()
}

/// A Cluster of one test's own, or a line that says why the test does nothing.
pub async fn cluster_or_skip(test: &str, node_timeout: Duration) -> Option<Cluster> {
    use super::backend::{Kind, backend};
    let kind = backend().await.unwrap_or_else(|why| panic!("{why}")).kind();
    let program = match kind {
        Kind::Url | Kind::Memory => Err("the tests run on another kind of server".to_owned()),
        _ => binary::find(),
    };
    match program {
        Ok(program) => {
            let cluster = Cluster::start(&program, node_timeout, &[]).await;
            Some(cluster.unwrap_or_else(|why| panic!("cluster: {why}")))
        }
        Err(why) => {
            eprintln!("{test}: skipped: {why}");
            None
        }
    }
}

/// Session, partition and slot, by the words of docs/protocol.md and by no code of the library.
pub fn slot_of_session(session: &str, partitions: u16) -> u16 {
    let partition = usize::from(crc16(session) % partitions);
    let slots = (0_u16..).map(|tag| crc16(&tag.to_string()) % 16384);
    slots
        .into_iter()
        .find(|&slot| usize::from(slot) * usize::from(partitions) / 16384 == partition)
        .expect("a tag")
}

fn crc16(text: &str) -> u16 {
    text.bytes().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            let next = crc << 1;
            if crc & 0x8000 == 0 { next } else { next ^ 0x1021 }
        })
    })
}
