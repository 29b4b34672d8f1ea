//! rmcp's event store, in Redis: what was sent on a stream can be read again, at any replica.

use std::sync::Arc;

use rmcp::transport::common::server_side_http::ServerSseMessage;
use rmcp::transport::streamable_http_server::session::{EventId, EventStore, EventStoreError, EventStream};
use tokio_util::sync::CancellationToken;

use super::hub::Hub;
use super::limits::ms;
use super::{tail, wire};
use crate::script::{self, Append};
use crate::{Error, Result};

/// The event logs of [`Sessions`](super::Sessions).
pub(super) struct Events(pub(super) Arc<Hub>);

#[async_trait::async_trait]
impl EventStore for Events {
    async fn store_event(
        &self,
        stream_id: &str,
        event: &ServerSseMessage,
    ) -> std::result::Result<EventId, EventStoreError> {
        let hub = &self.0;
        // The writer needs a lease: readers of a stream ask whether somebody will go on writing.
        hub.start().await?;
        let mut event = event.clone();
        if let Some(message) = &mut event.message {
            wire::name_requests(&hub.name, Arc::make_mut(message));
        }
        let bytes = wire::encode_event(&event)?;
        let (core, limits) = (&hub.courier.core, &hub.limits);
        let (stream, nonce) = (Hub::stream_key(stream_id), uuid::Uuid::new_v4().simple().to_string());
        let append = Append {
            stream: &stream,
            event: &bytes,
            nonce: &nonce,
            writer: &hub.name,
            ttl_ms: ms(limits.event_ttl),
            max_events: limits.max_events.into(),
            max_bytes: limits.max_event_bytes as u64,
            handoff_bytes: core.config.handoff_bytes as u64,
        };
        let keys = hub.keys_of(Hub::home_of(stream_id));
        let number = hub
            .courier
            .repeat("event_append", || script::event_append(&core.cmd, keys, &append), true)
            .await?;
        Ok(format!("{}/{number}", stream.as_str()))
    }

    /// The stream stays open: what any replica appends follows. One of a single request ends with its response.
    async fn replay_events_after(
        &self,
        last_event_id: &str,
    ) -> std::result::Result<EventStream, EventStoreError> {
        let (stream, number) = parse(last_event_id)?;
        let from = tail::From::Event(number);
        Ok(Box::pin(tail::open(&self.0, &stream, from, CancellationToken::new()).await?))
    }
}

/// The stream and the number that an event's id names.
pub(super) fn parse(event_id: &str) -> Result<(String, u64)> {
    let wrong = || Error::invalid("event id", "is none of this server's");
    let (encoded, number) = event_id.rsplit_once('/').ok_or_else(wrong)?;
    let stream = crate::keys::decode(encoded);
    // Only the one spelling that was handed out: no two ids for one event.
    if Hub::stream_key(&stream).as_str() != encoded || stream.is_empty() || number.len() > 14 {
        return Err(wrong());
    }
    Ok((stream, number.parse().map_err(|_| wrong())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_id_names_its_stream_and_nothing_else_is_taken_for_one() {
        assert_eq!(parse("a%3Acommon/17"), Ok(("a:common".into(), 17)));
        for wrong in [
            "",
            "0",
            "a",
            "/1",
            "a:common/1",
            "a/",
            "a/x",
            "a/-1",
            "a/999999999999999",
            "%61/1",
            "a%3acommon/1",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
