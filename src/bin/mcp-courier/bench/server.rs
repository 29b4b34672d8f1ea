//! The server under test: the one of `--url`, or a private one that ends with this process.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mcp_courier::{Builder, Courier};
use redis::aio::MultiplexedConnection;

use super::process;
use crate::args::Server;
use crate::output::Failure;

/// Waits for the end of stdin, so that the server goes with us, however we go; then removes its folder. Ctrl-C reaches
/// everybody in the terminal, and must not end the one who tidies up.
const KEEPER: &str = r#"trap '' INT
dir=$1; shift
"$@" >"$dir/log" 2>&1 & server=$!
echo "$server"
read -r _
kill "$server" 2>/dev/null
wait "$server" 2>/dev/null
rm -rf "$dir""#;

/// What plain connections call themselves in `CLIENT LIST`.
const RAW: &str = "bench-raw";

/// What the scenarios run against.
pub struct Target {
    url: String,
    /// Begins every key and channel of this run.
    pub root: String,
    pub version: String,
    raw: Option<redis::Client>,
    private: Option<Private>,
}

struct Private {
    keeper: Child,
    port: u16,
}

/// A line of `CLIENT LIST`.
#[derive(Clone, Debug)]
pub struct Connected {
    pub id: u64,
    /// The client's, where it came by TCP.
    pub port: Option<u16>,
    /// Listens to a channel.
    pub subscribed: bool,
    /// One of [`Target::raw`].
    pub raw: bool,
}

impl Target {
    pub async fn open(server: &Server, program: &Path) -> Result<Self, Failure> {
        let unique = uuid::Uuid::new_v4().simple().to_string();
        let root = format!("{}:bench:{}", server.prefix, &unique[..12]);
        let mut private = None;
        let url = match server.given() {
            Some("memory://") => format!("memory://bench-{unique}"),
            Some(url) => url.to_owned(),
            None => {
                let started = Private::start(program).await?;
                let url = format!("redis://127.0.0.1:{}", started.port);
                private = Some(started);
                url
            }
        };
        let mut target = Self { url, root, version: "memory".to_owned(), raw: None, private };
        // Says by name what is wrong with the URL, the server, or the rights.
        drop(target.builder("probe", Duration::ZERO).connect(target.url()).await?);
        if !target.url.starts_with("memory:") {
            target.raw = Some(client(&target.url)?);
            let info = target.info("server").await?;
            target.version = field(&info, "redis_version").unwrap_or("?").to_owned();
        }
        Ok(target)
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether raw commands can be run: not on the engine in memory, which knows only what our scripts use.
    pub fn has_raw(&self) -> bool {
        self.raw.is_some()
    }

    /// The server's address, when it is ours alone.
    pub fn private_port(&self) -> Option<u16> {
        self.private.as_ref().map(|p| p.port)
    }

    /// A courier's settings: nothing of the run is refused for its number.
    pub fn builder(&self, stage: &str, dedupe: Duration) -> Builder {
        Courier::builder()
            .prefix(format!("{}:{stage}", self.root))
            .dedupe(dedupe)
            .max_pending(10_000_000)
            .deadline(Duration::from_secs(60))
    }

    /// A plain connection, as the couriers open theirs: without delays, and with no limit on how long a pop may block.
    pub async fn raw(&self) -> Result<MultiplexedConnection, Failure> {
        let client = self.raw.as_ref().ok_or_else(|| Failure::failed("memory:// runs no raw commands"))?;
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let mut raw = connecting.await.map_err(raw_failure)?;
        let mut name = redis::cmd("CLIENT");
        name.arg("SETNAME").arg(RAW).exec_async(&mut raw).await.map_err(raw_failure)?;
        Ok(raw)
    }

    async fn info(&self, section: &str) -> Result<String, Failure> {
        let mut raw = self.raw().await?;
        redis::cmd("INFO").arg(section).query_async(&mut raw).await.map_err(raw_failure)
    }

    /// CPU time of the server so far.
    pub async fn cpu(&self) -> Option<Duration> {
        self.has_raw().then_some(())?;
        let info = self.info("cpu").await.ok()?;
        let seconds = |name| field(&info, name).and_then(|v| v.parse::<f64>().ok());
        Some(Duration::from_secs_f64(seconds("used_cpu_user")? + seconds("used_cpu_sys")?))
    }

    /// `INFO commandstats`.
    pub async fn command_stats(&self) -> Option<String> {
        self.has_raw().then_some(())?;
        self.info("commandstats").await.ok()
    }

    /// `used_memory`.
    pub async fn memory(&self) -> Option<u64> {
        self.has_raw().then_some(())?;
        field(&self.info("memory").await.ok()?, "used_memory")?.parse().ok()
    }

    /// Keys under a prefix of ours.
    pub async fn keys(&self, prefix: &str) -> Result<u64, Failure> {
        let (mut raw, mut cursor, mut count) = (self.raw().await?, 0, 0);
        loop {
            let (next, keys) = page(&mut raw, prefix, cursor).await?;
            count += keys.len() as u64;
            cursor = next;
            if cursor == 0 {
                return Ok(count);
            }
        }
    }

    /// Channels under a prefix of ours.
    pub async fn channels(&self, prefix: &str) -> Result<u64, Failure> {
        let mut raw = self.raw().await?;
        let mut command = redis::cmd("PUBSUB");
        command.arg("CHANNELS").arg(format!("{prefix}*"));
        let names: Vec<String> = command.query_async(&mut raw).await.map_err(raw_failure)?;
        Ok(names.len() as u64)
    }

    pub async fn connected(&self) -> Result<Vec<Connected>, Failure> {
        let mut raw = self.raw().await?;
        let list: String =
            redis::cmd("CLIENT").arg("LIST").query_async(&mut raw).await.map_err(raw_failure)?;
        let value = |line: &str, name: &str| -> Option<String> {
            line.split(' ').find_map(|w| w.strip_prefix(name)).map(str::to_owned)
        };
        let line = |l: &str| {
            Some(Connected {
                id: value(l, "id=")?.parse().ok()?,
                port: value(l, "addr=").and_then(|a| a.rsplit(':').next()?.parse().ok()),
                subscribed: value(l, "sub=").is_some_and(|n| n != "0"),
                raw: value(l, "name=").is_some_and(|n| n == RAW),
            })
        };
        Ok(list.lines().filter_map(line).collect())
    }

    /// Until this process has no courier on the server any more: one that was dropped may have a heartbeat under way.
    async fn deserted(&self) -> Result<(), Failure> {
        for _ in 0..200 {
            let mine = process::ports(None);
            let ours = |c: &Connected| !c.raw && c.port.is_some_and(|port| mine.contains(&port));
            if !self.connected().await?.iter().any(ours) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Removes what the run wrote, once nobody of it writes any more. A private server takes all along when it ends.
    pub async fn leave(&self) -> Result<(), Failure> {
        if !self.has_raw() || self.private.is_some() {
            return Ok(());
        }
        self.deserted().await?;
        self.clean(&self.root).await
    }

    /// Removes every key under a prefix of ours.
    pub async fn clean(&self, prefix: &str) -> Result<(), Failure> {
        if !self.has_raw() {
            return Ok(());
        }
        let (mut raw, mut cursor) = (self.raw().await?, 0);
        loop {
            let (next, keys) = page(&mut raw, prefix, cursor).await?;
            if !keys.is_empty() {
                redis::cmd("UNLINK").arg(keys).exec_async(&mut raw).await.map_err(raw_failure)?;
            }
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }
}

/// Some of the keys under a prefix, and where to go on.
async fn page(
    raw: &mut MultiplexedConnection,
    prefix: &str,
    cursor: u64,
) -> Result<(u64, Vec<Vec<u8>>), Failure> {
    let mut scan = redis::cmd("SCAN");
    scan.arg(cursor).arg("MATCH").arg(format!("{prefix}:*")).arg("COUNT").arg(1000);
    scan.query_async(raw).await.map_err(raw_failure)
}

impl Private {
    async fn start(program: &Path) -> Result<Self, Failure> {
        let mut why = String::new();
        // Another process may take the port between the look at it and its use.
        for _ in 0..5 {
            let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let unique = uuid::Uuid::new_v4().simple().to_string();
            let folder = std::env::temp_dir().join(format!("mcp-courier-bench-{unique}"));
            std::fs::create_dir(&folder)?;
            let mut keeper = Command::new("sh")
                .args(["-c", KEEPER, "sh"])
                .arg(&folder)
                .arg(program)
                .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir"])
                .arg(&folder)
                .args(["--save", "", "--appendonly", "no"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()?;
            let mut pid = String::new();
            BufReader::new(keeper.stdout.take().ok_or(std::io::Error::from(std::io::ErrorKind::BrokenPipe))?)
                .read_line(&mut pid)?;
            let started = Self { keeper, port };
            match started.ready(pid.trim()).await {
                Ok(()) => return Ok(started),
                Err(e) => why = e,
            }
            let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
            why = format!("{why}: {}", log.lines().last().unwrap_or_default());
        }
        Err(Failure::no_server(format!(
            "{} does not start: {why}; give --url, or --server-program",
            program.display()
        )))
    }

    /// Until the process with this id serves on the port.
    async fn ready(&self, pid: &str) -> Result<(), String> {
        let client = client(&format!("redis://127.0.0.1:{}", self.port)).map_err(|e| e.to_string())?;
        let mut why = String::new();
        for _ in 0..400 {
            let asked = async {
                let mut raw = client.get_multiplexed_async_connection().await?;
                redis::cmd("INFO").arg("server").query_async::<String>(&mut raw).await
            };
            match asked.await {
                Ok(info) if field(&info, "process_id") == Some(pid) => return Ok(()),
                Ok(_) => return Err("the port is another server's".to_owned()),
                Err(e) => why = e.to_string(),
            }
            if !Path::new(&format!("/proc/{pid}")).exists() && Path::new("/proc/self").exists() {
                return Err("it ended".to_owned());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(why)
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

fn client(url: &str) -> Result<redis::Client, Failure> {
    let info = redis::IntoConnectionInfo::into_connection_info(url).map_err(raw_failure)?;
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    redis::Client::open(info.set_tcp_settings(tcp)).map_err(raw_failure)
}

/// One value of `INFO`.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

pub fn raw_failure(e: redis::RedisError) -> Failure {
    Failure::failed(format!("raw command: {e}"))
}
