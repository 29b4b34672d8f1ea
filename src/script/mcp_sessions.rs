//! `lua/session_save.lua`, `lua/session_load.lua`, `lua/session_drop.lua`, `lua/session_watch.lua`.
#![cfg_attr(not(feature = "rmcp"), allow(dead_code))]

use bytes::Bytes;

use super::Invocation;
use super::reply::Fields;
use super::source::script;
use crate::Result;
use crate::connection::Commands;
use crate::keys::{Keys, Sid};

script!(pub(super) static SESSION_SAVE = "session_save", uses [],
    keys ["ms"] each [],
    args ["state", "ttl_ms"] each []);

script!(pub(super) static SESSION_LOAD = "session_load", uses [],
    keys ["ms"] each [],
    args ["ttl_ms"] each []);

script!(pub(super) static SESSION_DROP = "session_drop", uses [],
    keys ["s", "ms", "me", "mf"] each [],
    args ["sid", "inboxes", "publish"] each []);

script!(pub(super) static SESSION_WATCH = "session_watch", uses ["now_ms", "small_writes"],
    keys ["s", "n"] each ["ms", "me", "mf"],
    args ["session_ttl_ms", "event_ttl_ms", "inboxes", "publish"] each ["sid", "token"]);

pub(crate) async fn session_save(
    cmd: &Commands,
    keys: &Keys,
    sid: &Sid,
    state: &[u8],
    ttl_ms: u64,
) -> Result<()> {
    let mut call = Invocation::new(&SESSION_SAVE);
    call.key(keys.session_state(sid)).arg(state).num(ttl_ms);
    cmd.run(&call).await.map(|_| ())
}

pub(crate) async fn session_load(
    cmd: &Commands,
    keys: &Keys,
    sid: &Sid,
    ttl_ms: u64,
) -> Result<Option<Bytes>> {
    let mut call = Invocation::new(&SESSION_LOAD);
    call.key(keys.session_state(sid)).num(ttl_ms);
    let mut reply = Fields::of(&SESSION_LOAD, cmd.run(&call).await?)?;
    match reply.word()?.as_str() {
        "state" => Ok(reply.rest()?.into_iter().next()),
        "unknown" => Ok(None),
        other => Err(reply.unknown_word(other)),
    }
}

/// Answers whether there was one. `log`: the session's standalone stream.
pub(crate) async fn session_drop(cmd: &Commands, keys: &Keys, sid: &Sid, log: &Sid) -> Result<bool> {
    let mut call = Invocation::new(&SESSION_DROP);
    call.key(&keys.owners).key(keys.session_state(sid)).key(keys.events(log)).key(keys.event_facts(log));
    call.arg(sid.as_str()).arg(&keys.inboxes).arg(cmd.publish());
    let mut reply = Fields::of(&SESSION_DROP, cmd.run(&call).await?)?;
    let _dropped = reply.word()?;
    Ok(reply.count()? > 0)
}

/// One session, or one event log of it, that this replica holds.
pub(crate) struct Watched {
    pub(crate) sid: Sid,
    pub(crate) log: Sid,
    /// Empty: nobody here reads the log.
    pub(crate) token: String,
}

/// A process, as a lease tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Party {
    Nobody,
    Gone,
    Alive,
}

/// How it stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) known: bool,
    pub(crate) reader: bool,
    pub(crate) last: u64,
    pub(crate) owner: Party,
    pub(crate) writer: Party,
}

/// One answer each, in order. `probe`: ask the owners' processes whether they are there, instead of waiting for their
/// leases.
pub(crate) async fn session_watch(
    cmd: &Commands,
    keys: &Keys,
    (session_ttl_ms, event_ttl_ms): (u64, u64),
    probe: bool,
    all: &[Watched],
) -> Result<Vec<Standing>> {
    let mut call = Invocation::new(&SESSION_WATCH);
    call.key(&keys.owners).key(&keys.nodes).num(session_ttl_ms).num(event_ttl_ms);
    call.arg(&keys.inboxes).arg(if probe { cmd.publish() } else { "" });
    for one in all {
        call.key(keys.session_state(&one.sid)).key(keys.events(&one.log)).key(keys.event_facts(&one.log));
        call.arg(one.sid.as_str()).arg(&one.token);
    }
    let mut reply = Fields::of(&SESSION_WATCH, cmd.run(&call).await?)?;
    let mut out = Vec::with_capacity(all.len());
    while reply.len() > 0 {
        let mut one = reply.array()?;
        let (known, reader, last) = (one.count()? > 0, one.count()? > 0, one.count()?);
        let (owner, writer) = (party(&mut one)?, party(&mut one)?);
        out.push(Standing { known, reader, last, owner, writer });
    }
    Ok(out)
}

fn party(reply: &mut Fields) -> Result<Party> {
    match reply.word()?.as_str() {
        "none" => Ok(Party::Nobody),
        "gone" => Ok(Party::Gone),
        "alive" => Ok(Party::Alive),
        other => Err(reply.unknown_word(other)),
    }
}
