//! Tools of an rmcp server that run as durable tasks: over HTTP, by hand, from the specification's text.

mod asking;
mod calls;
mod cancelling;
mod listening;
mod lives;
mod negotiation;
mod peers;
mod processes;
mod random;
mod scopes;
mod siblings;
mod support;
