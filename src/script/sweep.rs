//! `lua/sweep.lua` finds what is stale; `lua/tidy.lua` and `lua/reap.lua` deal with it.

use super::Invocation;
use super::pop::ms;
use super::reply::Fields;
use super::source::script;
use crate::Result;
use crate::config::Config;
use crate::connection::Commands;
use crate::keys::{Keys, Sid};

script!(pub(super) static SWEEP = "sweep", uses ["now_ms"],
    keys ["s", "w", "n"] each [],
    args ["look_again_ms", "limit", "inboxes", "publish", "grace_ms", "cursor", "ration"] each []);

script!(pub(super) static TIDY = "tidy", uses ["now_ms", "record"],
    keys ["w"] each ["q"],
    args [] each ["sid"]);

script!(pub(super) static REAP = "reap", uses ["now_ms", "record", "small_writes", "crash"],
    keys ["s", "n"] each ["q"],
    args ["grace_ms"] each ["sid", "token"]);

/// Most due sessions of one sweep.
const DUE_LIMIT: u64 = 500;
/// About how many owners one sweep looks at.
const RATION: u64 = 200;

/// What a sweep found.
#[derive(Clone, Debug)]
pub(crate) struct Swept {
    pub(crate) rung: u64,
    pub(crate) cursor: String,
    /// Due sessions that nobody heard.
    pub(crate) unheard: Vec<Sid>,
    /// Sessions whose owner's node is gone, with that owner's token.
    pub(crate) orphans: Vec<(Sid, String)>,
}

pub(crate) async fn sweep(cmd: &Commands, keys: &Keys, config: &Config, cursor: &str) -> Result<Swept> {
    let mut call = Invocation::new(&SWEEP);
    call.key(&keys.owners).key(&keys.waiting).key(&keys.nodes);
    call.num(ms(config.look_again)).num(DUE_LIMIT).arg(&keys.inboxes).arg(cmd.publish());
    call.num(ms(config.node_grace)).arg(cursor).num(RATION);
    let mut reply = Fields::of(&SWEEP, cmd.run(&call).await?)?;
    let rung = reply.count()?;
    let cursor = reply.word()?;
    let mut heard = reply.array()?;
    let mut unheard = Vec::with_capacity(heard.len());
    while heard.len() > 0 {
        unheard.push(Sid::encoded(&heard.word()?));
    }
    let mut owners = reply.array()?;
    let mut orphans = Vec::with_capacity(owners.len() / 2);
    while owners.len() > 0 {
        orphans.push((Sid::encoded(&owners.word()?), owners.word()?));
    }
    Ok(Swept { rung, cursor, unheard, orphans })
}

/// Drops expired heads of sessions that nobody serves; answers how many.
pub(crate) async fn tidy(cmd: &Commands, keys: &Keys, sids: &[Sid]) -> Result<u64> {
    let mut call = Invocation::new(&TIDY);
    call.key(&keys.waiting);
    for sid in sids {
        call.key(keys.queue(sid)).arg(sid.as_str());
    }
    Fields::of(&TIDY, cmd.run(&call).await?)?.count()
}

/// Forgets owners whose node is gone; answers how many.
pub(crate) async fn reap(
    cmd: &Commands,
    keys: &Keys,
    config: &Config,
    orphans: &[(Sid, String)],
) -> Result<u64> {
    let mut call = Invocation::new(&REAP);
    call.key(&keys.owners).key(&keys.nodes).num(ms(config.node_grace));
    for (sid, token) in orphans {
        call.key(keys.queue(sid)).arg(sid.as_str()).arg(token);
    }
    Fields::of(&REAP, cmd.run(&call).await?)?.count()
}
