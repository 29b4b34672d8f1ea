//! `lua/mail_send.lua` and `lua/mail_take.lua`.
#![cfg_attr(not(feature = "rmcp"), allow(dead_code))]

use bytes::Bytes;

use super::Invocation;
use super::reply::Fields;
use super::source::script;
use crate::Result;
use crate::connection::Commands;
use crate::keys::Keys;

script!(pub(super) static MAIL_SEND = "mail_send", uses ["now_ms"],
    keys ["mi", "n"] each [],
    args ["node", "letter", "ttl_ms", "limit", "inboxes", "publish"] each []);

script!(pub(super) static MAIL_TAKE = "mail_take", uses [],
    keys ["mi"] each [],
    args ["limit"] each ["done"]);

/// How long letters wait for a process that lives.
const TTL_MS: u64 = 60_000;
/// Most letters that wait for one process.
const LIMIT: u64 = 10_000;
/// Letters in one reply.
const TAKE: u64 = 64;

/// What became of a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mailed {
    Sent,
    Gone,
    Full,
}

/// `box_name` tells several receivers in one process apart.
pub(crate) async fn mail_send(
    cmd: &Commands,
    keys: &Keys,
    node: &str,
    box_name: &str,
    letter: &[u8],
) -> Result<Mailed> {
    let mut call = Invocation::new(&MAIL_SEND);
    call.key(keys.mailbox(box_name)).key(&keys.nodes).arg(node).arg(letter).num(TTL_MS).num(LIMIT);
    call.arg(&keys.inboxes).arg(cmd.publish());
    let mut reply = Fields::of(&MAIL_SEND, cmd.run(&call).await?)?;
    match reply.word()?.as_str() {
        "sent" => Ok(Mailed::Sent),
        "gone" => Ok(Mailed::Gone),
        "full" => Ok(Mailed::Full),
        other => Err(reply.unknown_word(other)),
    }
}

/// Letters, and how many wait behind them; those that are `done` go.
pub(crate) async fn mail_take(
    cmd: &Commands,
    keys: &Keys,
    box_name: &str,
    done: &[Bytes],
) -> Result<(u64, Vec<Bytes>)> {
    let mut call = Invocation::new(&MAIL_TAKE);
    call.key(keys.mailbox(box_name)).num(TAKE);
    for letter in done {
        call.arg(letter);
    }
    let mut reply = Fields::of(&MAIL_TAKE, cmd.run(&call).await?)?;
    Ok((reply.count()?, reply.rest()?))
}
