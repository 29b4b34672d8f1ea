//! Two connections a process, each supervised by ourselves.
//!
//! `cmd` carries scripts only, `bell` carries subscriptions only. They are never mixed: Redis applies the pub/sub
//! output limit to every reply of a connection that has subscribed, and a large one would cut it.

mod bell;
#[cfg(feature = "cluster")]
mod cluster;
mod commands;
mod credentials;
mod endpoint;
mod failure;
mod link;
mod route;
#[cfg(feature = "sentinel")]
mod sentinel;
mod tls;
mod url;
mod wrapped;

pub(crate) use bell::{Bell, Heard};
pub(crate) use commands::{Commands, until};
pub use credentials::Credentials;
pub(crate) use credentials::Provider;
pub(crate) use endpoint::Endpoint;
pub(crate) use link::{Link, LinkState};
pub use tls::Tls;
