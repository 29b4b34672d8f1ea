//! `lua/dead_list.lua`, `lua/dead_requeue.lua`, `lua/dead_purge.lua`.

use bytes::Bytes;

use super::Invocation;
use super::pop::ms;
use super::reply::Fields;
use super::source::script;
use crate::config::Config;
use crate::connection::Commands;
use crate::keys::{Keys, Sid};
use crate::{MessageId, Result};

script!(pub(super) static DEAD_LIST = "dead_list", uses [],
    keys ["dead"] each [],
    args ["offset", "limit"] each []);

script!(pub(super) static DEAD_REQUEUE = "dead_requeue", uses ["now_ms", "record", "dead_entry", "some", "first", "enqueue"],
    keys ["s", "w", "q", "dead"] each [],
    args ["sid", "id", "ttl_ms", "max_pending", "limit", "look_again_ms", "inboxes", "publish", "handoff_bytes"]
    each []);

script!(pub(super) static DEAD_PURGE = "dead_purge", uses ["record", "dead_entry"],
    keys ["dead"] each [],
    args ["id"] each []);

/// Most letters that one call moves.
const REQUEUE_LIMIT: u64 = 100;

/// The number of all letters, and a page of them.
pub(crate) async fn dead_list(
    cmd: &Commands,
    keys: &Keys,
    sid: &Sid,
    offset: u64,
    limit: u64,
) -> Result<(u64, Vec<Bytes>)> {
    let mut call = Invocation::new(&DEAD_LIST);
    call.key(keys.dead(sid)).num(offset).num(limit);
    let mut reply = Fields::of(&DEAD_LIST, cmd.run(&call).await?)?;
    Ok((reply.count()?, reply.rest()?))
}

/// What a call of `dead_requeue` did.
pub(crate) struct Moved {
    pub(crate) count: u64,
    pub(crate) full: bool,
    /// The call's own limit was reached: there may be more to move.
    pub(crate) more: bool,
}

pub(crate) async fn dead_requeue(
    cmd: &Commands,
    keys: &Keys,
    config: &Config,
    sid: &Sid,
    id: Option<&MessageId>,
) -> Result<Moved> {
    let mut call = Invocation::new(&DEAD_REQUEUE);
    call.key(&keys.owners).key(&keys.waiting).key(keys.queue(sid)).key(keys.dead(sid));
    call.arg(sid.as_str()).arg(id.map_or("", MessageId::as_str)).num(ms(config.ttl)).num(config.max_pending);
    call.num(REQUEUE_LIMIT).num(ms(config.look_again)).arg(&keys.inboxes).arg(cmd.publish());
    call.num(config.handoff_bytes as u64);
    let mut reply = Fields::of(&DEAD_REQUEUE, cmd.run(&call).await?)?;
    let word = reply.word()?;
    let (count, left) = (reply.count()?, reply.count()?);
    match word.as_str() {
        "requeued" => Ok(Moved { count, full: false, more: count >= REQUEUE_LIMIT && left > 0 }),
        "full" => Ok(Moved { count, full: true, more: false }),
        other => Err(reply.unknown_word(other)),
    }
}

/// Removes one message's letters, or all; answers how many went.
pub(crate) async fn dead_purge(
    cmd: &Commands,
    keys: &Keys,
    sid: &Sid,
    id: Option<&MessageId>,
) -> Result<u64> {
    let mut call = Invocation::new(&DEAD_PURGE);
    call.key(keys.dead(sid)).arg(id.map_or("", MessageId::as_str));
    Fields::of(&DEAD_PURGE, cmd.run(&call).await?)?.count()
}
