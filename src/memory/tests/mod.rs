//! The engine against its promises, and against a real server.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed, which is what it should do")]

mod client;
mod commands;
mod lua;
mod model;
mod random;
mod scripts;
pub(crate) mod support;
