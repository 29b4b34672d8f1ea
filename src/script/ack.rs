//! `lua/ack.lua`.

use bytes::Bytes;

use super::Invocation;
use super::pop::{SessionReply, ms, session_replies};
use super::source::script;
use crate::Result;
use crate::config::Config;
use crate::connection::Commands;
use crate::keys::{Keys, Sid};

script!(pub(super) static ACK = "ack", uses ["fast", "now_ms", "record", "receipt", "bury", "some", "next", "guarded"],
    keys ["s", "w"] each ["q", "dead"],
    args ["node", "max_attempts", "dead_cap", "dead_ttl_ms", "order", "budget"]
    each ["sid", "epoch", "want", "k", "receipt*k"]);

/// One session of an ack: what was delivered, in order, and how many records are wanted next.
#[derive(Clone, Debug)]
pub(crate) struct AckItem {
    pub(crate) sid: Sid,
    pub(crate) epoch: u64,
    pub(crate) want: u32,
    pub(crate) receipts: Vec<Bytes>,
}

pub(crate) async fn ack(
    cmd: &Commands,
    keys: &Keys,
    config: &Config,
    node: &str,
    items: &[AckItem],
) -> Result<Vec<SessionReply>> {
    let mut call = Invocation::new(&ACK);
    call.key(&keys.owners).key(&keys.waiting);
    call.arg(node).num(config.max_attempts).num(config.dead_cap).num(ms(config.dead_ttl));
    call.arg(config.retry_order.word()).num(config.batch_bytes as u64);
    for item in items {
        call.key(keys.queue(&item.sid)).key(keys.dead(&item.sid));
        call.arg(item.sid.as_str()).num(item.epoch).num(item.want).num(item.receipts.len() as u64);
        for receipt in &item.receipts {
            call.arg(receipt);
        }
    }
    session_replies(&ACK, cmd.run(&call).await?)
}
