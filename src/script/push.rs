//! `lua/push.lua`.

use bytes::Bytes;

use super::Invocation;
use super::reply::Fields;
use super::source::script;
use crate::connection::Commands;
use crate::keys::{Keys, Sid};
use crate::{MessageId, OnFull, PushStatus, Result};

script!(pub(super) static PUSH = "push", uses ["now_ms", "record", "enqueue"],
    keys ["q", "s", "w", "d"] each [],
    args ["sid", "id", "body", "ttl_ms", "dedupe_ms", "max_pending", "policy", "coalesce", "trace",
          "look_again_ms", "inboxes", "publish", "handoff_bytes"] each []);

/// What `push.lua` takes.
pub(crate) struct PushArgs<'a> {
    pub(crate) sid: &'a Sid,
    pub(crate) id: &'a MessageId,
    pub(crate) body: &'a Bytes,
    pub(crate) ttl_ms: u64,
    pub(crate) dedupe_ms: u64,
    pub(crate) max_pending: u64,
    pub(crate) on_full: OnFull,
    pub(crate) coalesce: &'a str,
    pub(crate) trace: &'a str,
    pub(crate) look_again_ms: u64,
    pub(crate) handoff_bytes: u64,
}

/// What `push.lua` answers.
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
    let mut call = Invocation::new(&PUSH);
    call.key(keys.queue(a.sid)).key(&keys.owners).key(&keys.waiting).key(keys.dedupe(a.sid, a.id));
    call.arg(a.sid.as_str()).arg(a.id.as_str()).arg(a.body).num(a.ttl_ms).num(a.dedupe_ms).num(a.max_pending);
    call.arg(match a.on_full {
        OnFull::Refuse => "refuse",
        OnFull::DropOldest => "drop_oldest",
    });
    call.arg(a.coalesce).arg(a.trace).num(a.look_again_ms).arg(&keys.inboxes).arg(cmd.publish());
    call.num(a.handoff_bytes);
    call
}

fn answer(value: redis::Value) -> Result<PushReply> {
    let mut reply = Fields::of(&PUSH, value)?;
    let word = reply.word()?;
    let pending = reply.count()?;
    let _heard = reply.int()?;
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
