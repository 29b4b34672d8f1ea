//! `lua/fastmcp_*.lua`: the bridge to FastMCP 3. These run on FastMCP's server, which may be another one than ours.

use std::time::Duration;

use bytes::Bytes;

use super::Invocation;
use super::reply::Fields;
use super::source::script;
use crate::Result;
use crate::connection::Commands;

script!(pub(super) static FASTMCP_TAKE = "fastmcp_take", uses ["now_ms"],
    keys [] each ["f", "taken"],
    args ["stamp", "want", "ttl_ms", "keep_ms"] each []);

script!(pub(super) static FASTMCP_DONE = "fastmcp_done", uses [],
    keys [] each ["taken"],
    args [] each ["id"]);

script!(pub(super) static FASTMCP_PUT = "fastmcp_put", uses [],
    keys ["f", "d"] each [],
    args ["text", "ttl_ms", "dedupe_ms"] each []);

script!(pub(super) static FASTMCP_ANSWER = "fastmcp_answer", uses [],
    keys ["status", "response"] each [],
    args ["text", "ttl_ms"] each []);

fn ms(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// A message that the bridge holds.
pub(crate) struct Taken {
    pub(crate) id: String,
    /// How long it may still wait; none: its time is over.
    pub(crate) left: Option<Duration>,
    pub(crate) text: Bytes,
}

/// Takes up to `want` messages of each session, given as FastMCP's list and the bridge's.
pub(crate) async fn fastmcp_take(
    cmd: &Commands,
    lists: &[(String, String)],
    want: u64,
    ttl: Duration,
    keep: Duration,
) -> Result<Vec<Vec<Taken>>> {
    let mut call = Invocation::new(&FASTMCP_TAKE);
    for (theirs, ours) in lists {
        call.key(theirs).key(ours);
    }
    call.arg(uuid::Uuid::new_v4().simple().to_string()).num(want).num(ms(ttl)).num(ms(keep));
    let mut reply = Fields::of(&FASTMCP_TAKE, cmd.run(&call).await?)?;
    let now = reply.count()?;
    let mut out = Vec::with_capacity(lists.len());
    while reply.len() > 0 {
        out.push(reply.array()?.rest()?.iter().filter_map(|entry| Taken::parse(entry, now)).collect());
    }
    Ok(out)
}

impl Taken {
    /// Only entries of ours are in these lists.
    fn parse(entry: &Bytes, now_ms: u64) -> Option<Self> {
        let mut ends = entry.iter().enumerate().filter(|(_, b)| **b == b' ').map(|(at, _)| at);
        let (id, expires) = (ends.next()?, ends.next()?);
        let expires_ms: u64 = std::str::from_utf8(&entry[id + 1..expires]).ok()?.parse().ok()?;
        Some(Self {
            id: std::str::from_utf8(&entry[..id]).ok()?.to_owned(),
            left: expires_ms.checked_sub(now_ms).filter(|left| *left > 0).map(Duration::from_millis),
            text: entry.slice(expires + 1..),
        })
    }
}

/// These are done: the list and the id of each.
pub(crate) async fn fastmcp_done(cmd: &Commands, done: &[(&str, &str)]) -> Result<u64> {
    let mut call = Invocation::new(&FASTMCP_DONE);
    for (list, id) in done {
        call.key(list).arg(id);
    }
    Fields::of(&FASTMCP_DONE, cmd.run(&call).await?)?.count()
}

/// False when it had been handed over before.
pub(crate) async fn fastmcp_put(
    cmd: &Commands,
    (list, known): (&str, &str),
    text: &[u8],
    ttl: Duration,
    dedupe: Duration,
) -> Result<bool> {
    let mut call = Invocation::new(&FASTMCP_PUT);
    call.key(list).key(known).arg(text).num(ms(ttl)).num(ms(dedupe));
    Ok(Fields::of(&FASTMCP_PUT, cmd.run(&call).await?)?.word()? == "put")
}

/// False when nobody waits for it.
pub(crate) async fn fastmcp_answer(
    cmd: &Commands,
    (status, response): (&str, &str),
    text: &[u8],
    ttl: Duration,
) -> Result<bool> {
    let mut call = Invocation::new(&FASTMCP_ANSWER);
    call.key(status).key(response).arg(text).num(ms(ttl));
    Ok(Fields::of(&FASTMCP_ANSWER, cmd.run(&call).await?)?.word()? == "given")
}
