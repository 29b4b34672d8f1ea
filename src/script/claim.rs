//! `lua/claim.lua`.

use super::reply::Fields;
use super::source::script;
use super::{Denied, Invocation};
use crate::connection::Commands;
use crate::keys::{Keys, Sid};
use crate::{Error, Result};

script!(pub(super) static CLAIM = "claim", uses ["now_ms", "record", "small_writes", "crash"],
    keys ["s", "n"] each ["q"],
    args ["node", "mode", "inboxes", "publish"] each ["sid"]);

/// Whether a claim takes the session from another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimMode {
    /// The newest claim wins.
    Take,
    /// Only what nobody else owns: used after the owners were lost.
    Keep,
}

/// A session is ours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claimed {
    pub(crate) epoch: u64,
    pub(crate) pending: u64,
}

pub(crate) async fn claim(
    cmd: &Commands,
    keys: &Keys,
    node: &str,
    mode: ClaimMode,
    sids: &[Sid],
) -> Result<Vec<Result<std::result::Result<Claimed, Denied>, Error>>> {
    let mut call = Invocation::new(&CLAIM);
    call.key(&keys.owners).key(&keys.nodes);
    call.arg(node);
    call.arg(match mode {
        ClaimMode::Take => "take",
        ClaimMode::Keep => "keep",
    });
    call.arg(&keys.inboxes).arg(cmd.publish());
    for sid in sids {
        call.key(keys.queue(sid)).arg(sid.as_str());
    }
    let mut all = Fields::of(&CLAIM, cmd.run(&call).await?)?;
    let mut out = Vec::with_capacity(sids.len());
    while all.len() > 0 {
        let mut one = all.array()?;
        out.push(match one.word()?.as_str() {
            "claimed" => Ok(Ok(Claimed { epoch: one.count()?, pending: one.count()? })),
            other => one.denied(other).map(Err),
        });
    }
    Ok(out)
}
