//! rmcp servers in several replicas, over HTTP, with rmcp's client and with a plain one.

mod kills;
mod listening;
mod processes;
mod questions;
mod replicas;
mod running;
mod sessions;
mod streams;
mod support;
mod user;
