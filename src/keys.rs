//! The only place that spells a Redis key.
//!
//! Everything of a partition carries the hash tag `{p}`. Ids come from outside and are percent-encoded here, so
//! that no id can leave its key, and no two ids meet in one.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use crate::{Error, MessageId, RequestId, Result, SessionId, Topic};

/// Everything but unreserved characters (RFC 3986) is encoded: braces, colons, spaces, globs, `%` itself.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A session id as it stands in keys and scripts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sid(std::sync::Arc<str>);

impl Sid {
    pub(crate) fn of(session: &SessionId) -> Self {
        Self(encode(session.as_str()).into())
    }

    /// As a script or a doorbell names it.
    pub(crate) fn encoded(text: &str) -> Self {
        Self(text.into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Any other name from outside, as that of an event stream.
    #[cfg_attr(not(feature = "rmcp"), allow(dead_code))]
    pub(crate) fn of_text(text: &str) -> Self {
        Self(encode(text).into())
    }
}

impl std::borrow::Borrow<str> for Sid {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// A question: its session and its id, both as they stand in keys and scripts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Spot {
    pub(crate) sid: Sid,
    pub(crate) rid: std::sync::Arc<str>,
}

impl Spot {
    pub(crate) fn of(session: &SessionId, id: &RequestId) -> Self {
        Self { sid: Sid::of(session), rid: encode(id.as_str()).into() }
    }

    /// As a script or a signal names it.
    pub(crate) fn encoded(sid: &str, rid: &str) -> Self {
        Self { sid: Sid::encoded(sid), rid: rid.into() }
    }
}

/// A topic as it stands in keys, scripts and frames.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tid(std::sync::Arc<str>);

impl Tid {
    pub(crate) fn of(topic: &Topic) -> Self {
        Self(encode(topic.as_str()).into())
    }

    /// As a script or a frame names it.
    pub(crate) fn encoded(text: &str) -> Self {
        Self(text.into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for Tid {
    fn borrow(&self) -> &str {
        &self.0
    }
}

pub(crate) fn encode(text: &str) -> String {
    percent_encode(text.as_bytes(), ENCODED).to_string()
}

/// Turns an encoded id back into what it was.
pub(crate) fn decode(encoded: &str) -> String {
    percent_encoding::percent_decode_str(encoded).decode_utf8_lossy().into_owned()
}

/// A task as indexes and signals name it: `<group>:<scope>:<id>`, each encoded, so that no two tasks meet. The scope
/// of callers without an identity is empty, which no named scope is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address(std::sync::Arc<str>);

impl Address {
    pub(crate) fn of(group: &str, scope: &str, id: &str) -> Self {
        Self(format!("{}:{}:{}", encode(group), encode(scope), encode(id)).into())
    }

    /// As a script or a signal names it: group, scope and id, when it is one.
    pub(crate) fn parts(&self) -> Option<(String, String, String)> {
        let mut parts = self.0.split(':').map(decode);
        let all = (parts.next()?, parts.next()?, parts.next()?);
        parts.next().is_none().then_some(all)
    }

    pub(crate) fn encoded(text: &str) -> Self {
        Self(text.into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A key of a request to the client, as it stands in a task.
pub(crate) fn encode_key(key: &str) -> String {
    encode(key)
}

/// The keys of one partition under one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    base: String,
    /// `s`: session -> owner token.
    pub(crate) owners: String,
    /// `w`: sessions with pending messages.
    pub(crate) waiting: String,
    /// `n`: node -> deadline of its lease.
    pub(crate) nodes: String,
    /// `t`: topics with sessions -> when to look at these again.
    pub(crate) topics: String,
    /// Prefix of the nodes' inbox channels.
    pub(crate) inboxes: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str, partition: u16) -> Self {
        let base = format!("{prefix}:{{{partition}}}:");
        Self {
            owners: format!("{base}s"),
            waiting: format!("{base}w"),
            nodes: format!("{base}n"),
            topics: format!("{base}t"),
            inboxes: format!("{base}c:"),
            base,
        }
    }

    pub(crate) fn queue(&self, sid: &Sid) -> String {
        format!("{}q:{}", self.base, sid.0)
    }

    pub(crate) fn dead(&self, sid: &Sid) -> String {
        format!("{}dead:{}", self.base, sid.0)
    }

    pub(crate) fn dedupe(&self, sid: &Sid, id: &MessageId) -> String {
        format!("{}d:{}:{}", self.base, sid.0, encode(id.as_str()))
    }

    /// What another replica needs to take an MCP session over.
    #[cfg_attr(not(feature = "rmcp"), allow(dead_code))]
    pub(crate) fn session_state(&self, sid: &Sid) -> String {
        format!("{}ms:{}", self.base, sid.0)
    }

    /// The events of an SSE stream.
    #[cfg_attr(not(feature = "rmcp"), allow(dead_code))]
    pub(crate) fn events(&self, stream: &Sid) -> String {
        format!("{}me:{}", self.base, stream.0)
    }

    /// Facts about those events.
    #[cfg_attr(not(feature = "rmcp"), allow(dead_code))]
    pub(crate) fn event_facts(&self, stream: &Sid) -> String {
        format!("{}mf:{}", self.base, stream.0)
    }

    /// Letters for one receiver in one process.
    #[cfg_attr(not(feature = "rmcp"), allow(dead_code))]
    pub(crate) fn mailbox(&self, receiver: &str) -> String {
        format!("{}mi:{receiver}", self.base)
    }

    /// One question.
    pub(crate) fn question(&self, spot: &Spot) -> String {
        format!("{}e:{}:{}", self.base, spot.sid.0, spot.rid)
    }

    /// A session's open questions.
    pub(crate) fn questions(&self, sid: &Sid) -> String {
        format!("{}eo:{}", self.base, sid.0)
    }

    pub(crate) fn task(&self, address: &Address) -> String {
        format!("{}t:{}", self.base, address.0)
    }

    /// What the keys of all tasks of a group look like, for SCAN. Nothing in it but the star is a glob: the prefix has
    /// no such characters, and the group is encoded.
    pub(crate) fn tasks_of(&self, group: &str) -> String {
        format!("{}t:{}:*", self.base, encode(group))
    }

    /// The task that a key belongs to.
    pub(crate) fn address_of(&self, key: &str) -> Option<Address> {
        key.strip_prefix(self.base.as_str())?.strip_prefix("t:").map(Address::encoded)
    }

    /// The waiting and running legs of a group of tasks.
    pub(crate) fn legs(&self, group: &str) -> String {
        format!("{}legs:{}", self.base, encode(group))
    }

    /// Workers of a group that have nothing to do.
    pub(crate) fn idle(&self, group: &str) -> String {
        format!("{}idle:{}", self.base, encode(group))
    }

    /// `m:<topic>`: the sessions that take part.
    pub(crate) fn topic_sessions(&self, topic: &Tid) -> String {
        format!("{}m:{}", self.base, topic.0)
    }

    /// `l:<topic>`: the nodes that listen.
    pub(crate) fn topic_nodes(&self, topic: &Tid) -> String {
        format!("{}l:{}", self.base, topic.0)
    }

    /// Marks of the ids that one producer made, a bit each.
    pub(crate) fn dedupe_block(&self, node: &str, block: u64) -> String {
        format!("{}b:{node}:{block}", self.base)
    }

    /// A key that nothing uses, to try rights on.
    pub(crate) fn probe(&self) -> String {
        format!("{}probe", self.base)
    }

    /// What every key of this partition begins with.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    pub(crate) fn inbox(&self, node: &str) -> String {
        format!("{}{node}", self.inboxes)
    }
}

/// Where the number of partitions is stored: at one place, whatever the number is.
pub(crate) fn layout(prefix: &str) -> String {
    format!("{prefix}:{{0}}:p")
}

/// A prefix must not disturb the hash tag nor look like a pattern.
pub(crate) fn check_prefix(prefix: &str) -> Result<()> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '-' | '_' | '.' | '/');
    if prefix.is_empty() || prefix.len() > 128 || !prefix.chars().all(fine) {
        return Err(Error::invalid("prefix", "use 1 to 128 of the characters A-Z a-z 0-9 : - _ . /"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_id_leaves_its_key_and_no_two_ids_meet() {
        let keys = Keys::new("courier", 0);
        let hostile = [
            "{}", "}x", "{", "a}b", "{{x}}", "a:b", "a", "b", "a:lease", " ", "a b", "\n", "\0", "*?[]",
            "%41", "A", "e\u{301}", "\u{e9}", "🦀", "..", "q:a",
        ];
        let mut seen = std::collections::HashSet::new();
        for id in hostile {
            let sid = Sid::of(&SessionId::new(id).expect("valid"));
            let key = keys.queue(&sid);
            assert!(key.starts_with("courier:{0}:q:"), "{key}");
            let rest = &key["courier:{0}:q:".len()..];
            assert!(rest.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~%".contains(&b)), "{rest}");
            assert_eq!(decode(rest), id);
            assert!(seen.insert(key), "{id:?} meets another id");
        }
    }

    #[test]
    fn f41_no_scope_meets_another_one_and_none_is_not_a_name() {
        let keys = Keys::new("courier", 0);
        let mut seen = std::collections::HashSet::new();
        for scope in
            ["", "u", "U", "u:v", "v", "u%3Av", ":", "-", " ", "\0", "anonymous", "u\n", "{}", "u:v:w"]
        {
            for id in ["v", "w", "v:w", ""] {
                let address = Address::of("g", scope, id);
                assert!(seen.insert(keys.task(&address)), "{scope:?} {id:?}");
                assert_eq!(address.parts(), Some(("g".into(), scope.into(), id.into())));
            }
        }
    }

    #[test]
    fn a_message_id_cannot_move_into_another_session() {
        let keys = Keys::new("courier", 0);
        let of = |s: &str, m: &str| {
            keys.dedupe(&Sid::of(&SessionId::new(s).expect("valid")), &MessageId::new(m).expect("valid"))
        };
        assert_ne!(of("a", "b:c"), of("a:b", "c"));
    }

    #[test]
    fn a_question_cannot_move_into_another_session() {
        let keys = Keys::new("courier", 0);
        let of = |s: &str, r: &str| {
            let spot = Spot::of(&SessionId::new(s).expect("valid"), &RequestId::new(r).expect("valid"));
            assert!(!spot.rid.contains(' '));
            keys.question(&spot)
        };
        assert_ne!(of("a", "b:c d"), of("a:b", "c d"));
    }
}
