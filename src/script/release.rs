//! `lua/release.lua` gives sessions back, `lua/leave.lua` the node's lease.

use super::Invocation;
use super::reply::Fields;
use super::source::script;
use crate::Result;
use crate::connection::Commands;
use crate::keys::{Keys, Sid};

script!(pub(super) static RELEASE = "release", uses ["owner"],
    keys ["s"] each [],
    args ["node"] each ["sid", "epoch"]);

script!(pub(super) static LEAVE = "leave", uses [],
    keys ["n"] each [],
    args ["node"] each []);

/// Answers, for each session, whether it was still ours to give back.
pub(crate) async fn release(
    cmd: &Commands,
    keys: &Keys,
    node: &str,
    claims: &[(Sid, u64)],
) -> Result<Vec<bool>> {
    let mut call = Invocation::new(&RELEASE);
    call.key(&keys.owners).arg(node);
    for (sid, epoch) in claims {
        call.arg(sid.as_str()).num(*epoch);
    }
    let mut reply = Fields::of(&RELEASE, cmd.run(&call).await?)?;
    let mut out = Vec::with_capacity(claims.len());
    while reply.len() > 0 {
        out.push(reply.word()? == "released");
    }
    Ok(out)
}

/// Takes the node out of the index.
pub(crate) async fn leave(cmd: &Commands, keys: &Keys, node: &str) -> Result<()> {
    let mut call = Invocation::new(&LEAVE);
    call.key(&keys.nodes).arg(node);
    Fields::of(&LEAVE, cmd.run(&call).await?)?.count()?;
    Ok(())
}
