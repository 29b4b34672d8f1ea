//! The OpenTelemetry spans of one test.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use tracing::subscriber::DefaultGuard;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;

use super::wait::wait_until;

/// Takes every span of this thread while it lives.
pub struct Traces {
    ended: Ended,
    _provider: SdkTracerProvider,
    _guard: DefaultGuard,
}

#[derive(Clone, Debug, Default)]
struct Ended(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Ended {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().expect("not poisoned").extend(batch);
        Ok(())
    }
}

impl Traces {
    pub fn start() -> Self {
        super::capture::share_call_sites();
        let ended = Ended::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(ended.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
        Self { ended, _provider: provider, _guard: guard }
    }

    /// Until that many spans of a name ended in a trace.
    pub async fn wait_for(&self, name: &str, trace_id: &str, count: usize) {
        wait_until(&format!("{count} spans {name} in {trace_id}"), Duration::from_secs(10), || async {
            let ended = self.ended.0.lock().expect("not poisoned");
            let found =
                ended.iter().filter(|s| s.name == name && s.span_context.trace_id().to_string() == trace_id);
            match found.count() {
                n if n == count => Ok(()),
                n => Err(format!("{n} of {} spans", ended.len())),
            }
        })
        .await;
    }
}

/// The trace that a span is in.
pub fn trace_id(span: &tracing::Span) -> String {
    span.context().span().span_context().trace_id().to_string()
}
