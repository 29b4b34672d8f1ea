//! The integration suite. `basics` teaches the crate; the other modules are one topic each.

#![allow(unreachable_pub)]

mod support;

mod basics;
mod bodies;
mod cancel;
mod connections;
mod crash;
mod faults;
mod harness;
mod inputs;
mod leftovers;
mod lua;
mod observability;
mod ownership;
mod protocol;
mod pushing;
mod restart;
mod retry;
mod shutdown;
#[cfg(feature = "tls")]
mod tls;
mod ttl;
