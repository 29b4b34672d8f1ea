//! rmcp servers in several replicas, over HTTP, with rmcp's client and with a plain one.

mod kills;
mod listening;
mod processes;
mod questions;
mod replicas;
pub mod running;
mod sessions;
mod streams;
pub mod support;
mod user;
