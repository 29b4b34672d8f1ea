//! Why an operation did not happen.

use std::time::Duration;

use crate::refusal::{self, Again};
use crate::{MessageId, SessionId};

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation did not happen.
///
/// Cloneable, because one failed round trip may answer many callers. No type of the Redis client appears here.
/// Secrets never do: addresses are shown without user and password, and message bodies not at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value given by the caller is not usable. Nothing was sent.
    #[error("{what}: {why}")]
    Invalid {
        /// What was wrong, as in `session id`.
        what: &'static str,
        /// Why, and what would be right.
        why: String,
    },
    /// A value is larger than its limit. Nothing was sent.
    #[error("{what} has {actual} bytes, the limit is {limit}; raise the limit in the builder, or send less")]
    TooLarge {
        /// What was too large, as in `body`.
        what: &'static str,
        /// Its size in bytes.
        actual: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The session has as many pending messages as it may have. Nothing was queued.
    #[error(
        "the queue of session {session} is full with {pending} pending messages (limit {limit}); \
         deliver or purge some, raise `max_pending`, or push with `OnFull::DropOldest`"
    )]
    QueueFull {
        /// The session.
        session: SessionId,
        /// How many messages are pending.
        pending: u64,
        /// The limit that was in force.
        limit: u64,
    },
    /// This process serves as many sessions as it may.
    #[error(
        "this process serves {limit} sessions, its limit; raise `max_sessions`, or serve the session elsewhere"
    )]
    TooManySessions {
        /// The limit.
        limit: usize,
    },
    /// The message is queued, and fewer replicas than [`Push::wait_replicas`](crate::Push::wait_replicas) asked for have it.
    #[error(
        "message {id} is queued, and {confirmed} of {wanted} replicas have it after {within:?}; pushing it again with this \
         id waits again"
    )]
    NotReplicated {
        /// The message.
        id: MessageId,
        /// How many replicas have it, at least.
        confirmed: u64,
        /// How many were asked for.
        wanted: u64,
        /// How long was waited.
        within: Duration,
    },
    /// No server could be reached, or the connection was lost on the way.
    #[error("{op}: no connection to {address}: {why}{}", unknown_outcome(*ambiguous))]
    Unreachable {
        /// The operation: the name of a script, or `connect`.
        op: &'static str,
        /// The server's address, without credentials.
        address: String,
        /// What the system said.
        why: String,
        /// True when the server may have done it.
        ambiguous: bool,
    },
    /// No answer within the deadline.
    #[error("{op}: no answer from {address} within {after:?}{}", unknown_outcome(*ambiguous))]
    Timeout {
        /// The operation: the name of a script, or `connect`.
        op: &'static str,
        /// The server's address, without credentials.
        address: String,
        /// How long was waited.
        after: Duration,
        /// True when the server may have done it.
        ambiguous: bool,
    },
    /// The server refused. Nothing was changed by this operation. With the operation `wait`: the message is queued, and
    /// the server does not say how many replicas have it.
    #[error("{op}: the server refused: {code} {message}{}", advice(code))]
    Refused {
        /// The operation: the name of a script, or `connect`.
        op: &'static str,
        /// The first word of the server's error, as in `OOM` or `READONLY`.
        code: String,
        /// The rest of it.
        message: String,
    },
    /// A script answered in a shape that this version does not know.
    #[error("{op}: unexpected reply: {got}; are two versions of the scripts in use under one prefix?")]
    Reply {
        /// The script.
        op: &'static str,
        /// What came, shortened; never a message body.
        got: String,
    },
    /// Another process, or a newer subscription of this one, claimed the session; this one has stopped serving it.
    #[error("session {session} was claimed by another process, or by a newer subscription")]
    Superseded {
        /// The session.
        session: SessionId,
    },
    /// The body of a message is not a notification.
    #[error("message {id} is not a notification: {why}")]
    NotANotification {
        /// The message.
        id: MessageId,
        /// What the parser said.
        why: String,
    },
    /// There is no such task for this caller: it never was, it expired, or it is another scope's. The three look the same.
    #[error("task not found")]
    TaskNotFound,
    /// Too many legs of tasks are waiting for workers. Nothing was stored.
    #[error("{queued} legs of tasks are waiting (limit {limit}); start more workers, or raise `max_queued`")]
    TasksFull {
        /// How many are waiting or running.
        queued: u64,
        /// The limit that was in force.
        limit: u64,
    },
    /// The stored messages are spread over another number of partitions than this process is set to.
    #[error(
        "this prefix is spread over {stored} partitions, this courier is set to {configured}; use the stored number, or \
         another prefix"
    )]
    Layout {
        /// What is stored.
        stored: u64,
        /// What this courier is set to.
        configured: u64,
    },
    /// The courier was shut down.
    #[error("{op}: the courier was shut down")]
    Closed {
        /// The operation.
        op: &'static str,
    },
}

fn unknown_outcome(ambiguous: bool) -> &'static str {
    if ambiguous {
        " (outcome unknown: it may have been done; repeating it with the same id is safe)"
    } else {
        ""
    }
}

fn advice(code: &str) -> String {
    match refusal::of(code).advice {
        "" => String::new(),
        advice => format!(" ({advice})"),
    }
}

impl Error {
    /// Repeating the operation later may succeed, with nothing changed by the caller.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Timeout { .. } | Self::QueueFull { .. } => true,
            Self::TasksFull { .. } | Self::NotReplicated { .. } => true,
            Self::Refused { code, .. } => refusal::of(code).retryable,
            _ => false,
        }
    }

    /// The server may or may not have done it. A push is safe to repeat with the same id.
    pub fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Unreachable { ambiguous: true, .. } | Self::Timeout { ambiguous: true, .. })
    }

    /// Another process owns the session now.
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Superseded { .. })
    }

    /// Worth another try at once by ourselves: the connection went, or the server says that this will pass.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Timeout { .. } => true,
            Self::Refused { code, .. } => refusal::of(code).again != Again::No,
            _ => false,
        }
    }

    /// What kind of trouble this is, for those who tell each kind once: without the words that change from one try to
    /// the next.
    pub(crate) fn trouble(&self) -> String {
        match self {
            Self::Refused { code, .. } => code.clone(),
            Self::Unreachable { .. } => "unreachable".into(),
            Self::Timeout { .. } => "timeout".into(),
            other => other.to_string(),
        }
    }

    pub(crate) fn invalid(what: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid { what, why: why.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_says_what_to_do_or_what_is_wrong() {
        let session = SessionId::new("s").expect("valid");
        let full = Error::QueueFull { session, pending: 10, limit: 10 };
        assert!(full.to_string().contains("raise `max_pending`"));
        let lost = Error::Timeout {
            op: "push",
            address: "h:1".into(),
            after: Duration::from_secs(1),
            ambiguous: true,
        };
        assert!(lost.to_string().contains("outcome unknown"));
        assert!(lost.is_ambiguous() && lost.is_retryable());
        let oom = Error::Refused { op: "push", code: "OOM".into(), message: "command not allowed".into() };
        assert!(oom.to_string().contains("raise maxmemory"));
        assert!(oom.is_retryable() && !oom.is_ambiguous());
        let wrong = Error::Refused { op: "push", code: "WRONGTYPE".into(), message: String::new() };
        assert!(!wrong.is_retryable());
    }
}
