//! What tests share: a server to talk to, faults to inject, and checks that nothing is left behind.
//!
//! Start with [`fixture::Fixture`]. A test that kills, flushes or configures its server asks for one of its own with
//! [`private::private_or_skip`].
#![allow(dead_code)]

pub mod backend;
pub mod binary;
pub mod capture;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "cluster")]
pub mod cluster;
pub mod docker;
pub mod fastmcp;
pub mod fixture;
pub mod leaks;
pub mod names;
#[cfg(feature = "otel")]
pub mod otel;
pub mod private;
pub mod proxy;
pub mod ready;
pub mod resp;
pub mod rights;
#[cfg(feature = "sentinel")]
pub mod sentinel;
pub mod server;
pub mod sharing;
pub mod supervisor;
pub mod wait;
