//! A master, two replicas and three sentinels.
//!
//! Two replicas, so that a promoted one still has one of its own and takes writes under `min-replicas-to-write 1`.

use std::collections::HashMap;
use std::path::Path;

use super::process::Process;
use super::{DOWN_AFTER, Server, Servers, raw};
use crate::output::Failure;
use crate::soak::args::Soak;

/// The master's name among the sentinels.
pub const NAME: &str = "soak";

impl Servers {
    pub(super) async fn start_sentinel(&mut self, args: &Soak) -> Result<(), Failure> {
        for _ in 0..3 {
            self.all.push(Server::start(args, &|_, _| String::new()).await?);
        }
        let master = self.all[0].proxy.port.to_string();
        for replica in &self.all[1..] {
            replica.ask::<()>(&["REPLICAOF", "127.0.0.1", &master]).await?;
            replica.ask::<()>(&["CONFIG", "REWRITE"]).await?;
        }
        for _ in 0..3 {
            let configuration = |folder: &Path, port: u16| {
                format!(
                    "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {NAME} 127.0.0.1 {master} 2\n\
                     sentinel down-after-milliseconds {NAME} {}\nsentinel failover-timeout {NAME} 4000\n\
                     sentinel parallel-syncs {NAME} 2\n",
                    folder.display(),
                    DOWN_AFTER.as_millis(),
                )
            };
            let sentinel = Process::start(&args.server_program, &["--sentinel"], configuration).await?;
            self.sentinels.push(sentinel);
        }
        Ok(())
    }

    /// Whom most of the sentinels name.
    pub(super) async fn named_master(&self) -> Result<usize, Failure> {
        let mut named: HashMap<u16, usize> = HashMap::new();
        for sentinel in &self.sentinels {
            let asked = raw::ask_at(sentinel.port, &["SENTINEL", "get-master-addr-by-name", NAME]).await;
            if let Ok((_, port)) = asked.map(|place: (String, u16)| place) {
                *named.entry(port).or_default() += 1;
            }
        }
        named
            .into_iter()
            .find(|&(_, count)| count > self.sentinels.len() / 2)
            .and_then(|(port, _)| self.behind(port))
            .ok_or_else(|| Failure::failed("the sentinels do not agree on a master"))
    }

    /// Has the sentinels make a replica the master, with everything alive.
    pub async fn order_sentinel_failover(&self) -> Result<(), Failure> {
        raw::ask_at::<()>(self.sentinels[0].port, &["SENTINEL", "FAILOVER", NAME]).await
    }

    pub(super) async fn sentinel_whole(&self) -> Result<(), Failure> {
        let master = self.named_master().await?;
        let port = format!("master_port:{}", self.all[master].proxy.port);
        for (n, server) in self.all.iter().enumerate() {
            let role = server.role().await?;
            let right = if n == master {
                role.contains("role:master") && role.contains("connected_slaves:2")
            } else {
                role.contains("master_link_status:up") && role.contains(&port)
            };
            if !right {
                return Err(Failure::failed(format!("server {n}: {role}")));
            }
        }
        for sentinel in &self.sentinels {
            let known: HashMap<String, String> =
                raw::ask_at(sentinel.port, &["SENTINEL", "master", NAME]).await?;
            let is = |name: &str, value: &str| known.get(name).is_some_and(|v| v == value);
            if !(is("num-slaves", "2") && is("num-other-sentinels", "2") && is("flags", "master")) {
                return Err(Failure::failed(format!("a sentinel says {known:?}")));
            }
        }
        Ok(())
    }
}
