//! The Lua scripts: one static and one typed function each.
//!
//! The functions are thin on purpose: they spell out KEYS and ARGV in the order of the script's header and read its
//! reply. `contract.rs` holds header, script and binding against each other.

mod ack;
mod claim;
#[cfg(test)]
mod contract;
mod dead;
mod fastmcp;
mod heartbeat;
mod pop;
mod push;
mod release;
mod reply;
mod requeue;
mod source;
mod stats;
mod sweep;
mod topic;

pub(crate) use ack::{AckItem, ack};
pub(crate) use claim::{ClaimMode, Claimed, claim};
pub(crate) use dead::{dead_list, dead_purge, dead_requeue};
pub(crate) use fastmcp::{Taken, fastmcp_answer, fastmcp_done, fastmcp_put, fastmcp_take};
pub(crate) use heartbeat::heartbeat;
pub(crate) use pop::{Next, PopItem, pop};
pub(crate) use push::{PushArgs, PushReply, push};
pub(crate) use release::{leave, release};
pub(crate) use requeue::{Failed, Requeued, requeue};
pub(crate) use source::{Invocation, Script};
pub(crate) use stats::{RawStats, overview, stats};
pub(crate) use sweep::{reap, sweep, tidy};
pub(crate) use topic::{
    topic_due, topic_join, topic_leave, topic_listen, topic_members, topic_ring, topic_tidy, topic_unlisten,
};

/// How a session is held, as the scripts that check the token answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// Another node owns the session.
    Fenced,
    /// Nobody owns it: state was lost, or swept while we were away.
    Lost,
}

/// Every script, for the contract test.
#[cfg(test)]
pub(crate) fn all() -> [&'static Script; 28] {
    [
        &push::PUSH,
        &push::COALESCE,
        &pop::POP,
        &ack::ACK,
        &requeue::REQUEUE,
        &claim::CLAIM,
        &release::RELEASE,
        &heartbeat::HEARTBEAT,
        &release::LEAVE,
        &sweep::SWEEP,
        &sweep::TIDY,
        &sweep::REAP,
        &stats::STATS,
        &stats::OVERVIEW,
        &dead::DEAD_LIST,
        &dead::DEAD_REQUEUE,
        &dead::DEAD_PURGE,
        &topic::TOPIC_JOIN,
        &topic::TOPIC_LEAVE,
        &topic::TOPIC_MEMBERS,
        &topic::TOPIC_DUE,
        &topic::TOPIC_TIDY,
        &topic::TOPIC_LISTEN,
        &topic::TOPIC_RING,
        &fastmcp::FASTMCP_TAKE,
        &fastmcp::FASTMCP_DONE,
        &fastmcp::FASTMCP_PUT,
        &fastmcp::FASTMCP_ANSWER,
    ]
}
