//! From the Redis client's errors to ours. The only place that reads them.

use redis::{ErrorKind, RedisError};

use super::wrapped;
use crate::{Error, refusal};

/// The code of a refusal, and what follows it.
fn said(e: &RedisError) -> Option<(&str, &str)> {
    Some(wrapped::unwrap(e.code()?, e.detail().unwrap_or_default()))
}

/// `sent` says whether the command may have reached the server.
pub(super) fn from_redis(op: &'static str, address: &str, e: &RedisError, sent: bool) -> Error {
    if let Some((code, text)) = said(e) {
        return Error::Refused { op, code: code.to_owned(), message: text.chars().take(300).collect() };
    }
    if e.kind() == ErrorKind::AuthenticationFailed {
        return Error::Refused {
            op,
            code: "WRONGPASS".into(),
            message: "the server does not accept these credentials".into(),
        };
    }
    Error::Unreachable {
        op,
        address: address.to_owned(),
        why: e.to_string().chars().take(300).collect(),
        ambiguous: sent,
    }
}

/// A server that does not know this script (its cache is per process and not persisted).
pub(super) fn script_missing(e: &RedisError) -> bool {
    e.code() == Some("NOSCRIPT")
}

/// The connection is of no use any more.
pub(super) fn connection_over(e: &RedisError) -> bool {
    e.is_unrecoverable_error() || e.is_io_error() || e.is_connection_dropped()
}

/// This connection leads to the wrong server, or as the wrong user: another one may not.
pub(super) fn misled(e: &RedisError) -> bool {
    said(e).is_some_and(|(code, _)| refusal::of(code).reconnect)
}

/// A master that lost its replicas to a promoted one answers like this until somebody tells it, and so does one that is
/// replaced because it cannot save: in the meantime it is alive, and its connections are.
pub(super) fn replaced_perhaps(e: &RedisError) -> bool {
    matches!(said(e), Some(("NOREPLICAS" | "MISCONF", _)))
}
