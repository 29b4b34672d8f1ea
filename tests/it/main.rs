//! The integration suite. `basics` teaches the crate; the other modules are one topic each.

mod support;

mod basics;
mod cancel;
mod connections;
mod faults;
mod harness;
#[cfg(feature = "cli")]
mod kills;
mod observability;
mod protocol;
mod restart;
mod shutdown;
#[cfg(feature = "tls")]
mod tls;
