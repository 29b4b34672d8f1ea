//! `lua/task_*.lua`: what clients, and those who watch for them, do with a task.

use std::time::Duration;

use bytes::Bytes;

use super::Invocation;
use super::pop::ms;
use super::reply::Fields;
use super::source::script;
use crate::connection::Commands;
use crate::keys::{Address, Keys};
use crate::{Error, Result};

script!(pub(super) static TASK_CREATE = "task_create", uses ["now_ms", "task", "legs"],
    keys ["t", "legs", "idle"] each [],
    args ["address", "call", "context", "ttl_ms", "latest_ms", "poll_ms", "message", "session", "delay_ms",
          "max_queued", "inboxes", "publish"] each []);

script!(pub(super) static TASK_GET = "task_get", uses ["task"], keys ["t"] each [], args [] each []);

script!(pub(super) static TASK_UPDATE = "task_update", uses ["now_ms", "task", "legs"],
    keys ["t", "legs", "idle"] each [],
    args ["address", "inboxes", "publish"] each ["key", "answer"]);

script!(pub(super) static TASK_CANCEL = "task_cancel", uses ["now_ms", "task", "legs"],
    keys ["t", "legs"] each [],
    args ["address", "inboxes", "publish"] each []);

script!(pub(super) static TASK_WATCH = "task_watch", uses ["now_ms", "task"],
    keys [] each ["t"],
    args ["node", "watch_ms"] each []);

script!(pub(super) static TASK_TELL = "task_tell", uses ["now_ms", "task"],
    keys ["t"] each [],
    args ["teller", "told", "hold_ms"] each []);

/// A task to be stored.
pub(crate) struct Created<'a> {
    pub(crate) address: &'a Address,
    pub(crate) group: &'a str,
    pub(crate) call: &'a [u8],
    pub(crate) context: &'a [u8],
    pub(crate) ttl_ms: u64,
    pub(crate) latest_ms: u64,
    pub(crate) poll_ms: u64,
    pub(crate) message: &'a str,
    pub(crate) session: &'a str,
    pub(crate) delay_ms: u64,
    pub(crate) max_queued: u64,
}

/// What became of it.
pub(crate) enum CreateReply {
    Stored { created_ms: u64, expires_ms: u64 },
    Full { queued: u64 },
}

pub(crate) async fn task_create(cmd: &Commands, keys: &Keys, new: &Created<'_>) -> Result<CreateReply> {
    let mut call = Invocation::new(&TASK_CREATE);
    call.key(keys.task(new.address)).key(keys.legs(new.group)).key(keys.idle(new.group));
    call.arg(new.address.as_str()).arg(new.call).arg(new.context);
    call.num(new.ttl_ms).num(new.latest_ms).num(new.poll_ms).arg(new.message).arg(new.session);
    call.num(new.delay_ms).num(new.max_queued).arg(&keys.inboxes).arg(cmd.publish());
    let mut reply = Fields::of(&TASK_CREATE, cmd.run(&call).await?)?;
    match reply.word()?.as_str() {
        "created" | "exists" => {
            Ok(CreateReply::Stored { created_ms: reply.count()?, expires_ms: reply.count()? })
        }
        "full" => Ok(CreateReply::Full { queued: reply.count()? }),
        other => Err(reply.unknown_word(other)),
    }
}

/// A task as a client may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawTask {
    pub(crate) status: String,
    pub(crate) created_ms: u64,
    pub(crate) updated_ms: u64,
    pub(crate) expires_ms: u64,
    pub(crate) poll_ms: u64,
    pub(crate) rev: u64,
    pub(crate) message: String,
    pub(crate) outcome: Bytes,
    /// Encoded keys and their requests.
    pub(crate) requests: Vec<(String, Bytes)>,
}

pub(crate) async fn task_get(cmd: &Commands, keys: &Keys, address: &Address) -> Result<Option<RawTask>> {
    let mut call = Invocation::new(&TASK_GET);
    call.key(keys.task(address));
    let mut reply = Fields::of(&TASK_GET, cmd.run(&call).await?)?;
    match reply.word()?.as_str() {
        "none" => Ok(None),
        "task" => Ok(Some(RawTask {
            status: reply.word()?,
            created_ms: reply.count()?,
            updated_ms: reply.count()?,
            expires_ms: reply.count()?,
            poll_ms: reply.count()?,
            rev: reply.count()?,
            message: reply.word()?,
            outcome: reply.bytes()?,
            requests: reply.array()?.pairs()?,
        })),
        other => Err(reply.unknown_word(other)),
    }
}

/// What an update did; nothing when there is no such task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UpdateReply {
    pub(crate) accepted: u64,
    pub(crate) left: u64,
    /// Who gets `notifications/tasks`; empty: nobody.
    pub(crate) session: String,
}

pub(crate) async fn task_update(
    cmd: &Commands,
    keys: &Keys,
    group: &str,
    address: &Address,
    answers: &[(String, Bytes)],
) -> Result<Option<UpdateReply>> {
    let mut call = Invocation::new(&TASK_UPDATE);
    call.key(keys.task(address)).key(keys.legs(group)).key(keys.idle(group));
    call.arg(address.as_str()).arg(&keys.inboxes).arg(cmd.publish());
    for (key, answer) in answers {
        call.arg(key).arg(answer);
    }
    let mut reply = Fields::of(&TASK_UPDATE, cmd.run(&call).await?)?;
    match reply.word()?.as_str() {
        "none" => Ok(None),
        "ok" => {
            Ok(Some(UpdateReply { accepted: reply.count()?, left: reply.count()?, session: reply.word()? }))
        }
        other => Err(reply.unknown_word(other)),
    }
}

/// What cancelling did. Beside it: who gets `notifications/tasks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CancelReply {
    None,
    Finished,
    Cancelled,
    Asked,
}

pub(crate) async fn task_cancel(
    cmd: &Commands,
    keys: &Keys,
    group: &str,
    address: &Address,
) -> Result<(CancelReply, String)> {
    let mut call = Invocation::new(&TASK_CANCEL);
    call.key(keys.task(address)).key(keys.legs(group));
    call.arg(address.as_str()).arg(&keys.inboxes).arg(cmd.publish());
    let mut reply = Fields::of(&TASK_CANCEL, cmd.run(&call).await?)?;
    let done = match reply.word()?.as_str() {
        "none" => CancelReply::None,
        "finished" => CancelReply::Finished,
        "cancelled" => CancelReply::Cancelled,
        "asked" => CancelReply::Asked,
        other => return Err(reply.unknown_word(other)),
    };
    Ok((done, reply.word()?))
}

/// The number of each task's last change, 0 when there is no such task. `None`: watch no more.
pub(crate) async fn task_watch(
    cmd: &Commands,
    keys: &Keys,
    node: &str,
    watch: Option<Duration>,
    addresses: &[Address],
) -> Result<Vec<u64>> {
    let mut call = Invocation::new(&TASK_WATCH);
    for address in addresses {
        call.key(keys.task(address));
    }
    call.arg(node).num(watch.map_or(0, ms));
    let mut reply = Fields::of(&TASK_WATCH, cmd.run(&call).await?)?;
    let revs: Vec<u64> = (0..reply.len()).map(|_| reply.count()).collect::<Result<_>>()?;
    if revs.len() != addresses.len() {
        return Err(Error::Reply { op: "task_watch", got: format!("{} of {}", revs.len(), addresses.len()) });
    }
    Ok(revs)
}

/// Whether to tell a task's session of its newest state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tell {
    Now,
    /// It is told, somebody else tells it, or there is no such task.
    No,
}

pub(crate) async fn task_tell(
    cmd: &Commands,
    keys: &Keys,
    address: &Address,
    teller: &str,
    told: u64,
    hold: Duration,
) -> Result<Tell> {
    let mut call = Invocation::new(&TASK_TELL);
    call.key(keys.task(address)).arg(teller).num(told).num(ms(hold));
    let mut reply = Fields::of(&TASK_TELL, cmd.run(&call).await?)?;
    match reply.word()?.as_str() {
        "tell" => Ok(Tell::Now),
        "other" | "done" | "none" => Ok(Tell::No),
        other => Err(reply.unknown_word(other)),
    }
}
