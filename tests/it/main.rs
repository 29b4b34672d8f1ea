//! The integration suite. `basics` teaches the crate; the other modules are one topic each.

#![allow(unreachable_pub, reason = "nobody outside reaches into a test program")]

mod support;

mod acks;
mod basics;
#[cfg(feature = "cli")]
mod bench;
mod bodies;
mod bridge;
mod cancel;
#[cfg(feature = "cluster")]
mod cluster;
#[cfg(feature = "cli")]
mod command;
#[cfg(feature = "cli")]
mod command_ends;
#[cfg(feature = "cli")]
mod command_tasks;
mod connections;
mod crash;
#[cfg(feature = "rmcp")]
mod durable;
mod faults;
mod harness;
mod hostile;
mod inputs;
#[cfg(feature = "cli")]
mod kills;
mod leftovers;
mod lua;
#[cfg(feature = "rmcp")]
mod mcp;
mod messages;
mod observability;
mod ownership;
mod partitions;
mod protocol;
mod pushing;
mod questions;
mod races;
mod refusals;
mod replicas;
mod restart;
mod retry;
mod rights;
mod scale;
#[cfg(feature = "encryption")]
mod sealed;
#[cfg(feature = "sentinel")]
mod sentinel;
mod shutdown;
#[cfg(all(feature = "cli", unix))]
mod soak;
mod tasks;
mod tasks_basics;
mod tasks_context;
mod tasks_crash;
mod tasks_faults;
mod tasks_life;
mod tasks_operate;
mod tasks_races;
mod tasks_scopes;
mod tasks_watch;
#[cfg(feature = "tls")]
mod tls;
mod topics;
mod ttl;
