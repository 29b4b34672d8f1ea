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
    args ["node", "lease_ms", "inboxes", "publish", "beat"] each ["sid", "epoch"]);

/// What a heartbeat found out.
#[derive(Clone, Debug)]
pub(crate) struct Beat {
    /// The lease was still there.
    pub(crate) known: bool,
    /// The server refuses to publish to our inbox.
    pub(crate) mute: bool,
    /// The server's clock.
    pub(crate) now_ms: u64,
    /// Sessions of the sample that somebody else owns.
    pub(crate) fenced: Vec<Sid>,
    /// Whether one of them is owned by nobody.
    pub(crate) lost: bool,
}

pub(crate) async fn heartbeat(
    cmd: &Commands,
    keys: &Keys,
    config: &Config,
    node: &str,
    beat: u64,
    sample: &[(Sid, u64)],
) -> Result<Beat> {
    let mut call = Invocation::new(&HEARTBEAT);
    call.key(&keys.owners).key(&keys.nodes);
    call.arg(node).num(ms(config.lease)).arg(&keys.inboxes).arg(cmd.publish()).num(beat);
    for (sid, epoch) in sample {
        call.arg(sid.as_str()).num(*epoch);
    }
    let mut reply = Fields::of(&HEARTBEAT, cmd.run(&call).await?)?;
    let known = reply.int()? == 1;
    let mute = reply.int()? < 0;
    let now_ms = reply.count()?;
    let mut owners = reply.array()?;
    let (mut fenced, mut lost) = (Vec::new(), false);
    for (sid, _) in sample {
        match owners.word()?.as_str() {
            "held" => {}
            "fenced" => fenced.push(sid.clone()),
            _ => lost = true,
        }
    }
    Ok(Beat { known, mute, now_ms, fenced, lost })
}
