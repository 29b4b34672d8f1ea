//! Names that come from outside: sessions, messages, questions.

use std::{fmt, str::FromStr, sync::Arc};

use crate::{Error, Result};

/// Most bytes of a session id.
pub const MAX_SESSION_ID_BYTES: usize = 1024;
/// Most bytes of a topic.
pub const MAX_TOPIC_BYTES: usize = 1024;
/// Most bytes of a message id.
pub const MAX_MESSAGE_ID_BYTES: usize = 256;
/// Most bytes of a question's id.
pub const MAX_REQUEST_ID_BYTES: usize = 200;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Any UTF-8 of 1 byte up to the limit. Otherwise [`Error::Invalid`] or [`Error::TooLarge`].
            pub fn new(id: impl AsRef<str>) -> Result<Self> {
                let id = id.as_ref();
                if id.is_empty() {
                    return Err(Error::invalid($what, "is empty; it needs at least one byte"));
                }
                if id.len() > $max {
                    return Err(Error::TooLarge { what: $what, actual: id.len(), limit: $max });
                }
                Ok(Self(id.into()))
            }

            /// The id as it was given.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                // Control characters of a foreign id must not reach a terminal or split a log line.
                write!(f, "{}", self.0.escape_debug())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl FromStr for $name {
            type Err = Error;
            fn from_str(id: &str) -> Result<Self> {
                Self::new(id)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = Error;
            fn try_from(id: &str) -> Result<Self> {
                Self::new(id)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;
            fn try_from(id: String) -> Result<Self> {
                Self::new(id)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

id!(
    /// Names a client's session: whatever the MCP implementation calls it. 1 to 1,024 bytes of UTF-8.
    SessionId,
    "session id",
    MAX_SESSION_ID_BYTES
);
id!(
    /// Names a message within its session. 1 to 256 bytes of UTF-8. A push without one gets a UUID (version 7).
    MessageId,
    "message id",
    MAX_MESSAGE_ID_BYTES
);
id!(
    /// Names a question within its session. 1 to 200 bytes of UTF-8. A question without one gets a UUID (version 4).
    RequestId,
    "request id",
    MAX_REQUEST_ID_BYTES
);

impl RequestId {
    /// Not to be guessed.
    pub(crate) fn generate() -> Self {
        Self(uuid::Uuid::new_v4().to_string().into())
    }
}

id!(
    /// Names a topic: what sessions take part in and streams listen to. 1 to 1,024 bytes of UTF-8, the same in every
    /// process. For what MCP itself publishes there are [`Topic::tools`], [`Topic::prompts`], [`Topic::resources`] and
    /// [`Topic::resource`].
    Topic,
    "topic",
    MAX_TOPIC_BYTES
);

impl Topic {
    /// The list of tools changed.
    pub fn tools() -> Self {
        Self("tools".into())
    }

    /// The list of prompts changed.
    pub fn prompts() -> Self {
        Self("prompts".into())
    }

    /// The list of resources changed.
    pub fn resources() -> Self {
        Self("resources".into())
    }

    /// One resource was updated. Fails when the URI is longer than a topic may be.
    pub fn resource(uri: &str) -> Result<Self> {
        Self::new(format!("resource:{uri}"))
    }
}

impl MessageId {
    pub(crate) fn generate() -> Self {
        Self(uuid::Uuid::now_v7().to_string().into())
    }

    /// An id that another producer stored; it may break our limits and is shown as well as it can be.
    pub(crate) fn stored(bytes: &[u8]) -> Self {
        Self(String::from_utf8_lossy(bytes).into())
    }
}
