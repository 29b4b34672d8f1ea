//! `lua/requeue.lua`.

use std::time::Duration;

use bytes::Bytes;

use super::pop::ms;
use super::reply::Fields;
use super::source::script;
use super::{Denied, Invocation};
use crate::Result;
use crate::config::Config;
use crate::connection::Commands;
use crate::keys::{Keys, Sid};

script!(pub(super) static REQUEUE = "requeue", uses ["now_ms", "record", "receipt", "small_writes", "bury", "owner"],
    keys ["s", "w", "q", "dead"] each [],
    args ["node", "epoch", "sid", "receipt", "attempt", "max_attempts", "delay_ms", "error", "order", "dead_cap",
          "dead_ttl_ms"] each []);

/// What became of a failed head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requeued {
    Again,
    Dead,
    Expired,
    Unknown,
}

/// The head that failed.
pub(crate) struct Failed<'a> {
    pub(crate) sid: &'a Sid,
    pub(crate) epoch: u64,
    pub(crate) receipt: &'a Bytes,
    pub(crate) attempt: u32,
    pub(crate) rejected: bool,
    pub(crate) delay: Duration,
    pub(crate) error: &'a str,
}

pub(crate) async fn requeue(
    cmd: &Commands,
    keys: &Keys,
    config: &Config,
    node: &str,
    f: Failed<'_>,
) -> Result<std::result::Result<Requeued, Denied>> {
    let mut call = Invocation::new(&REQUEUE);
    call.key(&keys.owners).key(&keys.waiting).key(keys.queue(f.sid)).key(keys.dead(f.sid));
    call.arg(node).num(f.epoch).arg(f.sid.as_str()).arg(f.receipt).num(f.attempt);
    call.num(if f.rejected { 0 } else { config.max_attempts }).num(ms(f.delay)).arg(f.error);
    call.arg(config.retry_order.word()).num(config.dead_cap).num(ms(config.dead_ttl));
    let mut reply = Fields::of(&REQUEUE, cmd.run(&call).await?)?;
    let word = reply.word()?;
    Ok(Ok(match word.as_str() {
        "requeued" => Requeued::Again,
        "dead" => Requeued::Dead,
        "expired" => Requeued::Expired,
        "unknown" => Requeued::Unknown,
        other => return reply.denied(other).map(Err),
    }))
}
