//! Bridges to other queues, so that either side of a system can be replaced first.

pub mod fastmcp;
