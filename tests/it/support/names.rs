//! Names that no other test has, in this process or any other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A number that this process gives out once.
pub fn serial() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn micros() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros())
}

/// A key prefix of the test's own: `t:<micros>:<pid>:<n>:<test>`.
///
/// Only characters that a courier accepts in a prefix, and none that means something in a glob.
pub fn prefix(test: &str) -> String {
    let test: String =
        test.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(60).collect();
    format!("t:{}:{}:{}:{test}", micros(), std::process::id(), serial())
}

/// A name for a container, a memory engine or a file.
pub fn unique(what: &str) -> String {
    format!("mcp-courier-{what}-{}-{}-{}", micros(), std::process::id(), serial())
}
