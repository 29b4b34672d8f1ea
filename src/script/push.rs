//! `lua/push.lua` and `lua/coalesce.lua`.

use bytes::Bytes;

use super::Invocation;
use super::reply::{Fields, unexpected};
use super::source::script;
use crate::connection::Commands;
use crate::keys::{Keys, Sid};
use crate::{MessageId, OnFull, PushStatus, Result};

script!(pub(super) static PUSH = "push", uses ["now_ms", "seen", "first", "push_one"],
    keys ["q", "s", "w", "d"] each [],
    args ["sid", "id", "body", "ttl_ms", "dedupe_ms", "bit", "max_pending", "policy", "trace", "look_again_ms",
          "inboxes", "publish", "handoff_bytes"] each []);

script!(pub(super) static COALESCE = "coalesce", uses ["now_ms", "record", "seen", "first", "push_one"],
    keys ["q", "s", "w", "d"] each [],
    args ["sid", "id", "body", "ttl_ms", "dedupe_ms", "bit", "max_pending", "policy", "trace", "look_again_ms",
          "inboxes", "publish", "handoff_bytes", "coalesce"] each []);

/// What the scripts take.
pub(crate) struct PushArgs<'a> {
    pub(crate) sid: &'a Sid,
    pub(crate) id: &'a MessageId,
    pub(crate) body: &'a Bytes,
    pub(crate) ttl_ms: u64,
    /// The key that marks the id as known, and the id's bit in it when it is not the id's own.
    pub(crate) mark: String,
    pub(crate) bit: Option<u64>,
    pub(crate) dedupe_ms: u64,
    pub(crate) max_pending: u64,
    pub(crate) on_full: OnFull,
    pub(crate) coalesce: &'a str,
    pub(crate) trace: &'a str,
    pub(crate) look_again_ms: u64,
    pub(crate) handoff_bytes: u64,
}

/// What they answer.
pub(crate) enum PushReply {
    Stored { status: PushStatus, pending: u64, dropped: u64 },
    Full { pending: u64 },
}

pub(crate) async fn push(cmd: &Commands, keys: &Keys, a: PushArgs<'_>) -> Result<PushReply> {
    answer(cmd.run(&invocation(cmd, keys, &a)).await?)
}

/// Many at once, pipelined in the order given; one answer each.
pub(crate) async fn push_many(
    cmd: &Commands,
    keys: &Keys,
    all: Vec<PushArgs<'_>>,
) -> Result<Vec<Result<PushReply>>> {
    let calls: Vec<_> = all.iter().map(|a| invocation(cmd, keys, a)).collect();
    let values = cmd.run_many(&calls).await?;
    // One that will pass (as a script flushed in the middle) repeats the whole batch, or the order would suffer.
    if let Some(Err(e)) = values.iter().find(|v| v.as_ref().is_err_and(crate::Error::is_passing)) {
        return Err(e.clone());
    }
    Ok(values.into_iter().map(|value| value.and_then(answer)).collect())
}

fn invocation(cmd: &Commands, keys: &Keys, a: &PushArgs<'_>) -> Invocation {
    let mut call = Invocation::new(if a.coalesce.is_empty() { &PUSH } else { &COALESCE });
    call.key(keys.queue(a.sid)).key(&keys.owners).key(&keys.waiting).key(&a.mark);
    call.arg(a.sid.as_str()).arg(a.id.as_str()).arg(a.body).num(a.ttl_ms).num(a.dedupe_ms);
    match a.bit {
        Some(bit) => call.num(bit),
        None => call.arg(""),
    };
    call.num(a.max_pending);
    call.arg(match a.on_full {
        OnFull::Refuse => "refuse",
        OnFull::DropOldest => "drop_oldest",
    });
    call.arg(a.trace).num(a.look_again_ms).arg(&keys.inboxes).arg(cmd.publish()).num(a.handoff_bytes);
    if !a.coalesce.is_empty() {
        call.arg(a.coalesce);
    }
    call
}

fn answer(value: redis::Value) -> Result<PushReply> {
    if let redis::Value::Int(pending) = value {
        let pending = u64::try_from(pending).map_err(|_| unexpected(&PUSH, &value))?;
        return Ok(PushReply::Stored { status: PushStatus::Queued, pending, dropped: 0 });
    }
    let mut reply = Fields::of(&PUSH, value)?;
    let word = reply.word()?;
    let pending = reply.count()?;
    let dropped = reply.count()?;
    let status = match word.as_str() {
        "queued" => PushStatus::Queued,
        "coalesced" => PushStatus::Coalesced,
        "duplicate" => PushStatus::Duplicate,
        "full" => return Ok(PushReply::Full { pending }),
        other => return Err(reply.unknown_word(other)),
    };
    Ok(PushReply::Stored { status, pending, dropped })
}
