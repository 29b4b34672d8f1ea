//! `lua/heartbeat.lua`.

use super::Invocation;
use super::pop::ms;
use super::reply::Fields;
use super::source::script;
use crate::Result;
use crate::config::Config;
use crate::connection::Commands;
use crate::keys::{Keys, Sid};

script!(pub(super) static HEARTBEAT = "heartbeat", uses ["now_ms", "small_writes", "owner"],
    keys ["s", "n"] each [],
    args ["node", "lease_ms", "inboxes", "publish", "beat", "sid", "epoch"] each []);

/// What a heartbeat found out.
#[derive(Clone, Debug)]
pub(crate) struct Beat {
    /// The lease was still there.
    pub(crate) known: bool,
    /// `held`, `fenced`, `lost`, or `none` when no sample was given.
    pub(crate) owner: String,
    /// The server's clock.
    pub(crate) now_ms: u64,
}

pub(crate) async fn heartbeat(
    cmd: &Commands,
    keys: &Keys,
    config: &Config,
    node: &str,
    beat: u64,
    sample: Option<&(Sid, u64)>,
) -> Result<Beat> {
    let mut call = Invocation::new(&HEARTBEAT);
    call.key(&keys.owners).key(&keys.nodes);
    call.arg(node).num(ms(config.lease)).arg(&keys.inboxes).arg(cmd.publish()).num(beat);
    match sample {
        Some((sid, epoch)) => call.arg(sid.as_str()).num(*epoch),
        None => call.arg("").num(0_u64),
    };
    let mut reply = Fields::of(&HEARTBEAT, cmd.run(&call).await?)?;
    let known = reply.int()? == 1;
    let owner = reply.word()?;
    let _heard = reply.int()?;
    Ok(Beat { known, owner, now_ms: reply.count()? })
}
