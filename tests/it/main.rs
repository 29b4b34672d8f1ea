//! The integration suite. `basics` teaches the crate; the other modules are one topic each.

#![allow(unreachable_pub, reason = "nobody outside reaches into a test program")]

mod support;

mod acks;
mod basics;
mod bodies;
mod cancel;
#[cfg(feature = "cli")]
mod command;
#[cfg(feature = "cli")]
mod command_ends;
mod connections;
mod crash;
mod faults;
mod harness;
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
mod protocol;
mod pushing;
mod questions;
mod races;
mod restart;
mod retry;
mod shutdown;
#[cfg(feature = "tls")]
mod tls;
mod topics;
mod ttl;
