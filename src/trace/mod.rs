//! W3C trace context: how a client's, a worker's and a server's part of one trace find each other.

#[cfg(feature = "otel")]
mod otel;

#[cfg(feature = "otel")]
pub(crate) use self::otel::continue_in;

use crate::{Error, Result};

/// Most bytes of trace context in a record.
pub(crate) const MAX_TRACE_BYTES: usize = 512;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
const BAGGAGE: &str = "baggage";

/// A trace context as W3C writes it, and as MCP carries it in `_meta`: `traceparent`, and perhaps `tracestate` and
/// `baggage`.
///
/// With the feature `otel` a push inside a `tracing` span takes the span's context along, in the record and in the
/// notification's `_meta`, and the span of the delivery continues it; nothing needs to be called. Without it, or for
/// another tracing system: [`Push::trace_context`](crate::Push::trace_context),
/// [`Notification::trace_context`](crate::Notification::trace_context) and
/// [`Delivery::trace_context`](crate::Delivery::trace_context).
///
/// Baggage goes along only when it is set here: it often holds what a client should not see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    traceparent: String,
    tracestate: Option<String>,
    baggage: Option<String>,
}

impl TraceContext {
    /// Takes a `traceparent`, as `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is none.
    pub fn new(traceparent: impl Into<String>) -> Result<Self> {
        let traceparent = traceparent.into();
        if !is_traceparent(&traceparent) {
            let hint = "is not <2 hex>-<32 hex>-<16 hex>-<2 hex> in lower case with ids other than zero";
            return Err(Error::invalid(TRACEPARENT, hint));
        }
        Ok(Self { traceparent, tracestate: None, baggage: None })
    }

    /// Adds what vendors want to hand on. Ignored when it is empty or holds a control character.
    #[must_use]
    pub fn with_tracestate(mut self, tracestate: impl Into<String>) -> Self {
        self.tracestate = Some(tracestate.into()).filter(|text| is_line(text));
        self
    }

    /// Adds properties that everybody on the way can read. Ignored when it is empty or holds a control character.
    #[must_use]
    pub fn with_baggage(mut self, baggage: impl Into<String>) -> Self {
        self.baggage = Some(baggage.into()).filter(|text| is_line(text));
        self
    }

    /// Trace, parent span and flags.
    pub fn traceparent(&self) -> &str {
        &self.traceparent
    }

    /// What vendors hand on.
    pub fn tracestate(&self) -> Option<&str> {
        self.tracestate.as_deref()
    }

    /// Properties that everybody on the way can read.
    pub fn baggage(&self) -> Option<&str> {
        self.baggage.as_deref()
    }

    /// The context of the current `tracing` span, without its baggage. None outside of a sampled or recorded trace.
    #[cfg(feature = "otel")]
    pub fn current() -> Option<Self> {
        otel::current()
    }

    #[cfg(not(feature = "otel"))]
    pub(crate) fn current() -> Option<Self> {
        None
    }

    /// Name and value, as they stand in `_meta`.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let rest = [(TRACESTATE, &self.tracestate), (BAGGAGE, &self.baggage)];
        let rest = rest.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
        std::iter::once((TRACEPARENT, self.traceparent.as_str())).chain(rest)
    }

    pub(crate) fn from_members<'a>(value: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        let context = Self::new(value(TRACEPARENT)?).ok()?;
        let context =
            value(TRACESTATE).map_or_else(|| context.clone(), |s| context.clone().with_tracestate(s));
        Some(match value(BAGGAGE) {
            Some(baggage) => context.with_baggage(baggage),
            None => context,
        })
    }

    /// As it stands in a record: up to three lines. What does not fit is left out, the baggage first.
    pub(crate) fn to_text(&self) -> String {
        let (state, baggage) = (self.tracestate().unwrap_or(""), self.baggage().unwrap_or(""));
        for lines in [&[&self.traceparent, state, baggage][..], &[&self.traceparent, state]] {
            let text = lines.join("\n");
            let text = text.trim_end_matches('\n');
            if text.len() <= MAX_TRACE_BYTES {
                return text.to_owned();
            }
        }
        self.traceparent.clone()
    }

    pub(crate) fn from_text(text: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(text).ok()?.split('\n');
        let context = Self::new(lines.next()?).ok()?;
        let (state, baggage) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""));
        Some(context.with_tracestate(state).with_baggage(baggage))
    }
}

fn is_line(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(char::is_control)
}

/// A later version may have more behind the flags; version 255 does not exist.
fn is_traceparent(text: &str) -> bool {
    let hex = |part: &str, len: usize| {
        part.len() == len && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let mut parts = text.split('-');
    let mut next = |len: usize| parts.next().filter(|part| hex(part, len));
    let (Some(version), Some(trace), Some(span), Some(_flags)) = (next(2), next(32), next(16), next(2))
    else {
        return false;
    };
    let zero = |id: &str| id.bytes().all(|b| b == b'0');
    version != "ff"
        && !zero(trace)
        && !zero(span)
        && is_line(text)
        && (version != "00" || text.len() == 55)
        && text.len() <= 256
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_checked() {
        assert!(is_traceparent(PARENT));
        assert!(is_traceparent(
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-the-future-brings"
        ));
        for bad in [
            "",
            "00",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        ] {
            assert!(TraceContext::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_written_is_read_and_what_does_not_fit_is_left_out() {
        let context = TraceContext::new(PARENT).expect("valid");
        for context in [
            context.clone(),
            context.clone().with_tracestate("a=1,b=2"),
            context.clone().with_baggage("user=7"),
            context.clone().with_tracestate("a=1").with_baggage("user=7"),
        ] {
            assert_eq!(TraceContext::from_text(context.to_text().as_bytes()), Some(context));
        }
        let long = context.clone().with_tracestate("a=1").with_baggage("x".repeat(500));
        assert_eq!(
            TraceContext::from_text(long.to_text().as_bytes()),
            Some(context.clone().with_tracestate("a=1"))
        );
        let longer = context.clone().with_tracestate("x".repeat(500));
        assert_eq!(longer.to_text(), PARENT);
        assert_eq!(context.clone().with_baggage("a\nb"), context);
        assert_eq!(TraceContext::from_text(b"something of another system"), None);
        assert_eq!(TraceContext::from_text(b"\xff"), None);
    }
}
