//! `lua/event_append.lua`, `lua/event_open.lua`, `lua/event_read.lua`, `lua/event_close.lua`.
#![cfg_attr(not(feature = "rmcp"), allow(dead_code))]

use bytes::Bytes;

use super::Invocation;
use super::reply::Fields;
use super::source::script;
use crate::Result;
use crate::connection::Commands;
use crate::keys::{Keys, Sid};

script!(pub(super) static EVENT_APPEND = "event_append", uses ["now_ms"],
    keys ["me", "mf"] each [],
    args ["stream", "event", "nonce", "writer", "ttl_ms", "max_events", "max_bytes", "inboxes", "publish",
          "handoff_bytes"] each []);

script!(pub(super) static EVENT_OPEN = "event_open", uses ["small_writes"],
    keys ["mf"] each [],
    args ["token", "must_exist", "ttl_ms"] each []);

script!(pub(super) static EVENT_READ = "event_read", uses ["small_writes"],
    keys ["me", "mf"] each [],
    args ["token", "after", "limit", "max_bytes"] each []);

script!(pub(super) static EVENT_CLOSE = "event_close", uses ["small_writes"],
    keys ["mf"] each [],
    args ["token", "after"] each []);

/// What `event_append.lua` takes.
pub(crate) struct Append<'a> {
    pub(crate) stream: &'a Sid,
    pub(crate) event: &'a [u8],
    pub(crate) nonce: &'a str,
    pub(crate) writer: &'a str,
    pub(crate) ttl_ms: u64,
    pub(crate) max_events: u64,
    pub(crate) max_bytes: u64,
    pub(crate) handoff_bytes: u64,
}

/// The number of the event.
pub(crate) async fn event_append(cmd: &Commands, keys: &Keys, a: &Append<'_>) -> Result<u64> {
    let mut call = Invocation::new(&EVENT_APPEND);
    call.key(keys.events(a.stream)).key(keys.event_facts(a.stream));
    call.arg(a.stream.as_str()).arg(a.event).arg(a.nonce).arg(a.writer).num(a.ttl_ms);
    call.num(a.max_events).num(a.max_bytes).arg(&keys.inboxes).arg(cmd.publish()).num(a.handoff_bytes);
    let mut reply = Fields::of(&EVENT_APPEND, cmd.run(&call).await?)?;
    match reply.word()?.as_str() {
        "stored" | "known" => reply.count(),
        other => Err(reply.unknown_word(other)),
    }
}

/// Where the last reader of a log stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) given: u64,
    pub(crate) floor: u64,
}

/// Nothing when the log must exist and does not.
pub(crate) async fn event_open(
    cmd: &Commands,
    keys: &Keys,
    stream: &Sid,
    token: &str,
    must_exist: bool,
    ttl_ms: u64,
) -> Result<Option<Opened>> {
    let mut call = Invocation::new(&EVENT_OPEN);
    call.key(keys.event_facts(stream)).arg(token).num(u64::from(must_exist)).num(ttl_ms);
    let mut reply = Fields::of(&EVENT_OPEN, cmd.run(&call).await?)?;
    match reply.word()?.as_str() {
        "opened" => Ok(Some(Opened { given: reply.count()?, floor: reply.count()? })),
        "unknown" => Ok(None),
        other => Err(reply.unknown_word(other)),
    }
}

/// A page of a log.
pub(crate) enum Page {
    /// What follows, and the newest number that was trimmed.
    Events { floor: u64, events: Vec<Bytes> },
    /// Somebody else reads the log.
    Shadow,
}

pub(crate) async fn event_read(
    cmd: &Commands,
    keys: &Keys,
    stream: &Sid,
    token: &str,
    after: u64,
    (limit, max_bytes): (u64, u64),
) -> Result<Page> {
    let mut call = Invocation::new(&EVENT_READ);
    call.key(keys.events(stream)).key(keys.event_facts(stream));
    call.arg(token).num(after).num(limit).num(max_bytes);
    let mut reply = Fields::of(&EVENT_READ, cmd.run(&call).await?)?;
    match reply.word()?.as_str() {
        "events" => Ok(Page::Events { floor: reply.count()?, events: reply.rest()? }),
        "shadow" => Ok(Page::Shadow),
        other => Err(reply.unknown_word(other)),
    }
}

pub(crate) async fn event_close(
    cmd: &Commands,
    keys: &Keys,
    stream: &Sid,
    token: &str,
    after: u64,
) -> Result<()> {
    let mut call = Invocation::new(&EVENT_CLOSE);
    call.key(keys.event_facts(stream)).arg(token).num(after);
    cmd.run(&call).await.map(|_| ())
}
