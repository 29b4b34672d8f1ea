//! Notifications as values: what MCP defines, what it does not know, and the trace they belong to.

use std::time::Duration;

use mcp_courier::{Notification, Push, TraceContext};
use serde_json::json;

use crate::support::fixture::{Fixture, Recorder, session};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// What the crate does not know it does not touch: not to the byte in the body, not to the member in the view.
#[tokio::test]
async fn unknown_methods_and_members_pass_through_unchanged() {
    let t = Fixture::new("unknown").await;
    let courier = t.courier().await;
    let s = session("s");
    // Order, spaces, an exponent, a number beyond 64 bits, members beside the known ones: all as they came.
    let body = r#"{ "_meta":{"z":1,"a":[]}, "method":"vendor/x", "later": {"k":null},
        "params":{"b":1e2,"a":123456789012345678901234567890,"_meta":{"example.com/y":{}}} }"#;
    courier.push(Push::new(&s, body)).await.expect("queued");
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(1).await, [body]);

    let seen = sink.seen()[0].notification().expect("a notification");
    assert_eq!((seen.method.as_str(), seen.beside().len()), ("vendor/x", 2));
    assert_eq!(seen.beside()["_meta"], json!({"z": 1, "a": []}));
    assert_eq!(seen.meta_value("example.com/y"), Some(&json!({})));

    // Parsed and pushed on, they are still there.
    courier.push_notification(&s, &seen).await.expect("queued");
    sink.wait_for(2).await;
    assert_eq!(sink.seen()[1].notification(), Ok(seen));
    // The transport's own member is the transport's to add.
    let n = Notification::from_json(br#"{"jsonrpc":"2.0","method":"x"}"#).expect("parsed");
    assert_eq!(n, Notification::new("x"));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A worker's trace context reaches the client in `_meta`, and the sink beside the message; whichever way it was set.
#[tokio::test]
async fn a_trace_context_travels_in_the_metadata_and_in_the_record() {
    let t = Fixture::new("traced").await;
    let courier = t.courier().await;
    let s = session("s");
    let context = TraceContext::new(PARENT).expect("valid").with_tracestate("a=1").with_baggage("tenant=7");
    let n = Notification::tools_list_changed().trace_context(&context);
    courier.push_notification(&s, &n).await.expect("queued");
    courier.push(Push::new(&s, "no JSON").trace_context(&context)).await.expect("queued");
    let foreign = format!(r#"{{"method":"x","params":{{"_meta":{{"traceparent":"{PARENT}"}}}}}}"#);
    courier.push(Push::new(&s, foreign).trace("another system's")).await.expect("queued");
    courier
        .push(Push::new(&s, format!(r#"{{"method":"x","params":{{"_meta":{{"traceparent":"{PARENT}"}}}}}}"#)))
        .await
        .expect("queued");
    courier
        .push(Push::new(&s, r#"{"method":"x","params":{"_meta":{"traceparent":"no such thing"}}}"#))
        .await
        .expect("queued");

    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    sink.wait_for(5).await;
    let seen = sink.seen();
    assert_eq!(seen[0].notification().expect("JSON").traced(), Some(context.clone()));
    let found: Vec<_> = seen.iter().map(mcp_courier::Delivery::trace_context).collect();
    let bare = TraceContext::new(PARENT).expect("valid");
    assert_eq!(found, [Some(context.clone()), Some(context), None, Some(bare), None]);
    assert_eq!(seen[2].trace(), b"another system's");
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// F47: nothing of the pushing process but what was given goes into Redis.
#[cfg(feature = "otel")]
#[tokio::test]
async fn f47_baggage_of_the_worker_goes_nowhere_by_itself() {
    use opentelemetry::baggage::BaggageExt;
    use tracing::Instrument;
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    let t = Fixture::new("f47_baggage").await;
    let courier = t.courier().await;
    let (s, _traces) = (session("s"), crate::support::otel::Traces::start());
    let canary = "canary-5f1c";
    let span = tracing::info_span!("work");
    let carried = opentelemetry::KeyValue::new("authorization", canary);
    span.set_parent(opentelemetry::Context::new().with_baggage([carried])).expect("a new span");
    let n = Notification::tools_list_changed();
    courier.push_notification(&s, &n).instrument(span).await.expect("queued");
    let records: Vec<Vec<u8>> = t.ask(&format!("LRANGE {} 0 -1", t.key("q", "s"))).await;
    let stored = String::from_utf8_lossy(&records[0]).into_owned();
    assert!(stored.contains("traceparent") && !stored.contains(canary), "{stored}");
    courier.subscribers().ensure_running(&s, Recorder::new()).await.expect("claimed");
    crate::support::fixture::wait_pending(&courier, &s, 0).await;
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The span of the delivery is a child of the span that pushed, in another process as in this one.
#[cfg(feature = "otel")]
#[tokio::test]
async fn a_push_inside_a_span_is_continued_by_the_delivery() {
    use crate::support::otel;
    use tracing::Instrument;

    let t = Fixture::new("otel").await;
    let (worker, server) = (t.courier().await, t.courier().await);
    let (s, traces) = (session("s"), otel::Traces::start());
    let span = tracing::info_span!("work");
    let trace_id = otel::trace_id(&span);
    worker
        .push_notification(&s, &Notification::progress("t", 1.0))
        .instrument(span.clone())
        .await
        .expect("queued");
    worker.push(Push::new(&s, "bytes")).instrument(span).await.expect("queued");
    let sink = Recorder::new();
    server.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    sink.wait_for(2).await;
    for delivery in sink.seen() {
        let context = delivery.trace_context().expect("traced");
        assert_eq!(context.traceparent().split('-').nth(1), Some(&*trace_id));
    }
    let n = sink.seen()[0].notification().expect("JSON");
    assert_eq!(n.traced(), sink.seen()[0].trace_context(), "the client sees the same");
    traces.wait_for("deliver", &trace_id, 2).await;
    server.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}
