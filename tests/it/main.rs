//! The integration suite. `basics` teaches the crate; the other modules are one topic each.

#![allow(unreachable_pub)]

mod support;

mod basics;
mod cancel;
mod faults;
mod restart;
