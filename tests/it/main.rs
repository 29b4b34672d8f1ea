//! The integration suite. `basics` teaches the crate; the other modules are one topic each.

mod support;

mod basics;
mod harness;
