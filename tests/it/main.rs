//! The integration suite. `basics` teaches the crate; the other modules are one topic each.

mod support;

mod basics;
mod cancel;
mod faults;
mod harness;
mod restart;
