//! The server under test: the one of `--url`, or a private one that ends with this process.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mcp_courier::{Builder, Courier};
use redis::aio::MultiplexedConnection;

use crate::args::Server;
use crate::output::Failure;

/// Waits for a line on stdin or its end, so that the server goes with us, however we go; then removes its folder.
const KEEPER: &str = r#"dir=$1; shift
"$@" >"$dir/log" 2>&1 & server=$!
echo "$server"
read -r _
kill "$server" 2>/dev/null
wait "$server" 2>/dev/null
rm -rf "$dir""#;

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
    pub port: Option<u16>,
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
        client.get_multiplexed_async_connection_with_config(&config).await.map_err(raw_failure)
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

    /// `used_memory`.
    pub async fn memory(&self) -> Option<u64> {
        self.has_raw().then_some(())?;
        field(&self.info("memory").await.ok()?, "used_memory")?.parse().ok()
    }

    /// Keys under a prefix of ours.
    pub async fn keys(&self, prefix: &str) -> Result<u64, Failure> {
        let mut count = 0;
        self.scan(prefix, async |_, keys| {
            count += keys.len() as u64;
            Ok(())
        })
        .await?;
        Ok(count)
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
            let port = value(l, "addr=").and_then(|a| a.rsplit(':').next()?.parse().ok());
            Some(Connected { id: value(l, "id=")?.parse().ok()?, port })
        };
        Ok(list.lines().filter_map(line).collect())
    }

    async fn scan(
        &self,
        prefix: &str,
        mut each: impl AsyncFnMut(&mut MultiplexedConnection, Vec<Vec<u8>>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut raw = self.raw().await?;
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(format!("{prefix}:*")).arg("COUNT").arg(1000);
            let (next, keys): (u64, Vec<Vec<u8>>) = scan.query_async(&mut raw).await.map_err(raw_failure)?;
            if !keys.is_empty() {
                each(&mut raw, keys).await?;
            }
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    /// Removes every key of this run. A private server takes them along when it ends.
    pub async fn clean(&self, prefix: &str) -> Result<(), Failure> {
        if !self.has_raw() {
            return Ok(());
        }
        self.scan(prefix, async |raw, keys| {
            redis::cmd("UNLINK").arg(keys).exec_async(raw).await.map_err(raw_failure)
        })
        .await
    }
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
