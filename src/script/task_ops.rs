//! `lua/task_scan.lua`, `lua/task_peek.lua`, `lua/task_retry.lua`: what operators do with tasks.

use bytes::Bytes;

use super::Invocation;
use super::reply::Fields;
use super::source::script;
use crate::connection::Commands;
use crate::keys::{Address, Keys};
use crate::{Error, Result};

script!(pub(super) static TASK_SCAN = "task_scan", uses [],
    keys ["legs", "idle"] each [], args ["pattern", "cursor", "count"] each []);

script!(pub(super) static TASK_PEEK = "task_peek", uses ["now_ms", "task"],
    keys [] each ["t"], args ["content"] each []);

script!(pub(super) static TASK_RETRY = "task_retry", uses ["now_ms", "task", "legs"],
    keys ["t", "legs", "idle"] each [], args ["address", "id", "inboxes", "publish"] each []);

/// A page of a group's tasks.
#[derive(Debug)]
pub(crate) struct Scanned {
    /// 0: the last page.
    pub(crate) cursor: u64,
    pub(crate) legs: u64,
    pub(crate) idle: u64,
    pub(crate) addresses: Vec<Address>,
}

pub(crate) async fn task_scan(
    cmd: &Commands,
    keys: &Keys,
    group: &str,
    cursor: u64,
    count: u64,
) -> Result<Scanned> {
    let mut call = Invocation::new(&TASK_SCAN);
    call.key(keys.legs(group)).key(keys.idle(group)).arg(keys.tasks_of(group)).num(cursor).num(count);
    let mut reply = Fields::of(&TASK_SCAN, cmd.run(&call).await?)?;
    let cursor = reply.word()?;
    let cursor = cursor.parse().map_err(|_| Error::Reply { op: "task_scan", got: "no cursor".into() })?;
    let (legs, idle, mut found) = (reply.count()?, reply.count()?, reply.array()?);
    let mut addresses = Vec::with_capacity(found.len());
    while found.len() > 0 {
        addresses.extend(keys.address_of(&found.word()?));
    }
    Ok(Scanned { cursor, legs, idle, addresses })
}

/// A task as an operator may see it.
#[derive(Debug)]
pub(crate) struct Peeked {
    pub(crate) status: String,
    pub(crate) created_ms: u64,
    pub(crate) updated_ms: u64,
    pub(crate) expires_ms: u64,
    pub(crate) rev: u64,
    pub(crate) attempts: u64,
    pub(crate) leg: u64,
    pub(crate) due_ms: u64,
    pub(crate) lease: String,
    pub(crate) cancel: bool,
    /// Encoded keys of the requests that wait for an answer.
    pub(crate) open: String,
    pub(crate) message: String,
    pub(crate) session: String,
    pub(crate) retried: String,
    pub(crate) content: Option<Content>,
}

/// What stands in a task that is the client's business.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) call: Bytes,
    pub(crate) outcome: Bytes,
    pub(crate) requests: Vec<(String, Bytes)>,
    pub(crate) answers: Vec<(String, Bytes)>,
}

/// The server's time, and each task, or nothing where there is none.
pub(crate) async fn task_peek(
    cmd: &Commands,
    keys: &Keys,
    addresses: &[Address],
    content: bool,
) -> Result<(u64, Vec<Option<Peeked>>)> {
    let mut call = Invocation::new(&TASK_PEEK);
    for address in addresses {
        call.key(keys.task(address));
    }
    call.num(u64::from(content));
    let mut reply = Fields::of(&TASK_PEEK, cmd.run(&call).await?)?;
    let now = reply.count()?;
    let mut all = Vec::with_capacity(addresses.len());
    while reply.len() > 0 {
        let mut one = reply.array()?;
        all.push(if one.len() == 0 { None } else { Some(peeked(&mut one, content)?) });
    }
    if all.len() != addresses.len() {
        return Err(Error::Reply { op: "task_peek", got: format!("{} of {}", all.len(), addresses.len()) });
    }
    Ok((now, all))
}

fn peeked(one: &mut Fields, content: bool) -> Result<Peeked> {
    Ok(Peeked {
        status: one.word()?,
        created_ms: one.count()?,
        updated_ms: one.count()?,
        expires_ms: one.count()?,
        rev: one.count()?,
        attempts: one.count()?,
        leg: one.count()?,
        due_ms: one.count()?,
        lease: one.word()?,
        cancel: one.count()? > 0,
        open: one.word()?,
        message: one.word()?,
        session: one.word()?,
        retried: one.word()?,
        content: if content {
            Some(Content {
                call: one.bytes()?,
                outcome: one.bytes()?,
                requests: one.array()?.pairs()?,
                answers: one.array()?.pairs()?,
            })
        } else {
            None
        },
    })
}

/// What a failed task was made of, for one that begins again.
#[derive(Debug)]
pub(crate) struct Remade {
    pub(crate) id: String,
    pub(crate) ttl_ms: u64,
    pub(crate) latest_ms: u64,
    pub(crate) poll_ms: u64,
    pub(crate) session: String,
    pub(crate) call: Bytes,
    pub(crate) context: Bytes,
}

/// What became of the wish.
#[derive(Debug)]
pub(crate) enum RetryReply {
    None,
    Queued,
    Again(Remade),
    Refused { word: String },
}

pub(crate) async fn task_retry(
    cmd: &Commands,
    keys: &Keys,
    group: &str,
    address: &Address,
    id: &str,
) -> Result<RetryReply> {
    let mut call = Invocation::new(&TASK_RETRY);
    call.key(keys.task(address)).key(keys.legs(group)).key(keys.idle(group));
    call.arg(address.as_str()).arg(id).arg(&keys.inboxes).arg(cmd.publish());
    let mut reply = Fields::of(&TASK_RETRY, cmd.run(&call).await?)?;
    match reply.word()?.as_str() {
        "none" => Ok(RetryReply::None),
        "queued" => Ok(RetryReply::Queued),
        "again" => Ok(RetryReply::Again(Remade {
            id: reply.word()?,
            ttl_ms: reply.count()?,
            latest_ms: reply.count()?,
            poll_ms: reply.count()?,
            session: reply.word()?,
            call: reply.bytes()?,
            context: reply.bytes()?,
        })),
        "refused" => Ok(RetryReply::Refused { word: reply.word()? }),
        other => Err(reply.unknown_word(other)),
    }
}
