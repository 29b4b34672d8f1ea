//! The Lua scripts: one static and one typed function each.
//!
//! The functions are thin on purpose: they spell out KEYS and ARGV in the order of the script's header and read its
//! reply. `contract.rs` holds header, script and binding against each other.

mod ack;
mod claim;
#[cfg(test)]
mod contract;
mod dead;
mod events;
mod fastmcp;
mod heartbeat;
mod layout;
mod legs;
mod mail;
mod mcp_sessions;
mod pop;
mod probe;
mod push;
mod question;
mod release;
mod reply;
mod requeue;
mod source;
mod stats;
mod sweep;
mod task_ops;
mod tasks;
mod topic;
mod touch;

pub(crate) use ack::{AckItem, ack};
pub(crate) use claim::{ClaimMode, Claimed, claim};
pub(crate) use dead::{dead_list, dead_purge, dead_requeue};
#[cfg(feature = "rmcp")]
pub(crate) use events::{Append, Page, event_append, event_close, event_open, event_read};
pub(crate) use fastmcp::{Taken, fastmcp_answer, fastmcp_done, fastmcp_put, fastmcp_take};
pub(crate) use heartbeat::{Beat, heartbeat};
pub(crate) use layout::layout;
pub(crate) use legs::{
    Asked, End, Ended as LegEnded, Found, Held, Lost, Renewed, Stand, Take, TakenLeg, Wanted, leg_ask,
    leg_end, leg_renew, leg_say, leg_take,
};
#[cfg(feature = "rmcp")]
pub(crate) use mail::{Mailed, mail_send, mail_take};
#[cfg(feature = "rmcp")]
pub(crate) use mcp_sessions::{
    Party, Standing, Watched, session_drop, session_load, session_save, session_watch,
};
pub(crate) use pop::{Next, PopItem, pop};
pub(crate) use probe::{Role, explain, probe, with_pattern};
pub(crate) use push::{PushArgs, PushReply, push};
pub(crate) use question::{
    AnswerArgs, AnswerReply, AskArgs, AskReply, CloseArgs, Closed, Got, Stored, Waited, question_answer,
    question_ask, question_close, question_get, question_list, question_wait,
};
pub(crate) use release::{leave, release};
pub(crate) use requeue::{Failed, Requeued, requeue};
pub(crate) use source::{Invocation, Script};
pub(crate) use stats::{RawStats, overview, stats};
pub(crate) use sweep::{reap, sweep, tidy};
pub(crate) use task_ops::{Content, Peeked, Remade, RetryReply, task_peek, task_retry, task_scan};
pub(crate) use tasks::{
    CancelReply, CreateReply, Created, RawTask, Tell, task_cancel, task_create, task_get, task_tell,
    task_update, task_watch,
};
pub(crate) use topic::{
    topic_due, topic_join, topic_leave, topic_listen, topic_members, topic_ring, topic_tidy, topic_unlisten,
};

pub(crate) use touch::touch;

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
pub(crate) fn all() -> Vec<&'static Script> {
    vec![
        &push::PUSH,
        &push::COALESCE,
        &touch::TOUCH,
        &probe::PROBE,
        &pop::POP,
        &ack::ACK,
        &requeue::REQUEUE,
        &claim::CLAIM,
        &release::RELEASE,
        &heartbeat::HEARTBEAT,
        &layout::LAYOUT,
        &release::LEAVE,
        &sweep::SWEEP,
        &sweep::TIDY,
        &sweep::REAP,
        &stats::STATS,
        &stats::OVERVIEW,
        &dead::DEAD_LIST,
        &dead::DEAD_REQUEUE,
        &dead::DEAD_PURGE,
        &mcp_sessions::SESSION_SAVE,
        &mcp_sessions::SESSION_LOAD,
        &mcp_sessions::SESSION_DROP,
        &mcp_sessions::SESSION_WATCH,
        &events::EVENT_APPEND,
        &events::EVENT_OPEN,
        &events::EVENT_READ,
        &events::EVENT_CLOSE,
        &mail::MAIL_SEND,
        &mail::MAIL_TAKE,
        &question::ASK,
        &question::WAIT,
        &question::ANSWER,
        &question::CLOSE,
        &question::GET,
        &question::LIST,
        &tasks::TASK_CREATE,
        &tasks::TASK_GET,
        &tasks::TASK_UPDATE,
        &tasks::TASK_CANCEL,
        &tasks::TASK_WATCH,
        &tasks::TASK_TELL,
        &task_ops::TASK_SCAN,
        &task_ops::TASK_PEEK,
        &task_ops::TASK_RETRY,
        &legs::LEG_TAKE,
        &legs::LEG_RENEW,
        &legs::LEG_DONE,
        &legs::LEG_PARK,
        &legs::LEG_RETURN,
        &legs::LEG_ASK,
        &legs::LEG_SAY,
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
