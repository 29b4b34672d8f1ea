//! `lua/push.lua` and `lua/coalesce.lua`.

use bytes::Bytes;

use super::reply::Fields;
use super::source::script;
use super::{Invocation, Script};
use crate::connection::Commands;
use crate::keys::{Keys, Sid};
use crate::{Error, MessageId, OnFull, PushStatus, Result};

script!(pub(super) static PUSH = "push", uses ["fast", "now_ms", "seen", "some", "first", "push_one", "guarded"],
    keys ["s", "w"] each ["q", "d"],
    args ["look_again_ms", "inboxes", "publish", "handoff_bytes"]
    each ["sid", "id", "body", "bit", "options", "trace"]);

script!(pub(super) static COALESCE = "coalesce", uses ["now_ms", "record", "seen", "some", "first", "push_one"],
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

/// Pushes messages in the order given; one answer each. Those with a coalescing key travel one by one, the others
/// between them together.
///
/// An error in the middle is the answer to everything behind it: what came later must not stand in front.
pub(crate) async fn push(
    cmd: &Commands,
    keys: &Keys,
    all: &[PushArgs<'_>],
) -> Result<Vec<Result<PushReply>>> {
    let mut replies = Vec::with_capacity(all.len());
    for run in all.chunk_by(|a, b| a.coalesce.is_empty() && b.coalesce.is_empty()) {
        let answers = match run {
            [one] if !one.coalesce.is_empty() => coalesce(cmd, keys, one).await.map(|reply| vec![Ok(reply)]),
            run => push_run(cmd, keys, run).await,
        };
        match answers {
            Ok(answers) => replies.extend(answers),
            // One that will pass repeats all of them: what had arrived is known by its id.
            Err(e) if replies.is_empty() || e.is_passing() => return Err(e),
            Err(e) => {
                replies.extend((replies.len()..all.len()).map(|_| Err(e.clone())));
                break;
            }
        }
    }
    Ok(replies)
}

async fn push_run(cmd: &Commands, keys: &Keys, run: &[PushArgs<'_>]) -> Result<Vec<Result<PushReply>>> {
    let mut call = Invocation::new(&PUSH);
    call.key(&keys.owners).key(&keys.waiting);
    let first = &run[0];
    call.num(first.look_again_ms).arg(&keys.inboxes).arg(cmd.publish()).num(first.handoff_bytes);
    for a in run {
        call.key(keys.queue(a.sid)).key(&a.mark);
        call.arg(a.sid.as_str()).arg(a.id.as_str()).arg(a.body);
        bit(&mut call, a);
        call.arg(format!("{} {} {} {}", a.ttl_ms, a.dedupe_ms, a.max_pending, policy(a))).arg(a.trace);
    }
    let mut answers = Fields::of(&PUSH, cmd.run(&call).await?)?;
    let mut out = Vec::with_capacity(run.len());
    while answers.len() > 0 {
        out.push(answers.array_or_int().and_then(|one| answer(&PUSH, one)));
    }
    Ok(out)
}

async fn coalesce(cmd: &Commands, keys: &Keys, a: &PushArgs<'_>) -> Result<PushReply> {
    let mut call = Invocation::new(&COALESCE);
    call.key(keys.queue(a.sid)).key(&keys.owners).key(&keys.waiting).key(&a.mark);
    call.arg(a.sid.as_str()).arg(a.id.as_str()).arg(a.body).num(a.ttl_ms).num(a.dedupe_ms);
    bit(&mut call, a);
    call.num(a.max_pending)
        .arg(policy(a))
        .arg(a.trace)
        .num(a.look_again_ms)
        .arg(&keys.inboxes)
        .arg(cmd.publish())
        .num(a.handoff_bytes)
        .arg(a.coalesce);
    answer(&COALESCE, Fields::or_int(&COALESCE, cmd.run(&call).await?)?)
}

fn policy(a: &PushArgs<'_>) -> &'static str {
    match a.on_full {
        OnFull::Refuse => "refuse",
        OnFull::DropOldest => "drop_oldest",
    }
}

fn bit(call: &mut Invocation, a: &PushArgs<'_>) {
    match a.bit {
        Some(bit) => call.num(bit),
        None => call.arg(""),
    };
}

fn answer(script: &'static Script, reply: std::result::Result<Fields, u64>) -> Result<PushReply> {
    let mut reply = match reply {
        Ok(reply) => reply,
        Err(pending) => return Ok(PushReply::Stored { status: PushStatus::Queued, pending, dropped: 0 }),
    };
    let word = reply.word()?;
    if word == "error" {
        return Err(reply.refused());
    }
    let pending = reply.count()?;
    let dropped = reply.count()?;
    let status = match word.as_str() {
        "queued" => PushStatus::Queued,
        "coalesced" => PushStatus::Coalesced,
        "duplicate" => PushStatus::Duplicate,
        "full" => return Ok(PushReply::Full { pending }),
        other => return Err(Error::Reply { op: script.name, got: other.chars().take(40).collect() }),
    };
    Ok(PushReply::Stored { status, pending, dropped })
}
