//! `lua/pop.lua`, and the reply that it shares with `lua/ack.lua`.

use std::time::Duration;

use bytes::Bytes;

use super::reply::Fields;
use super::source::script;
use super::{Denied, Invocation, Script};
use crate::config::Config;
use crate::connection::Commands;
use crate::keys::{Keys, Sid};
use crate::{Error, Result};

script!(pub(super) static POP = "pop", uses ["now_ms", "record", "small_writes", "bury", "owner", "next"],
    keys ["s", "w", "n"] each ["q", "dead"],
    args ["node", "lease_ms", "look_again_ms", "max_attempts", "dead_cap", "dead_ttl_ms", "order", "budget"]
    each ["sid", "epoch", "want"]);

/// One session of a pop.
#[derive(Clone, Debug)]
pub(crate) struct PopItem {
    pub(crate) sid: Sid,
    pub(crate) epoch: u64,
    pub(crate) want: u32,
}

/// What comes next for one session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Next {
    /// The reply was full: ask again.
    pub(crate) more: bool,
    /// The head may not be delivered before.
    pub(crate) wait: Option<Duration>,
    pub(crate) acked: u64,
    pub(crate) expired: u64,
    pub(crate) buried: u64,
    pub(crate) records: Vec<Bytes>,
}

/// One session's part of a reply: what is next, why not, or a foreign key that is in the way of this session.
pub(crate) type SessionReply = Result<std::result::Result<Next, Denied>, Error>;

pub(crate) fn session_replies(script: &'static Script, value: redis::Value) -> Result<Vec<SessionReply>> {
    let mut all = Fields::of(script, value)?;
    let mut out = Vec::with_capacity(all.len());
    while all.len() > 0 {
        out.push(match all.array_or_int()? {
            Ok(one) => session_reply(one),
            Err(acked) => Ok(Ok(Next { acked, ..Next::default() })),
        });
    }
    Ok(out)
}

fn session_reply(mut one: Fields) -> SessionReply {
    let word = one.word()?;
    if !matches!(word.as_str(), "ok" | "more") {
        return one.denied(&word).map(Err);
    }
    let wait = one.count()?;
    Ok(Ok(Next {
        more: word == "more",
        wait: (wait > 0).then(|| Duration::from_millis(wait)),
        acked: one.count()?,
        expired: one.count()?,
        buried: one.count()?,
        records: one.rest()?,
    }))
}

pub(crate) async fn pop(
    cmd: &Commands,
    keys: &Keys,
    config: &Config,
    node: &str,
    items: &[PopItem],
) -> Result<Vec<SessionReply>> {
    let mut call = Invocation::new(&POP);
    call.key(&keys.owners).key(&keys.waiting).key(&keys.nodes);
    call.arg(node)
        .num(ms(config.lease))
        .num(ms(config.look_again))
        .num(config.max_attempts)
        .num(config.dead_cap);
    call.num(ms(config.dead_ttl)).arg(config.retry_order.word()).num(config.batch_bytes as u64);
    for item in items {
        call.key(keys.queue(&item.sid)).key(keys.dead(&item.sid));
        call.arg(item.sid.as_str()).num(item.epoch).num(item.want);
    }
    session_replies(&POP, cmd.run(&call).await?)
}

/// Settings were validated when the courier was built.
pub(super) fn ms(d: Duration) -> u64 {
    crate::config::millis("duration", d).unwrap_or(1)
}
