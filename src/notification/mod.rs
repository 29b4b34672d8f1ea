//! An MCP notification as a value. The queue itself carries bytes and never looks inside.

mod builder;
mod kinds;
mod names;
mod task;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use self::builder::NotificationBuilder;
pub use self::kinds::LogLevel;
pub use self::task::{RELATED_TASK, TaskNote, TaskState};
use crate::{Error, Result, TraceContext};

/// A JSON-RPC notification of MCP: `method`, `params`, and `_meta` inside the params, as the specification has it.
///
/// The wire form is `{"method":…,"params":{…,"_meta":{…}}}`, without the `jsonrpc` member that a transport adds.
/// Methods and members that this crate does not know pass through unchanged, members beside `method` and `params`
/// included. This is a view, made by a JSON parser: what has to stay the same to the byte (the order of members, numbers
/// of more than 64 bits) is pushed as bytes with [`Push::new`](crate::Push::new) and read with
/// [`Delivery::body`](crate::Delivery::body).
///
/// For the notifications that MCP defines there is a function each, as [`Notification::progress`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Notification {
    /// As in `notifications/progress`.
    pub method: String,
    /// The notification's own members; absent when there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Map<String, Value>>,
    /// What stood beside them. Only filled by parsing, so that no name can be there twice.
    #[serde(flatten)]
    beside: Map<String, Value>,
}

impl Notification {
    /// A notification without params.
    pub fn new(method: impl Into<String>) -> Self {
        Self { method: method.into(), params: None, beside: Map::new() }
    }

    /// Sets one member of the params.
    #[must_use]
    pub fn param(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.params.get_or_insert_with(Map::new).insert(name.into(), value.into());
        self
    }

    /// Sets one member of the params, or leaves it out.
    #[must_use]
    fn maybe(self, name: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.param(name, value),
            None => self,
        }
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

    /// One member of `params._meta`.
    pub fn meta_value(&self, name: &str) -> Option<&Value> {
        self.params.as_ref()?.get("_meta")?.as_object()?.get(name)
    }

    /// Members that stood beside `method` and `params` when this was parsed, the `jsonrpc` version left out.
    pub fn beside(&self) -> &Map<String, Value> {
        &self.beside
    }

    /// Puts a trace context into `params._meta`, as `traceparent`, `tracestate` and `baggage`.
    #[must_use]
    pub fn trace_context(self, context: &TraceContext) -> Self {
        context.members().fold(self, |notification, (name, value)| notification.meta(name, value))
    }

    /// The trace context in `params._meta`; none when there is none, or no valid one.
    pub fn traced(&self) -> Option<TraceContext> {
        TraceContext::from_members(|name| self.meta_value(name)?.as_str())
    }

    /// The key under which a newer one of these may take the place of an older one, where MCP's meaning allows it: the
    /// method for `list_changed`, the method and the resource for `resources/updated`. None for all others.
    pub fn coalescing_key(&self) -> Option<String> {
        kinds::coalescing_key(self)
    }

    /// Parses a notification.
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
        let mut parsed: Self = serde_json::from_slice(json).map_err(|e| e.to_string())?;
        parsed.beside.remove("jsonrpc");
        Ok(parsed)
    }

    pub(crate) fn to_json(&self) -> Result<Vec<u8>> {
        names::check_method(&self.method)?;
        serde_json::to_vec(self).map_err(|e| Error::invalid("notification", e.to_string()))
    }
}
