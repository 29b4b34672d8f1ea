//! The integration suite. `basics` teaches the crate; the other modules are one topic each.

#![allow(unreachable_pub)]

mod support;

mod basics;
mod bodies;
mod cancel;
mod crash;
mod lua;
mod ownership;
mod pushing;
mod restart;
mod retry;
mod ttl;
