//! `lua/layout.lua`.

use super::Invocation;
use super::reply::Fields;
use super::source::script;
use crate::Result;
use crate::connection::Commands;

script!(pub(super) static LAYOUT = "layout", uses [],
    keys ["p"] each [],
    args ["partitions", "ttl_ms"] each []);

/// Longer than any message or dead letter may live.
const TTL_MS: u64 = 400 * 24 * 3600 * 1000;

/// The number of partitions in force: what is stored, or what was given if nothing is.
pub(crate) async fn layout(cmd: &Commands, key: &str, partitions: u64) -> Result<u64> {
    let mut call = Invocation::new(&LAYOUT);
    call.key(key).num(partitions).num(TTL_MS);
    Fields::of(&LAYOUT, cmd.run(&call).await?)?.count()
}
