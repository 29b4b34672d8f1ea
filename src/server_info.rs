//! What the server is and how it is set up, for checks and for the command line's `doctor`.

use redis::Value;

use crate::connection::Commands;
use crate::{Courier, Error, Result};

/// The server as it describes itself. What it does not tell, or may not be asked, is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct ServerInfo {
    /// As in `7.0.15`; Valkey tells the Redis version it is compatible with.
    pub version: Option<String>,
    /// Valkey's own version.
    pub valkey_version: Option<String>,
    /// As in `standalone`, `sentinel`, `cluster`.
    pub mode: Option<String>,
    /// `master` or `slave`.
    pub role: Option<String>,
    /// What happens at the memory limit; `noeviction` is the one that loses nothing.
    pub maxmemory_policy: Option<String>,
    /// The memory limit in bytes; 0: none.
    pub maxmemory: Option<u64>,
    /// Bytes in use.
    pub used_memory: Option<u64>,
    /// Whether the append-only file is on.
    pub aof: Option<bool>,
    /// Replicas that are connected.
    pub replicas: Option<u64>,
    /// How often a client was cut because it did not read what it was sent in time: doorbells among it are lost.
    pub output_buffer_cuts: Option<u64>,
    /// How many keys were evicted since the server started.
    pub evicted_keys: Option<u64>,
    /// Whether the last write to the append-only file, and the last snapshot, succeeded.
    pub persistence_ok: Option<bool>,
}

impl Courier {
    /// What the server is and how it is set up.
    ///
    /// # Errors
    /// Those of the connection. A server that forbids `INFO` is no error: everything is `None` then.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn server_info(&self) -> Result<ServerInfo> {
        read(&self.core.cmd, &[AT_CONNECT, &["stats"]].concat()).await
    }
}

/// What a connect looks at; the rest is for people.
const AT_CONNECT: &[&str] = &["server", "memory", "persistence", "replication"];

async fn read(cmd: &Commands, sections: &[&str]) -> Result<ServerInfo> {
    let mut text = String::new();
    // One section a call: servers before 7.0 take no more.
    for section in sections {
        let mut info = redis::cmd("INFO");
        info.arg(section);
        match cmd.raw("connect", info).await {
            Ok(Value::BulkString(part)) => text += &String::from_utf8_lossy(&part),
            Ok(Value::VerbatimString { text: part, .. }) => text += &part,
            Ok(_) => {}
            // No right to it, or a service that took the command away ("ERR unknown command").
            Err(Error::Refused { code, .. }) if code == "NOPERM" || code == "ERR" => break,
            Err(e) => return Err(e),
        }
        text.push('\n');
    }
    let field = |name: &str| {
        let prefix = format!("{name}:");
        text.lines().find_map(|line| line.strip_prefix(&prefix)).map(|value| value.trim().to_owned())
    };
    let number = |name: &str| field(name).and_then(|n| n.parse().ok());
    let written = field("aof_last_write_status").map(|s| s == "ok");
    let saved = field("rdb_last_bgsave_status").map(|s| s == "ok");
    Ok(ServerInfo {
        version: field("redis_version"),
        valkey_version: field("valkey_version"),
        mode: field("redis_mode").or_else(|| field("server_mode")),
        role: field("role"),
        maxmemory_policy: field("maxmemory_policy"),
        maxmemory: number("maxmemory"),
        used_memory: number("used_memory"),
        aof: field("aof_enabled").map(|on| on == "1"),
        replicas: number("connected_slaves"),
        output_buffer_cuts: number("client_output_buffer_limit_disconnections"),
        evicted_keys: number("evicted_keys"),
        persistence_ok: match (written, saved) {
            (None, None) => None,
            (written, saved) => Some(written.unwrap_or(true) && saved.unwrap_or(true)),
        },
    })
}

/// The oldest server that has every command the scripts use.
const OLDEST_SERVER: (u32, u32) = (6, 2);

/// The oldest server with shard channels. Valkey tells the Redis version that it is compatible with.
const SHARD_CHANNELS: (u32, u32) = (7, 0);

/// Tries it out, on a channel that nobody listens to. A node that does not have the channel's slot knows the command too.
async fn has_shard_channels(cmd: &Commands) -> Result<bool> {
    let mut publish = redis::cmd("SPUBLISH");
    publish.arg("mcp-courier").arg("");
    match cmd.raw("connect", publish).await {
        Err(Error::Refused { code, message, .. }) if code == "ERR" => {
            Ok(!message.starts_with("unknown command"))
        }
        Ok(_) | Err(Error::Refused { .. }) => Ok(true),
        Err(e) => Err(e),
    }
}

/// At connect: a server that cannot work is refused by name, one that may lose messages is warned about.
pub(crate) async fn check(cmd: &Commands, cluster: bool) -> Result<()> {
    let info = read(cmd, AT_CONNECT).await?;
    let Some(version) = &info.version else {
        tracing::warn!("the server's version and eviction policy cannot be read (no right to INFO)");
        if cluster && !has_shard_channels(cmd).await? {
            cmd.without_shard_channels();
        }
        return Ok(());
    };
    let mut numbers = version.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found != (0, 0) && found < OLDEST_SERVER {
        return Err(Error::Refused {
            op: "connect",
            code: "VERSION".into(),
            message: format!("the server is {version}, at least 6.2 is needed"),
        });
    }
    if info.mode.as_deref() == Some("cluster") && !cluster {
        return Err(Error::invalid("url", "the server is a cluster node; use redis+cluster://"));
    }
    if cluster && found != (0, 0) && found < SHARD_CHANNELS {
        cmd.without_shard_channels();
    }
    match info.maxmemory_policy.as_deref() {
        Some("noeviction") => {}
        Some(policy) if info.maxmemory != Some(0) => tracing::warn!(
            policy,
            "the server may evict pending messages at its memory limit; set maxmemory-policy noeviction"
        ),
        Some(_) => {}
        None => tracing::warn!("the server's eviction policy cannot be read; it should be noeviction"),
    }
    Ok(())
}
