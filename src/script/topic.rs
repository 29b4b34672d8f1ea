//! `lua/topic_*.lua`: who takes part in a topic, who listens to it, and a message to the listeners.

use std::time::Duration;

use super::Invocation;
use super::reply::Fields;
use super::source::script;
use crate::Result;
use crate::connection::Commands;
use crate::keys::{Keys, Sid, Tid};

script!(pub(super) static TOPIC_JOIN = "topic_join", uses ["now_ms"],
    keys ["t"] each ["m"],
    args ["sid", "keep_ms"] each ["topic"]);

script!(pub(super) static TOPIC_LEAVE = "topic_leave", uses [],
    keys [] each ["m"],
    args ["member"] each []);

script!(pub(super) static TOPIC_MEMBERS = "topic_members", uses ["now_ms"],
    keys ["m", "s"] each [],
    args ["cursor", "ration"] each []);

script!(pub(super) static TOPIC_DUE = "topic_due", uses ["now_ms"],
    keys ["t"] each [],
    args ["keep_ms", "limit"] each []);

script!(pub(super) static TOPIC_TIDY = "topic_tidy", uses ["now_ms", "small_writes"],
    keys ["s", "t"] each ["m"],
    args ["keep_ms", "ration"] each ["topic", "cursor"]);

script!(pub(super) static TOPIC_LISTEN = "topic_listen", uses ["small_writes"],
    keys [] each ["l"],
    args ["node", "ttl_ms"] each []);

script!(pub(super) static TOPIC_RING = "topic_ring", uses ["now_ms"],
    keys ["l", "n"] each [],
    args ["inboxes", "publish", "payload"] each []);

/// Sessions in one page.
const PAGE: u64 = 512;

fn ms(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Answers in how many topics the session is new.
pub(crate) async fn topic_join(
    cmd: &Commands,
    keys: &Keys,
    sid: &Sid,
    keep: Duration,
    topics: &[Tid],
) -> Result<u64> {
    let mut call = Invocation::new(&TOPIC_JOIN);
    call.key(&keys.topics).arg(sid.as_str()).num(ms(keep));
    for topic in topics {
        call.key(keys.topic_sessions(topic)).arg(topic.as_str());
    }
    Fields::of(&TOPIC_JOIN, cmd.run(&call).await?)?.count()
}

/// A session leaves topics; answers how many it was in.
pub(crate) async fn topic_leave(cmd: &Commands, keys: &Keys, sid: &Sid, topics: &[Tid]) -> Result<u64> {
    leave(cmd, sid.as_str(), topics.iter().map(|topic| keys.topic_sessions(topic))).await
}

/// A node stops listening to a topic.
pub(crate) async fn topic_unlisten(cmd: &Commands, keys: &Keys, node: &str, topic: &Tid) -> Result<u64> {
    leave(cmd, node, std::iter::once(keys.topic_nodes(topic))).await
}

async fn leave(cmd: &Commands, member: &str, keys: impl Iterator<Item = String>) -> Result<u64> {
    let mut call = Invocation::new(&TOPIC_LEAVE);
    call.arg(member);
    for key in keys {
        call.key(key);
    }
    Fields::of(&TOPIC_LEAVE, cmd.run(&call).await?)?.count()
}

/// A page of a topic's sessions, and where to go on: `0` at the end.
pub(crate) async fn topic_members(
    cmd: &Commands,
    keys: &Keys,
    topic: &Tid,
    cursor: &str,
) -> Result<(String, Vec<Sid>)> {
    let mut call = Invocation::new(&TOPIC_MEMBERS);
    call.key(keys.topic_sessions(topic)).key(&keys.owners).arg(cursor).num(PAGE);
    let mut reply = Fields::of(&TOPIC_MEMBERS, cmd.run(&call).await?)?;
    let cursor = reply.word()?;
    let mut page = reply.array()?;
    let mut sids = Vec::with_capacity(page.len());
    while page.len() > 0 {
        sids.push(Sid::encoded(&page.word()?));
    }
    Ok((cursor, sids))
}

/// Topics to look at, and nobody else will for a while.
pub(crate) async fn topic_due(cmd: &Commands, keys: &Keys, keep: Duration, limit: u64) -> Result<Vec<Tid>> {
    let mut call = Invocation::new(&TOPIC_DUE);
    call.key(&keys.topics).num(ms(keep)).num(limit);
    let mut reply = Fields::of(&TOPIC_DUE, cmd.run(&call).await?)?;
    let mut topics = Vec::with_capacity(reply.len());
    while reply.len() > 0 {
        topics.push(Tid::encoded(&reply.word()?));
    }
    Ok(topics)
}

/// Looks at a page of each topic; answers where to go on with each, `0` at the end, and how many sessions were dropped.
pub(crate) async fn topic_tidy(
    cmd: &Commands,
    keys: &Keys,
    keep: Duration,
    topics: &[(Tid, String)],
) -> Result<Vec<(String, u64)>> {
    let mut call = Invocation::new(&TOPIC_TIDY);
    call.key(&keys.owners).key(&keys.topics).num(ms(keep)).num(PAGE);
    for (topic, cursor) in topics {
        call.key(keys.topic_sessions(topic)).arg(topic.as_str()).arg(cursor);
    }
    let mut reply = Fields::of(&TOPIC_TIDY, cmd.run(&call).await?)?;
    topics.iter().map(|_| Ok((reply.word()?, reply.count()?))).collect()
}

/// The node listens to topics, or goes on to.
pub(crate) async fn topic_listen(
    cmd: &Commands,
    keys: &Keys,
    node: &str,
    ttl: Duration,
    topics: &[Tid],
) -> Result<()> {
    let mut call = Invocation::new(&TOPIC_LISTEN);
    call.arg(node).num(ms(ttl));
    for topic in topics {
        call.key(keys.topic_nodes(topic));
    }
    Fields::of(&TOPIC_LISTEN, cmd.run(&call).await?)?.count()?;
    Ok(())
}

/// Hands a frame to every node that listens; answers how many heard it.
pub(crate) async fn topic_ring(cmd: &Commands, keys: &Keys, topic: &Tid, payload: &[u8]) -> Result<u64> {
    let mut call = Invocation::new(&TOPIC_RING);
    call.key(keys.topic_nodes(topic)).key(&keys.nodes);
    call.arg(&keys.inboxes).arg(cmd.publish()).arg(payload);
    Fields::of(&TOPIC_RING, cmd.run(&call).await?)?.count()
}
