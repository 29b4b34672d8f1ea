//! An MCP notification as a value. The queue itself carries bytes and never looks inside.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Error, Result};

/// A JSON-RPC notification of MCP: `method`, `params`, and `_meta` inside the params, as the specification has it.
///
/// The wire form is `{"method":…,"params":{…,"_meta":{…}}}`, without the `jsonrpc` member that a transport adds.
/// Methods and members that this crate does not know pass through unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Notification {
    /// As in `notifications/progress`.
    pub method: String,
    /// The notification's own members; absent when there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Map<String, Value>>,
}

impl Notification {
    /// A notification without params.
    pub fn new(method: impl Into<String>) -> Self {
        Self { method: method.into(), params: None }
    }

    /// Sets one member of the params.
    #[must_use]
    pub fn param(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.params.get_or_insert_with(Map::new).insert(name.into(), value.into());
        self
    }

    /// Replaces the params.
    #[must_use]
    pub fn params(mut self, params: Map<String, Value>) -> Self {
        self.params = Some(params);
        self
    }

    /// Sets one member of `params._meta`. What stood under `_meta` and is no object is replaced.
    #[must_use]
    pub fn meta(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        let params = self.params.get_or_insert_with(Map::new);
        let meta = params.entry("_meta").or_insert_with(|| Value::Object(Map::new()));
        if !meta.is_object() {
            *meta = Value::Object(Map::new());
        }
        if let Value::Object(meta) = meta {
            meta.insert(name.into(), value.into());
        }
        self
    }

    /// Parses a notification. Extra members beside `method` and `params` are not kept.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the text is no JSON object with a `method`.
    pub fn from_json(json: &[u8]) -> Result<Self> {
        Self::parse(json).map_err(|why| Error::invalid("notification", why))
    }

    /// The derived parser alone would read `["method"]` as well: to serde an array of the fields is a struct.
    pub(crate) fn parse(json: &[u8]) -> std::result::Result<Self, String> {
        if json.trim_ascii_start().first() != Some(&b'{') {
            return Err("it is no JSON object".into());
        }
        serde_json::from_slice(json).map_err(|e| e.to_string())
    }

    pub(crate) fn to_json(&self) -> Result<Vec<u8>> {
        if self.method.is_empty() {
            return Err(Error::invalid(
                "notification method",
                "is empty; it needs a name like notifications/progress",
            ));
        }
        serde_json::to_vec(self).map_err(|e| Error::invalid("notification", e.to_string()))
    }
}
