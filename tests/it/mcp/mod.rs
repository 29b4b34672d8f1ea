//! rmcp servers in several replicas, over HTTP, with rmcp's client and with a plain one.

mod listening;
pub mod processes;
mod questions;
mod replicas;
mod sessions;
mod streams;
pub mod support;
