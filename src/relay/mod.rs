//! Questions from workers to clients: elicitation, sampling, roots.
//!
//! A worker asks ([`Courier::elicit`](crate::Courier::elicit), [`Relay::ask`]); the process that serves the session asks
//! its client through an [`Asker`] ([`Relay::attach`]); the answer is stored and wakes the worker. Exactly one answer
//! counts. States, keys and failures: `docs/elicitation.md`.
//!
//! ```text
//! ask ──> stored, announced in the session's queue ──> RelaySink: announce, then ask in the background ──> Asker
//! wait <── signal to the nodes that wait <──────────── stored <───────────────────────────────────────────── answer
//! ```

mod answer;
mod ask;
mod asker;
mod asking;
mod calls;
mod handle;
mod hub;
mod notice;
mod request;
mod schema;
mod sink;

pub use answer::{Answer, AnswerError, Content, Outcome, Refusal};
pub use ask::{Ask, TaskRef};
pub use asker::{AskError, Asker, Question};
pub use handle::{Asked, Relay};
pub(crate) use hub::Hub;
pub use request::{Capabilities, Request, RequestKind};
pub use sink::RelaySink;
