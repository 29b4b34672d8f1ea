//! What a leg needs of the request that made its task, stored with the task, and kept secret if there are keys.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::bodies::Bodies;
use crate::keys::Address;
use crate::{Error, Result, TraceContext};

/// Facts of the request that made a task, for the legs that run later and elsewhere.
///
/// Only what is put in here is stored; nothing of a request gets in by itself. The caller's identity is not in it: it is
/// the task's [`Scope`](super::Scope).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ContextSnapshot {
    /// Chosen headers of the request, names in lower case. Refused without a key ring, see
    /// [`Tasks::headers_in_clear`](super::Tasks::headers_in_clear).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// `traceparent`, `tracestate`, `baggage`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub trace: BTreeMap<String, String>,
    /// The client's capabilities, as the request declared them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Box<RawValue>>,
    /// The protocol version of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<String>,
}

impl ContextSnapshot {
    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl AsRef<str>, value: impl Into<String>) -> Self {
        self.headers.insert(name.as_ref().to_ascii_lowercase(), value.into());
        self
    }

    /// Adds a member of the trace context.
    #[must_use]
    pub fn trace(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.trace.insert(name.into(), value.into());
        self
    }

    /// Sets the client's capabilities.
    ///
    /// # Errors
    /// [`Error::Invalid`] when they cannot be written as JSON.
    pub fn capabilities(mut self, capabilities: &impl Serialize) -> Result<Self> {
        self.capabilities = Some(raw("capabilities", capabilities)?);
        Ok(self)
    }

    /// Sets the protocol version.
    #[must_use]
    pub fn protocol_version(mut self, version: impl Into<String>) -> Self {
        self.protocol_version = Some(version.into());
        self
    }
}

impl ContextSnapshot {
    /// The trace that the task was made in, when there is one that can be read.
    pub fn trace_context(&self) -> Option<TraceContext> {
        let member = |name: &str| self.trace.get(name).cloned();
        let mut context = TraceContext::new(member("traceparent")?).ok()?;
        if let Some(state) = member("tracestate") {
            context = context.with_tracestate(state);
        }
        Some(member("baggage").into_iter().fold(context, TraceContext::with_baggage))
    }

    /// Takes the trace of the current span, unless it was given one.
    pub(super) fn in_current_trace(&mut self) {
        let current = if self.trace.is_empty() { TraceContext::current() } else { None };
        let Some(current) = current else { return };
        self.trace.insert("traceparent".into(), current.traceparent().into());
        self.trace.extend(current.tracestate().map(|state| ("tracestate".into(), state.into())));
    }
}

pub(super) fn raw(what: &'static str, value: &impl Serialize) -> Result<Box<RawValue>> {
    serde_json::value::to_raw_value(value).map_err(|e| Error::invalid(what, e.to_string()))
}

/// Stored in clear.
const PLAIN: u8 = b'p';
/// Stored encrypted.
const SEALED: u8 = b's';

/// Puts away what only servers and workers read: call, context, state. With keys it is encrypted, and bound to its task
/// and its place there.
#[derive(Clone, Debug, Default)]
pub(super) struct Vault {
    #[cfg(feature = "encryption")]
    pub(super) ring: Option<crate::KeyRing>,
}

impl Vault {
    /// With the keys of the messages' bodies, if there are any.
    #[cfg_attr(not(feature = "encryption"), allow(unused_variables, reason = "there are no keys"))]
    pub(super) fn of(bodies: &Bodies) -> Self {
        Self {
            #[cfg(feature = "encryption")]
            ring: bodies.ring.clone(),
        }
    }

    pub(super) fn has_keys(&self) -> bool {
        #[cfg(feature = "encryption")]
        return self.ring.is_some();
        #[cfg(not(feature = "encryption"))]
        false
    }

    pub(super) fn close(&self, place: &str, address: &Address, plain: &[u8]) -> Vec<u8> {
        #[cfg(feature = "encryption")]
        if let Some(ring) = &self.ring {
            let mut stored = vec![SEALED];
            stored.extend(ring.seal(plain, belongs(place, address).as_bytes()));
            return stored;
        }
        let _ = (place, address);
        [&[PLAIN], plain].concat()
    }

    /// Fails closed: what cannot be opened, and what is in clear although there are keys, is an error and never empty.
    pub(super) fn open(
        &self,
        place: &str,
        address: &Address,
        stored: &Bytes,
    ) -> std::result::Result<Bytes, String> {
        #[cfg(not(feature = "encryption"))]
        let _ = address;
        match (stored.first(), self.has_keys()) {
            (Some(&PLAIN), false) => Ok(stored.slice(1..)),
            (Some(&PLAIN), true) => Err(format!("the task's {place} is in clear, but this worker has keys")),
            #[cfg(feature = "encryption")]
            (Some(&SEALED), true) => {
                let ring = self.ring.as_ref().ok_or("no key ring")?;
                ring.open(&stored[1..], belongs(place, address).as_bytes())
                    .map(Bytes::from)
                    .map_err(|why| format!("the task's {place} is {why}"))
            }
            (Some(&SEALED), _) => {
                Err(format!("the task's {place} is encrypted, and this worker has no keys"))
            }
            _ => Err(format!("the task's {place} is of a form that this version does not know")),
        }
    }
}

#[cfg(feature = "encryption")]
fn belongs(place: &str, address: &Address) -> String {
    format!("task {place} {}", address.as_str())
}
