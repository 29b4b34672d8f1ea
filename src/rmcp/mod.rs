//! For servers that are built with `rmcp`, the official Rust SDK of MCP.
//!
//! - [`PeerSink`] is rmcp's peer as a [`NotificationSink`](crate::NotificationSink).
//! - [`Sessions`] makes what a server on Streamable HTTP needs to run in several replicas: a session manager, a session
//!   store and an event store in Redis.
//! - [`Sessions::listen`] feeds `subscriptions/listen` streams from topics.
//! - [`PeerAsker`] asks a client what a worker wants to know; a [`SessionLink`] brings one along.
//! - [`SessionLink`] serves the session of a handler: one line in `on_initialized`.
//! - [`DurableTasks`] makes tools run as durable tasks, on any worker, asked for at any replica.

mod asker;
mod durable;
mod events;
mod hub;
mod limits;
mod listen;
mod mail;
mod manager;
mod session_sink;
mod sessions;
mod sink;
mod store;
mod tail;
mod watch;
mod wire;

pub use asker::PeerAsker;
pub use durable::{DurableTasks, InTask, TaskBody, TaskHttp, TaskLeg, TaskMode, ToolLegs, VerifiedCaller};
pub use manager::{Manager, ManagerError};
pub use sessions::{SessionLink, Sessions, SessionsBuilder, session_id};
pub use sink::PeerSink;
