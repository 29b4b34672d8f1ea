//! To and from OpenTelemetry, by way of `tracing-opentelemetry`.

use std::str::FromStr;

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::TraceContext;

pub(super) fn current() -> Option<TraceContext> {
    let context = tracing::Span::current().context();
    let span = context.span();
    let span = span.span_context();
    if !span.is_valid() {
        return None;
    }
    let flags = span.trace_flags() & TraceFlags::SAMPLED;
    let traceparent = format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), flags.to_u8());
    Some(TraceContext::new(traceparent).ok()?.with_tracestate(span.trace_state().header()))
}

/// Makes a span a child of what pushed the message. A span that is filtered out has no parent to set.
pub(crate) fn continue_in(span: &tracing::Span, context: &TraceContext) {
    if let Some(remote) = remote(context) {
        let _ = span.set_parent(Context::new().with_remote_span_context(remote));
    }
}

fn remote(context: &TraceContext) -> Option<SpanContext> {
    let mut parts = context.traceparent().split('-').skip(1);
    let trace = TraceId::from_hex(parts.next()?).ok()?;
    let span = SpanId::from_hex(parts.next()?).ok()?;
    let flags = TraceFlags::new(u8::from_str_radix(parts.next()?, 16).ok()?) & TraceFlags::SAMPLED;
    let state = context.tracestate().and_then(|text| TraceState::from_str(text).ok()).unwrap_or_default();
    Some(SpanContext::new(trace, span, flags, true, state))
}
