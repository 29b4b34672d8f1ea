//! A bridge to the notification queue of FastMCP 3, both ways.
//!
//! [`FastMcp::run_to_courier`] brings what FastMCP 3 workers push into our queues: then the server can be replaced first.
//! [`FastMcp::run_to_fastmcp`] brings what is in our queues to FastMCP 3 subscribers: then the workers can. The bridge has
//! one connection of its own to FastMCP's server, which may be ours as well. `docs/mcp.md` says what each side can lose.

mod convert;
mod keys;
mod to_courier;
mod to_fastmcp;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::keys::{Keys, Pattern};
pub use self::to_courier::Brought;
pub use self::to_fastmcp::FastMcpSink;
use crate::connection::{Commands, Endpoint, Tls};
use crate::{Courier, Error, Result, SessionId, script};

/// FastMCP's own life of a queue after the last push.
const THEIR_TTL: Duration = Duration::from_secs(300);
/// FastMCP's own life of an answer.
const ANSWER_TTL: Duration = Duration::from_secs(3600);
/// How long a repeated hand-over is known, either way.
const KNOWN: Duration = Duration::from_secs(3600);

/// FastMCP 3's side, and the courier that is ours.
///
/// Cheap to clone. The connection ends with the last clone.
#[derive(Clone)]
pub struct FastMcp {
    courier: Courier,
    /// To FastMCP's server.
    theirs: Commands,
    address: String,
    keys: Keys,
    look_every: Duration,
    _guard: Arc<DropGuard>,
}

impl std::fmt::Debug for FastMcp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FastMcp")
            .field("server", &self.address)
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

/// Whose messages a bridge carries.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sessions {
    /// These.
    These(Vec<SessionId>),
    /// All that have something to carry: found by a SCAN through FastMCP's server each second. On a large server that
    /// holds much besides, name them.
    All,
}

/// What the user did with a question, in the words of MCP.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Answer {
    /// The user answered with this content.
    Accept(serde_json::Map<String, serde_json::Value>),
    /// The user declined.
    Decline,
    /// The user closed it without a choice, or could not be asked.
    Cancel,
}

impl FastMcp {
    /// Connects to FastMCP's server: the one of `FASTMCP_DOCKET_URL`. `docket` is `FASTMCP_DOCKET_NAME`, by default
    /// `fastmcp`; on a cluster in braces, as in `{fastmcp}`.
    ///
    /// # Errors
    /// As [`Builder::connect`](crate::Builder::connect).
    ///
    /// # Cancel safety
    /// Dropping the future closes what it opened.
    pub async fn connect(courier: &Courier, url: impl AsRef<str>, docket: &str) -> Result<Self> {
        if docket.is_empty() {
            return Err(Error::invalid("docket name", "is empty; FastMCP's default is fastmcp"));
        }
        let endpoint = Endpoint::parse(url.as_ref(), &Tls::default())?;
        let config = &courier.core.config;
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        let (address, counters) = (endpoint.address.clone(), courier.core.counters.clone());
        let (connect, call) = (config.connect_timeout, config.call_timeout);
        let theirs = Commands::open(endpoint, connect, call, counters, stop).await?;
        Ok(Self {
            courier: courier.clone(),
            theirs,
            address,
            keys: Keys::new(docket),
            look_every: Duration::from_millis(100),
            _guard: Arc::new(guard),
        })
    }

    /// How often to look for messages of FastMCP's workers; 100 ms without it. One script call for each 128 sessions.
    #[must_use]
    pub fn look_every(mut self, pause: Duration) -> Self {
        self.look_every = pause.max(Duration::from_millis(1));
        self
    }

    /// Gives an answer to the question of a FastMCP 3 task, whose worker waits for it. `scope` is the `task_scope` of the
    /// question's `related-task` metadata, none when that is null. False when nobody waits for it any more: it was
    /// answered before, or its time is over. Redis: `lua/fastmcp_answer.lua`.
    ///
    /// # Errors
    /// As [`Courier::push`], without its retries. The first answer counts: repeating it is safe.
    ///
    /// # Cancel safety
    /// A dropped call may have given the answer.
    pub async fn answer(&self, scope: Option<&str>, task_id: &str, answer: &Answer) -> Result<bool> {
        let (action, content) = match answer {
            Answer::Accept(content) => ("accept", Some(content)),
            Answer::Decline => ("decline", None),
            Answer::Cancel => ("cancel", None),
        };
        let text = serde_json::json!({"action": action, "content": content}).to_string();
        let (status, response) = self.keys.question(scope, task_id);
        script::fastmcp_answer(&self.theirs, (&status, &response), text.as_bytes(), ANSWER_TTL).await
    }

    /// Sessions that a kind of key names. Ids that are none of ours are left alone.
    async fn find(&self, pattern: &Pattern) -> Result<BTreeSet<SessionId>> {
        let mut found = BTreeSet::new();
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor)
                .arg("MATCH")
                .arg(pattern.glob())
                .arg("COUNT")
                .arg(1000)
                .arg("TYPE")
                .arg(pattern.kind);
            let answer = self.theirs.raw("scan", scan).await?;
            let (next, keys) = page(answer)?;
            let sessions = keys.iter().filter_map(|key| pattern.session(key));
            found.extend(sessions.filter_map(|session| SessionId::new(session).ok()));
            if next == "0" {
                return Ok(found);
            }
            cursor = next;
        }
    }
}

/// A page of SCAN.
fn page(answer: Value) -> Result<(String, Vec<String>)> {
    let text = |value: Value| match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    };
    let parts = match answer {
        Value::Array(parts) => <[Value; 2]>::try_from(parts).ok(),
        _ => None,
    };
    if let Some([cursor, Value::Array(keys)]) = parts
        && let Some(cursor) = text(cursor)
    {
        return Ok((cursor, keys.into_iter().filter_map(text).collect()));
    }
    Err(Error::Reply { op: "scan", got: "no cursor and keys".into() })
}
