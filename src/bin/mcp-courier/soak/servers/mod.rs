//! The servers of a run, each behind a proxy, and what can be asked of them and done to them.

mod cluster;
mod process;
pub mod raw;
mod sentinel;
mod slots;

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use self::process::Process;
pub use self::process::{Act, free_port};
use super::args::{Soak, Topology};
use super::proxy::Proxy;
use crate::output::Failure;

/// A master that is silent for so long is taken for dead.
const DOWN_AFTER: Duration = Duration::from_secs(2);
/// What a server is given to come back, join, follow or be promoted.
const PATIENCE: Duration = Duration::from_secs(60);

/// One server and its proxy. Clients, sentinels and other servers know the proxy's port.
pub struct Server {
    process: Process,
    pub proxy: Proxy,
}

impl Server {
    async fn start(args: &Soak, more: &(dyn Fn(u16, u16) -> String + Sync)) -> Result<Self, Failure> {
        let (target, targets) = watch::channel(0);
        let proxy = Proxy::start(targets).await?;
        let announced = proxy.port;
        let configuration = |folder: &Path, port: u16| {
            let mut text = format!(
                "bind 127.0.0.1\nport {port}\ndir {}\nsave \"\"\nappendonly yes\nappendfsync {}\n\
                 repl-diskless-sync-delay 0\nrepl-backlog-size 32mb\n",
                folder.display(),
                args.appendfsync
            );
            if args.topology != Topology::Single {
                text += "replica-announce-ip 127.0.0.1\n";
                let _ = writeln!(text, "replica-announce-port {announced}");
                if !args.no_min_replicas {
                    text += "min-replicas-to-write 1\nmin-replicas-max-lag 2\n";
                }
            }
            text + &more(port, announced)
        };
        let process = Process::start(&args.server_program, &[], configuration).await?;
        target.send_replace(process.port);
        Ok(Self { process, proxy })
    }

    /// Where it listens itself.
    pub fn port(&self) -> u16 {
        self.process.port
    }

    pub fn folder(&self) -> &Path {
        &self.process.folder
    }

    pub async fn act(&self, act: Act) -> Result<(), Failure> {
        self.process.act(act).await
    }

    /// Up again on the same port with the same data.
    pub async fn up(&self) -> Result<(), Failure> {
        self.process.up().await
    }

    /// One command, past the proxy.
    pub async fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> Result<T, Failure> {
        raw::ask_at(self.port(), words).await
    }

    async fn role(&self) -> Result<String, Failure> {
        self.ask(&["INFO", "replication"]).await
    }

    async fn is_master(&self) -> bool {
        self.role().await.is_ok_and(|role| role.contains("role:master"))
    }
}

/// See the module.
pub struct Servers {
    pub topology: Topology,
    pub all: Vec<Server>,
    sentinels: Vec<Process>,
    pub version: String,
}

impl Servers {
    pub async fn start(args: &Soak) -> Result<Self, Failure> {
        let mut servers =
            Self { topology: args.topology, all: Vec::new(), sentinels: Vec::new(), version: String::new() };
        let started = servers.start_all(args).await;
        if let Err(e) = started {
            servers.end().await;
            return Err(e);
        }
        Ok(servers)
    }

    async fn start_all(&mut self, args: &Soak) -> Result<(), Failure> {
        match self.topology {
            Topology::Single => self.all.push(Server::start(args, &|_, _| String::new()).await?),
            Topology::Sentinel => self.start_sentinel(args).await?,
            Topology::Cluster => self.start_cluster(args).await?,
        }
        let info: String = self.all[0].ask(&["INFO", "server"]).await?;
        self.version = raw::field(&info, "redis_version").unwrap_or("?").to_owned();
        self.wait_whole().await
    }

    /// What a courier connects to.
    pub fn url(&self) -> String {
        let hosts = |ports: Vec<u16>| {
            ports.iter().map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>().join(",")
        };
        let proxies = || self.all.iter().map(|server| server.proxy.port).collect();
        match self.topology {
            Topology::Single => format!("redis://{}", hosts(proxies())),
            Topology::Sentinel => {
                let sentinels = self.sentinels.iter().map(|sentinel| sentinel.port).collect();
                format!("redis+sentinel://{}/{}", hosts(sentinels), sentinel::NAME)
            }
            Topology::Cluster => format!("redis+cluster://{}", hosts(proxies())),
        }
    }

    /// The server behind a proxy's port.
    fn behind(&self, port: u16) -> Option<usize> {
        self.all.iter().position(|server| server.proxy.port == port)
    }

    /// Which server has a session now, as most of those say who know.
    pub async fn master_of(&self, session: u32) -> Result<usize, Failure> {
        match self.topology {
            Topology::Single => Ok(0),
            Topology::Sentinel => self.named_master().await,
            Topology::Cluster => self.owner_of(slots::of_session(session)).await,
        }
    }

    /// Sessions below a number that the same server has: all but in a Cluster.
    pub async fn sessions_of(&self, server: usize, sessions: u32) -> Result<Vec<u32>, Failure> {
        if self.topology != Topology::Cluster {
            return Ok((0..sessions).collect());
        }
        let nodes = self.cluster_nodes().await?;
        let port = self.all[server].proxy.port;
        let slots = nodes.into_iter().find(|n| n.port == port).map(|n| n.slots).unwrap_or_default();
        Ok((0..sessions)
            .filter(|&s| slots.iter().any(|&(a, b)| (a..=b).contains(&slots::of_session(s))))
            .collect())
    }

    /// The slot of a session in a Cluster.
    pub fn slot_of(&self, session: u32) -> u16 {
        slots::of_session(session)
    }

    /// All masters.
    pub async fn masters(&self) -> Result<Vec<usize>, Failure> {
        match self.topology {
            Topology::Single => Ok(vec![0]),
            Topology::Sentinel => Ok(vec![self.named_master().await?]),
            Topology::Cluster => {
                let nodes = self.cluster_nodes().await?;
                let masters = nodes.iter().filter(|n| n.is_master() && !n.slots.is_empty());
                Ok(masters.filter_map(|n| self.behind(n.port)).collect())
            }
        }
    }

    /// Until another server than this one has the session, and takes writes.
    pub async fn wait_promoted(&self, session: u32, old: usize) -> Result<usize, Failure> {
        until("a replica to be promoted", PATIENCE, async || {
            let now = self.master_of(session).await?;
            if now == old || !self.all[now].is_master().await {
                return Err(Failure::failed(format!("server {now} is named")));
            }
            Ok(now)
        })
        .await
    }

    /// Until the server takes a write for a session.
    pub async fn wait_writable(&self, server: usize, session: u32) -> Result<(), Failure> {
        let key = format!("soak-probe:{{{}}}", slots::tag_of_session(session));
        until("a server to take writes", PATIENCE, async || {
            self.all[server].ask::<()>(&["SET", &key, "1", "PX", "1"]).await
        })
        .await
    }

    /// Until every server is up and in its place, replicas are in sync, and those who watch agree.
    pub async fn wait_whole(&self) -> Result<(), Failure> {
        until("the servers to be whole", PATIENCE * 2, async || match self.topology {
            Topology::Single => self.all[0].ask::<redis::Value>(&["PING"]).await.map(drop),
            Topology::Sentinel => self.sentinel_whole().await,
            Topology::Cluster => self.cluster_whole().await,
        })
        .await
    }

    /// Does something to every proxy.
    pub fn each_proxy(&self, act: impl Fn(&Proxy)) {
        self.all.iter().for_each(|server| act(&server.proxy));
    }

    /// The end of the log of each server that does not answer.
    pub async fn last_words(&self) -> String {
        let mut words = String::new();
        for (n, server) in self.all.iter().enumerate() {
            if server.ask::<redis::Value>(&["PING"]).await.is_err() {
                let log = std::fs::read_to_string(server.folder().join("log")).unwrap_or_default();
                let lines: Vec<&str> = log.lines().rev().take(6).collect();
                let lines: Vec<&str> = lines.into_iter().rev().collect();
                let _ = write!(words, "; the log of server {n} ends with: {}", lines.join(" | "));
            }
        }
        words
    }

    /// What is left of them when they have ended.
    pub fn still_there(&self) -> Vec<String> {
        let processes = self.all.iter().map(|s| &s.process).chain(&self.sentinels);
        let left = processes
            .filter(|p| p.folder.exists() || std::net::TcpStream::connect(("127.0.0.1", p.port)).is_ok());
        left.map(|p| format!("a server on port {} is still there", p.port)).collect()
    }

    /// Ends everything; returns when it is gone.
    pub async fn end(&self) {
        for process in self.all.iter().map(|s| &s.process).chain(&self.sentinels) {
            process.end().await;
        }
    }
}

/// Asks again and again until it is so.
pub async fn until<T>(
    what: &str,
    patience: Duration,
    look: impl AsyncFn() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let end = Instant::now() + patience;
    loop {
        match look().await {
            Ok(found) => return Ok(found),
            Err(why) if Instant::now() > end => {
                return Err(Failure::failed(format!("waited {patience:?} for {what}: {why}")));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}
