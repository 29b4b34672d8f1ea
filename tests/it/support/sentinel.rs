//! A master, a replica and three sentinels, as processes of this machine.

use std::path::Path;
use std::time::Duration;

use super::binary::{self, Process};
use super::ready::free_port;
use super::server;
use super::wait::wait_until;

/// The master's name among the sentinels.
pub const NAME: &str = "trio";

/// Lives as long as this value.
#[derive(Debug)]
pub struct Trio {
    pub servers: Vec<Process>,
    pub sentinels: Vec<Process>,
    /// Where the sentinels speak TLS; empty without it. Their other port, and the servers', is there as well.
    pub tls_ports: Vec<u16>,
}

/// How a trio is set up.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    /// A master that is silent for so long is taken for dead.
    pub down_after: Duration,
    /// Options of the servers.
    pub servers: &'a [&'a str],
    /// Lines in the sentinels' files; the master's name is `trio`.
    pub sentinels: &'a [&'a str],
    /// A password of the servers, and of the sentinels.
    pub passwords: Option<(&'a str, &'a str)>,
    /// Options that name certificates (`--tls-cert-file`, its file, …): everybody speaks TLS with everybody.
    pub tls: &'a [String],
}

impl Default for Setup<'_> {
    fn default() -> Self {
        // Longer than any test on a busy machine: nothing fails over unless it is asked to.
        Self { down_after: Duration::from_secs(60), servers: &[], sentinels: &[], passwords: None, tls: &[] }
    }
}

/// Options of a server that others reach over TLS on that port.
pub fn tls_options(certificates: &[String], port: u16) -> Vec<String> {
    let mut options = vec!["--tls-port".to_owned(), port.to_string()];
    options.extend(["--tls-replication", "yes"].map(str::to_owned));
    options.extend_from_slice(certificates);
    options
}

/// The command line of a sentinel, and its file in `folder`: it writes there what it learns.
fn sentinel_command(
    program: &Path,
    folder: &Path,
    (port, tls_port): (u16, Option<u16>),
    master: u16,
    setup: &Setup<'_>,
) -> Vec<String> {
    let mut text = format!(
        "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {NAME} 127.0.0.1 {master} 2\n\
         sentinel down-after-milliseconds {NAME} {}\nsentinel failover-timeout {NAME} 3000\n",
        folder.display(),
        setup.down_after.as_millis(),
    );
    if let Some((servers, sentinels)) = setup.passwords {
        text += &format!("sentinel auth-pass {NAME} {servers}\nrequirepass {sentinels}\n");
    }
    if let Some(tls_port) = tls_port {
        for option in tls_options(setup.tls, tls_port).chunks(2) {
            text += &format!("{} {}\n", option[0].trim_start_matches('-'), option[1]);
        }
    }
    for line in setup.sentinels {
        text += line;
        text.push('\n');
    }
    let file = folder.join("sentinel.conf");
    std::fs::write(&file, text).expect("the sentinel's file");
    vec![program.display().to_string(), file.display().to_string(), "--sentinel".to_owned()]
}

impl Trio {
    /// Up, in sync, and all sentinels know each other.
    pub async fn start(program: &Path, setup: Setup<'_>) -> Result<Self, String> {
        let mut options: Vec<String> =
            ["--repl-diskless-sync-delay", "0"].iter().chain(setup.servers).map(|&w| w.into()).collect();
        if let Some((password, _)) = setup.passwords {
            options.extend(["--requirepass", password, "--masterauth", password].map(str::to_owned));
        }
        let tls = || if setup.tls.is_empty() { None } else { Some(free_port()) };
        let with_tls = |port: Option<u16>| port.map_or_else(Vec::new, |port| tls_options(setup.tls, port));
        let tls_port = tls();
        let master = Process::start(program, &[options.clone(), with_tls(tls_port)].concat()).await?;
        let port = tls_port.unwrap_or(master.port);
        let of: Vec<String> = ["--replicaof".to_owned(), "127.0.0.1".to_owned(), port.to_string()].into();
        let replica = Process::start(program, &[options, with_tls(tls()), of].concat()).await?;
        let (mut sentinels, mut tls_ports) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let tls_port = tls();
            let command =
                |folder: &Path, at: u16| sentinel_command(program, folder, (at, tls_port), port, &setup);
            sentinels.push(Process::start_as(program, command).await?);
            tls_ports.extend(tls_port);
        }
        let trio = Self { servers: vec![master, replica], sentinels, tls_ports };
        let (password, sentinel_password) = setup.passwords.unwrap_or_default();
        trio.wait_in_sync(password, sentinel_password).await;
        Ok(trio)
    }

    async fn wait_in_sync(&self, password: &str, sentinel_password: &str) {
        for sentinel in &self.sentinels {
            let mut raw = server::raw(&with_password(sentinel.port, sentinel_password)).await;
            let mut ask = redis::cmd("SENTINEL");
            ask.arg("master").arg(NAME);
            wait_until("the sentinels to know each other", Duration::from_secs(30), || {
                let (mut raw, ask) = (raw.clone(), ask.clone());
                async move {
                    let known: std::collections::HashMap<String, String> =
                        ask.query_async(&mut raw).await.map_err(|e| e.to_string())?;
                    match (known["num-slaves"].as_str(), known["num-other-sentinels"].as_str()) {
                        ("1", "2") => Ok(()),
                        _ => Err(format!("{known:?}")),
                    }
                }
            })
            .await;
            let _: String = redis::cmd("PING").query_async(&mut raw).await.expect("PONG");
        }
        let mut replica = server::raw(&with_password(self.servers[1].port, password)).await;
        wait_until("the replica to be in sync", Duration::from_secs(30), || {
            let mut replica = replica.clone();
            async move {
                let info: String =
                    redis::cmd("INFO").arg("replication").query_async(&mut replica).await.expect("INFO");
                if info.contains("master_link_status:up") { Ok(()) } else { Err(info) }
            }
        })
        .await;
        let _: String = redis::cmd("PING").query_async(&mut replica).await.expect("PONG");
    }

    /// What a courier connects to. Without the passwords.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.sentinels.iter().map(|s| format!("127.0.0.1:{}", s.port)).collect();
        format!("redis+sentinel://{}/{NAME}", hosts.join(","))
    }

    /// The same over TLS.
    pub fn tls_url(&self) -> String {
        let hosts: Vec<String> = self.tls_ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("rediss+sentinel://{}/{NAME}", hosts.join(","))
    }

    /// The port that the sentinels name now.
    pub async fn master_port(&self) -> u16 {
        master_of(self.sentinels[0].port).await
    }

    /// The server that the sentinels name now, and the other one.
    pub async fn master(&self) -> (&Process, &Process) {
        let port = self.master_port().await;
        match &self.servers[..] {
            [a, b] if b.port == port => (b, a),
            [a, b] => (a, b),
            _ => unreachable!("two servers"),
        }
    }

    /// Until all sentinels name another master than the one on `port`.
    pub async fn wait_failover_from(&self, port: u16) {
        for sentinel in &self.sentinels {
            wait_until("the sentinels to name another master", Duration::from_secs(40), || async {
                let now = master_of(sentinel.port).await;
                if now == port { Err(format!("still {now}")) } else { Ok(()) }
            })
            .await;
        }
    }

    /// Has the sentinels make the replica master, with everything alive.
    pub async fn failover(&self) {
        let from = self.master_port().await;
        let mut sentinel = server::raw(&format!("redis://127.0.0.1:{}", self.sentinels[0].port)).await;
        wait_until("a failover to begin", Duration::from_secs(20), || {
            let mut sentinel = sentinel.clone();
            async move {
                let mut order = redis::cmd("SENTINEL");
                order.arg("failover").arg(NAME);
                order.exec_async(&mut sentinel).await.map_err(|e| e.to_string())
            }
        })
        .await;
        self.wait_failover_from(from).await;
        let _: String = redis::cmd("PING").query_async(&mut sentinel).await.expect("PONG");
    }
}

fn with_password(port: u16, password: &str) -> String {
    if password.is_empty() {
        format!("redis://127.0.0.1:{port}")
    } else {
        format!("redis://:{password}@127.0.0.1:{port}")
    }
}

/// Whom a sentinel without a password names.
pub async fn master_of(sentinel: u16) -> u16 {
    let mut raw = server::raw(&format!("redis://127.0.0.1:{sentinel}")).await;
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("get-master-addr-by-name").arg(NAME);
    let (_, port): (String, u16) = ask.query_async(&mut raw).await.expect("a master");
    port
}

/// A trio of one test's own, or a line that says why the test does nothing.
pub async fn trio_or_skip(test: &str, setup: Setup<'_>) -> Option<Trio> {
    use super::backend::{Kind, backend};
    let kind = backend().await.unwrap_or_else(|why| panic!("{why}")).kind();
    let program = match kind {
        Kind::Url | Kind::Memory => Err("the tests run on another kind of server".to_owned()),
        _ => binary::find(),
    };
    match program {
        Ok(program) => Some(Trio::start(&program, setup).await.unwrap_or_else(|why| panic!("trio: {why}"))),
        Err(why) => {
            eprintln!("{test}: skipped: {why}");
            None
        }
    }
}
