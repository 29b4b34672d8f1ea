//! FastMCP's keys, and the bridge's own beside them. Docket puts its name in front of all; in a cluster its users write
//! that name in braces, so that all are in one slot.

use crate::keys::{decode, encode};

/// The keys under one Docket name.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    docket: String,
}

impl Keys {
    pub(super) fn new(docket: &str) -> Self {
        Self { docket: docket.to_owned() }
    }

    /// FastMCP's list of a session; ids stand in it as they are.
    pub(super) fn queue(&self, session: &str) -> String {
        format!("{}:fastmcp:notifications:{session}", self.docket)
    }

    /// What the bridge has taken from it and not handed on yet.
    pub(super) fn taken(&self, session: &str) -> String {
        format!("{}:courier:taken:{}", self.docket, encode(session))
    }

    /// A message that was handed to FastMCP.
    pub(super) fn put(&self, session: &str, id: &str) -> String {
        format!("{}:courier:put:{}:{}", self.docket, encode(session), encode(id))
    }

    /// State and answer of the question that a task asks.
    pub(super) fn question(&self, scope: Option<&str>, task: &str) -> (String, String) {
        let scope = scope.map_or("anon".to_owned(), |scope| format!("auth:{}", encode(scope)));
        let base = format!("{}:fastmcp:task:{scope}:{task}:elicit", self.docket);
        (format!("{base}:status"), format!("{base}:response"))
    }

    /// Sessions with a list of FastMCP's.
    pub(super) fn queues(&self) -> Pattern {
        Pattern { prefix: self.queue(""), suffix: "", kind: "list", encoded: false }
    }

    /// Sessions of which the bridge has taken something.
    pub(super) fn leftovers(&self) -> Pattern {
        Pattern { prefix: self.taken(""), suffix: "", kind: "list", encoded: true }
    }

    /// Sessions with a subscriber of FastMCP's.
    pub(super) fn subscribers(&self) -> Pattern {
        Pattern { prefix: self.queue(""), suffix: ":active", kind: "string", encoded: false }
    }
}

/// A kind of key that names a session.
pub(super) struct Pattern {
    prefix: String,
    suffix: &'static str,
    pub(super) kind: &'static str,
    encoded: bool,
}

impl Pattern {
    /// For MATCH: what is special to it is escaped.
    pub(super) fn glob(&self) -> String {
        let special = |c: char| matches!(c, '*' | '?' | '[' | ']' | '\\' | '^');
        let escaped: String =
            self.prefix.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect();
        format!("{escaped}*{}", self.suffix)
    }

    pub(super) fn session(&self, key: &str) -> Option<String> {
        let session = key.strip_prefix(&self.prefix)?.strip_suffix(self.suffix)?;
        Some(if self.encoded { decode(session) } else { session.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_fastmcp_and_lead_back_to_their_session() {
        let keys = Keys::new("fastmcp");
        assert_eq!(keys.queue("s:1"), "fastmcp:fastmcp:notifications:s:1");
        assert_eq!(keys.question(None, "t").0, "fastmcp:fastmcp:task:anon:t:elicit:status");
        assert_eq!(keys.question(Some("a|b"), "t").1, "fastmcp:fastmcp:task:auth:a%7Cb:t:elicit:response");
        for (pattern, key) in [
            (keys.queues(), keys.queue("s:1")),
            (keys.leftovers(), keys.taken("s:1")),
            (keys.subscribers(), keys.queue("s:1") + ":active"),
        ] {
            assert_eq!(pattern.session(&key).as_deref(), Some("s:1"));
        }
        assert_eq!(Keys::new("a*[b]").queues().glob(), "a\\*\\[b\\]:fastmcp:notifications:*");
    }
}
