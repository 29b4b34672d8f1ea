//! rmcp servers in several replicas, over HTTP, with rmcp's client and with a plain one.

mod replicas;
mod sessions;
mod streams;
mod support;
