//! Questions from workers to clients: elicitation, sampling, roots.
//!
//! A worker asks ([`Courier::elicit`](crate::Courier::elicit), [`Relay::ask`]); the process that serves the session asks
//! its client through an [`Asker`]; the answer is stored and wakes the worker. See `docs/elicitation.md`.

mod answer;
mod ask;
mod asker;
mod request;

pub use answer::{Answer, AnswerError, Content, Outcome, Refusal};
pub use ask::{Ask, TaskRef};
pub use asker::{AskError, Asker, Question};
pub use request::{Capabilities, Request, RequestKind};
