//! The engine against its promises, and against a real server.

mod client;
mod commands;
mod lua;
mod random;
mod support;
