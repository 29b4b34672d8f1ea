//! What tests share.
#![allow(dead_code)]
pub mod fixture;
pub mod leaks;
pub mod names;
pub mod private;
pub mod server;
pub mod wait;
