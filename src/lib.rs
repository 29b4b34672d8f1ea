//! The Redis-native notification queue for MCP servers that run on more than one process.
//!
//! A worker pushes a notification to a session; the process that holds the client's connection delivers it: in order,
//! at least once, and across the death of any process or connection. A tour:
//!
//! - [`Courier`] connects, pushes ([`Courier::push_notification`], [`Courier::push`]) and serves one session
//!   ([`Courier::subscriber_loop`]).
//! - [`SubscriberRegistry`] serves many sessions in the background, over the same two connections.
//! - [`NotificationSink`] is what you implement: how a message reaches your client.
//! - [`relay`] asks a session's client: questions from any worker, answered in the process that serves the session.
//! - [`Courier::tasks`] keeps MCP tasks that any worker runs and any replica answers for, see [`tasks`].
//! - [`Error`] says what went wrong, and whether repeating helps.
//! - [`DeadLetters`] keep what could not be delivered; [`Courier::stats`] and [`Courier::overview`] show the queues.
//!
//! ```
//! use mcp_courier::{CancellationToken, Courier, Delivery, Notification, SessionId};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let courier = Courier::connect("memory://").await?; // or redis://localhost
//! let session = SessionId::new("session-1")?;
//!
//! // A worker, in this or any other process:
//! courier.push_notification(&session, &Notification::new("notifications/progress").param("progress", 1)).await?;
//!
//! // The process that holds the client's connection:
//! let done = CancellationToken::new();
//! let heard = done.clone();
//! let sink = move |delivery: Delivery| {
//!     println!("to the client: {}", String::from_utf8_lossy(delivery.body()));
//!     heard.cancel();
//!     async { Ok(()) }
//! };
//! courier.subscriber_loop(&session, sink, done).await?;
//! # Ok(())
//! # }
//! ```

mod bodies;
pub mod bridge;
mod builder;
mod config;
mod connection;
mod core;
mod courier;
mod dead_letters;
mod delivery;
#[cfg(doctest)]
mod doctests;
mod each;
mod engine;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod ids;
mod keys;
#[cfg(feature = "memory")]
pub mod memory;
mod metrics;
mod notification;
mod partitions;
mod prepared;
mod push;
mod record;
mod refusal;
mod registry;
pub mod relay;
mod replicas;
#[cfg(feature = "rmcp")]
pub mod rmcp;
mod script;
#[cfg(feature = "encryption")]
mod seal;
mod server_info;
mod stats;
mod subscriber;
pub mod tasks;
mod topics;
mod trace;

pub use tokio_util::sync::CancellationToken;

pub use crate::builder::Builder;
pub use crate::config::RetryOrder;
pub use crate::connection::{Credentials, Tls};
pub use crate::courier::Courier;
pub use crate::dead_letters::{DeadLetter, DeadLetters};
pub use crate::delivery::{Claim, Delivery, NotificationSink, SinkError};
pub use crate::engine::{Drained, Ended};
pub use crate::error::{Error, Result};
pub use crate::ids::{
    MAX_MESSAGE_ID_BYTES, MAX_REQUEST_ID_BYTES, MAX_SESSION_ID_BYTES, MAX_TOPIC_BYTES, MessageId, RequestId,
    SessionId, Topic,
};
pub use crate::metrics::Metrics;
pub use crate::notification::{
    LogLevel, Notification, NotificationBuilder, RELATED_TASK, TaskNote, TaskState,
};
pub use crate::push::{OnFull, Push, PushStatus, Pushed};
pub use crate::registry::SubscriberRegistry;
#[cfg(feature = "encryption")]
pub use crate::seal::{KeyRing, SealError};
pub use crate::server_info::ServerInfo;
pub use crate::stats::{Health, Node, Overview, SessionStats};
pub use crate::topics::{Publish, Published, TopicDelivery, TopicEvent, TopicMessage, TopicStream, Topics};
pub use crate::trace::TraceContext;
