//! Whether a test left anything behind: keys that never expire, processes that never end.

use std::time::Duration;

use redis::aio::MultiplexedConnection;

use super::wait::wait_until;

/// A key, and its time to live in milliseconds (-1: none).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    pub name: String,
    pub ttl_ms: i64,
}

/// Every key that begins with `prefix`, sorted by name. By SCAN: other tests' server is not blocked.
pub async fn keys(raw: &mut MultiplexedConnection, prefix: &str) -> Vec<Key> {
    let mut found = std::collections::BTreeMap::new();
    let mut cursor = 0_u64;
    loop {
        let (next, names): (u64, Vec<String>) = redis::cmd("SCAN")
            .arg(cursor)
            .arg("MATCH")
            .arg(format!("{prefix}*"))
            .arg("COUNT")
            .arg(1000)
            .query_async(raw)
            .await
            .expect("SCAN");
        for name in names {
            let ttl_ms: i64 = redis::cmd("PTTL").arg(&name).query_async(raw).await.expect("PTTL");
            // -2: it expired in between.
            if ttl_ms != -2 {
                found.insert(name, ttl_ms);
            }
        }
        cursor = next;
        if cursor == 0 {
            return found.into_iter().map(|(name, ttl_ms)| Key { name, ttl_ms }).collect();
        }
    }
}

/// The documented keys without a time to live: `<prefix>:{p}:s` and `:w`, `p` the number of a partition.
fn is_index(name: &str, prefix: &str) -> bool {
    let Some(rest) = name.strip_prefix(prefix).and_then(|r| r.strip_prefix(":{")) else { return false };
    let Some((partition, index)) = rest.split_once("}:") else { return false };
    partition.parse::<u16>().is_ok() && matches!(index, "s" | "w")
}

/// Panics with every key that has no time to live and is no documented index.
pub async fn assert_clean(raw: &mut MultiplexedConnection, prefix: &str) {
    let all = keys(raw, prefix).await;
    let leaked: Vec<_> = all.iter().filter(|k| k.ttl_ms < 0 && !is_index(&k.name, prefix)).collect();
    assert!(leaked.is_empty(), "keys without a TTL: {leaked:#?}");
}

/// Processes whose command line or environment holds `marker` (a test's prefix), this one left out. Linux only;
/// elsewhere none is found.
pub fn processes_with(marker: &str) -> Vec<(u32, String)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        let read = |file: &str| std::fs::read(entry.path().join(file)).unwrap_or_default();
        let (line, environment) = (read("cmdline"), read("environ"));
        let holds = |bytes: &[u8]| bytes.windows(marker.len()).any(|w| w == marker.as_bytes());
        if pid != std::process::id() && (holds(&line) || holds(&environment)) {
            found.push((pid, String::from_utf8_lossy(&line).replace('\0', " ")));
        }
    }
    found
}

/// Waits until no process with that marker is left; see [`processes_with`].
pub async fn assert_no_process(marker: &str) {
    wait_until(&format!("no process with {marker}"), Duration::from_secs(10), || async {
        let left = processes_with(marker);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}
