//! `lua/stats.lua` and `lua/overview.lua`.

use super::Invocation;
use super::reply::Fields;
use super::source::script;
use crate::Result;
use crate::connection::Commands;
use crate::keys::{Keys, Sid};

script!(pub(super) static STATS = "stats", uses ["now_ms", "record"],
    keys ["s", "n"] each ["q", "dead"],
    args [] each ["sid"]);

script!(pub(super) static OVERVIEW = "overview", uses ["now_ms"],
    keys ["s", "w", "n"] each [],
    args ["offset", "limit"] each []);

/// One session's numbers, as `stats.lua` answers them.
#[derive(Clone, Debug)]
pub(crate) struct RawStats {
    pub(crate) pending: u64,
    pub(crate) age_ms: u64,
    pub(crate) attempts: u64,
    pub(crate) wait_ms: u64,
    pub(crate) dead: u64,
    pub(crate) dead_age_ms: u64,
    pub(crate) owner: String,
    pub(crate) lease_ms: i64,
}

pub(crate) async fn stats(cmd: &Commands, keys: &Keys, sids: &[Sid]) -> Result<Vec<RawStats>> {
    let mut call = Invocation::new(&STATS);
    call.key(&keys.owners).key(&keys.nodes);
    for sid in sids {
        call.key(keys.queue(sid)).key(keys.dead(sid)).arg(sid.as_str());
    }
    let mut all = Fields::of(&STATS, cmd.run(&call).await?)?;
    let mut out = Vec::with_capacity(sids.len());
    while all.len() > 0 {
        let mut one = all.array()?;
        out.push(RawStats {
            pending: one.count()?,
            age_ms: one.count()?,
            attempts: one.count()?,
            wait_ms: one.count()?,
            dead: one.count()?,
            dead_age_ms: one.count()?,
            owner: one.word()?,
            lease_ms: one.int()?,
        });
    }
    Ok(out)
}

/// What `overview.lua` answers.
#[derive(Clone, Debug)]
pub(crate) struct RawOverview {
    pub(crate) owned: u64,
    pub(crate) waiting: u64,
    pub(crate) page: Vec<Sid>,
    pub(crate) nodes: Vec<(String, i64)>,
}

pub(crate) async fn overview(cmd: &Commands, keys: &Keys, offset: u64, limit: u64) -> Result<RawOverview> {
    let mut call = Invocation::new(&OVERVIEW);
    call.key(&keys.owners).key(&keys.waiting).key(&keys.nodes).num(offset).num(limit);
    let mut reply = Fields::of(&OVERVIEW, cmd.run(&call).await?)?;
    let (owned, waiting) = (reply.count()?, reply.count()?);
    let mut sids = reply.array()?;
    let mut page = Vec::with_capacity(sids.len());
    while sids.len() > 0 {
        page.push(Sid::encoded(&sids.word()?));
    }
    let mut leases = reply.array()?;
    let mut nodes = Vec::with_capacity(leases.len() / 2);
    while leases.len() > 0 {
        nodes.push((leases.word()?, leases.int()?));
    }
    Ok(RawOverview { owned, waiting, page, nodes })
}
