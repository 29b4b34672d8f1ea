//! What comes back: from the client, and to the worker.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Error, Result};

/// The outcome of a question whose answer has a content.
pub(super) const ACCEPTED: &str = "accepted";

/// The content of an accepted answer: JSON, byte for byte as it was given.
///
/// For an elicitation it is the form's content (`null` when there was none, as after a URL); for sampling and roots the
/// result of the request.
#[derive(Clone, PartialEq, Eq)]
pub struct Content(Bytes);

impl Content {
    /// Takes JSON text.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is none.
    pub fn from_json(json: impl Into<Vec<u8>>) -> Result<Self> {
        let json = json.into();
        serde_json::from_slice::<serde::de::IgnoredAny>(&json)
            .map_err(|e| Error::invalid("content", e.to_string()))?;
        Ok(Self(json.into()))
    }

    pub(crate) fn stored(bytes: Bytes) -> Self {
        Self(if bytes.is_empty() { Bytes::from_static(b"null") } else { bytes })
    }

    /// The JSON text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// As a value; null when somebody stored what is no JSON.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.0).unwrap_or(Value::Null)
    }

    /// As a type of the caller's.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the content does not have that shape.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.0).map_err(|e| Error::invalid("content", e.to_string()))
    }
}

impl From<Value> for Content {
    fn from(value: Value) -> Self {
        Self(value.to_string().into())
    }
}

/// Keeps what users said out of logs.
impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Content({} bytes)", self.0.len())
    }
}

/// What the client said.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// Yes, with the content. Results of sampling and roots are this as well.
    Accept(Content),
    /// The user said no.
    Decline,
    /// The user dismissed it without saying.
    Cancel,
}

impl Answer {
    /// Yes, with this content.
    pub fn accept(content: impl Into<Value>) -> Self {
        Self::Accept(Content::from(content.into()))
    }
}

/// What became of a question, as the worker hears it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The client answered, with this content.
    Accepted(Content),
    /// The user said no.
    Declined,
    /// The user dismissed the question, the client cannot be asked such a thing, it failed, or the question was
    /// withdrawn.
    Cancelled,
    /// Nobody answered in time.
    TimedOut,
    /// The session ended, or nobody served it for as long as the question's grace.
    SessionGone,
}

impl Outcome {
    /// One word, as it is stored and as a log shows it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Accepted(_) => ACCEPTED,
            Self::Declined => "declined",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed_out",
            Self::SessionGone => "session_gone",
        }
    }

    pub(crate) fn stored(word: &str, content: Bytes) -> Option<Self> {
        Some(match word {
            ACCEPTED => Self::Accepted(Content::stored(content)),
            "declined" => Self::Declined,
            "cancelled" => Self::Cancelled,
            "timed_out" => Self::TimedOut,
            "session_gone" => Self::SessionGone,
            _ => return None,
        })
    }
}

/// Why an answer did not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no such question, or it is long over.
    #[error("there is no such question")]
    Unknown,
    /// The question belongs to another scope.
    #[error("the question belongs to another scope")]
    OtherScope,
    /// Another answer was first.
    #[error("the question was answered already")]
    AlreadyAnswered,
    /// The time of the question is over.
    #[error("the answer is too late")]
    Late,
    /// The question ended without an answer: withdrawn, or its session gone.
    #[error("the question is closed")]
    Closed,
    /// The content does not fit the requested schema. The question stays open: answer again.
    #[error("the content does not fit the requested schema: {0}")]
    Mismatch(String),
}

/// Why an answer was not stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// It does not count.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It could not be stored: whoever answered must not be told that it was.
    #[error(transparent)]
    Store(#[from] Error),
}
