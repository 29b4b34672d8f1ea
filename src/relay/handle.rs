//! The handle: ask, wait, answer, look, end.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::calls::Look;
use super::hub::Hub;
use super::store::{check, question_of};
use super::{
    Answer, AnswerError, Ask, Asker, Outcome, Question, Refusal, RelaySink, Request, TaskRef, notice, schema,
};
use crate::config::{self, millis};
use crate::keys::{Sid, Spot};
use crate::metrics::add;
use crate::script::{self, AskArgs, AskReply, CloseArgs, Closed, Got};
use crate::{Courier, Error, MessageId, NotificationSink, RequestId, Result, SessionId};

/// Longest task id and scope.
const MAX_NAME_BYTES: usize = 1024;

/// Asks clients, and takes their answers. A value: clones, and every [`Courier::relay`], share everything.
#[derive(Clone, Debug)]
pub struct Relay {
    courier: Courier,
}

/// A question that is stored and queued.
#[derive(Clone, Debug)]
#[must_use = "the question is asked; wait for its outcome, or keep its id"]
pub struct Asked {
    relay: Relay,
    session: SessionId,
    id: RequestId,
}

impl Courier {
    /// Asks the client of a session in the name of a task, and waits for what becomes of it. Short for [`Relay::ask`].
    ///
    /// # Errors
    /// As [`Relay::start`] and [`Relay::await_answer`].
    ///
    /// # Cancel safety
    /// A dropped call leaves the question asked. To wait for it again, give it an id: [`Ask::id`].
    pub async fn elicit(
        &self,
        session: &SessionId,
        task: &TaskRef,
        request: Request,
        timeout: Duration,
    ) -> Result<Outcome> {
        self.relay().ask(Ask::new(session, request).task(task.clone()).timeout(timeout)).await
    }

    /// Questions to clients and their answers.
    pub fn relay(&self) -> Relay {
        Relay { courier: self.clone() }
    }
}

impl Asked {
    /// Names the question within its session.
    pub fn id(&self) -> &RequestId {
        &self.id
    }

    /// Waits for what becomes of it; as [`Relay::await_answer`].
    ///
    /// # Errors
    /// As [`Relay::await_answer`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves the question open; wait again.
    pub async fn wait(&self) -> Result<Outcome> {
        self.relay.await_answer(&self.session, &self.id).await
    }
}

impl Relay {
    fn hub(&self) -> &std::sync::Arc<Hub> {
        &self.courier.hub
    }

    /// Asks, and waits for what becomes of it.
    ///
    /// # Errors
    /// As [`Relay::start`] and [`Relay::await_answer`].
    ///
    /// # Cancel safety
    /// A dropped call leaves the question asked. To wait for it again, give it an id: [`Ask::id`].
    pub async fn ask(&self, ask: Ask) -> Result<Outcome> {
        self.start(ask).await?.wait().await
    }

    /// Stores a question and queues the notification that announces it: both, or neither and an error at once. Asking
    /// the same thing again under the same id asks nothing twice, also after its outcome is known.
    ///
    /// Redis: `lua/question_ask.lua`, one round trip.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::TooLarge`]: nothing was sent. [`Error::Invalid`] for an id that belongs to another
    /// question. [`Error::QueueFull`] when the session has too many pending messages or open questions,
    /// [`Error::Refused`] (as `OOM`): nothing is asked. [`Error::Unreachable`], [`Error::Timeout`]: see
    /// [`Error::is_ambiguous`]; asking again with the same id is safe.
    ///
    /// # Cancel safety
    /// A dropped call may have asked, once.
    pub async fn start(&self, ask: Ask) -> Result<Asked> {
        let core = &self.courier.core;
        schema::check_request(&ask.request)?;
        let request = ask.request.to_json()?;
        self.bounded("request", request.len(), core.config.max_body_bytes)?;
        let (task, scope) = match &ask.task {
            Some(task) => (task.id.as_str(), task.scope.as_deref().unwrap_or_default()),
            None => ("", ""),
        };
        self.bounded("task id", task.len(), MAX_NAME_BYTES)?;
        self.bounded("task scope", scope.len(), MAX_NAME_BYTES)?;
        if ask.task.is_some() && task.is_empty() {
            return Err(Error::invalid("task id", "is empty; leave the task out instead"));
        }
        let id = ask.id.clone().unwrap_or_else(RequestId::generate);
        let body = notice::notification(&ask, &id, SystemTime::now()).to_json()?;
        self.bounded("notification", body.len(), core.config.max_body_bytes)?;
        let grace = ask.grace.unwrap_or(core.config.node_grace);
        let spot = Spot::of(&ask.session, &id);
        let message_id = MessageId::new(notice::message_id(&id))?;
        let body = core.config.bodies.seal(&spot.sid, &message_id, body.into())?;
        let args = AskArgs {
            spot: &spot,
            message_id: message_id.as_str(),
            body: &body,
            timeout_ms: millis("timeout", ask.timeout)?,
            grace_ms: if grace.is_zero() { 0 } else { millis("grace", grace)? },
            keep_ms: millis("keep", ask.keep)?,
            max_pending: core.config.max_pending,
            kind: ask.request.kind.word(),
            request: &request,
            task,
            scope,
            node: &core.node,
            look_again_ms: config::millis("look again", core.config.look_again)?,
            handoff_bytes: core.config.handoff_bytes as u64,
        };
        // Before the question is there, so that its answer rings here.
        self.hub().listen().await?;
        let keys = core.keys_of(spot.sid.as_str());
        let asking = || script::question_ask(&core.cmd, keys, &args);
        match self.courier.repeat("question_ask", asking, true).await? {
            AskReply::Asked => {
                add(&core.counters.pushed, 1);
                add(&core.counters.asked, 1);
                tracing::debug!(session = %ask.session, request = %id, kind = args.kind, "asked");
            }
            AskReply::Known => tracing::debug!(session = %ask.session, request = %id, "asked before"),
            AskReply::Other => {
                return Err(Error::invalid("request id", "belongs to another question of this session"));
            }
            AskReply::Full { pending } => {
                add(&core.counters.refused_full, 1);
                return Err(Error::QueueFull { session: ask.session, pending, limit: args.max_pending });
            }
        }
        Ok(Asked { relay: self.clone(), session: ask.session, id })
    }

    fn bounded(&self, what: &'static str, actual: usize, limit: usize) -> Result<()> {
        if actual > limit { Err(Error::TooLarge { what, actual, limit }) } else { Ok(()) }
    }

    /// Waits for what becomes of a question that this or any other process asked.
    ///
    /// Waiting costs an entry in a table: no connection, no thread. An answer rings; in case the ring is lost, all
    /// waiting questions are looked at every two seconds, many in one call. A server that is out of reach is waited for,
    /// at least until the question's time is over.
    ///
    /// Redis: `lua/question_wait.lua`.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no such question, or its outcome is not kept any more. [`Error::Closed`] when this
    /// process shuts down: the question stays open, and another one may wait for it. [`Error::Unreachable`] and others
    /// when the server stays out of reach for [`Builder::deadline`](crate::Builder::deadline) after the question's end.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the question open; wait again.
    pub async fn await_answer(&self, session: &SessionId, id: &RequestId) -> Result<Outcome> {
        const OP: &str = "question_wait";
        let hub = self.hub();
        hub.listen().await?;
        let spot = Spot::of(session, id);
        let hearing = hub.hear(&spot, true);
        let stopped = hub.stopped();
        let patience = self.courier.core.config.deadline;
        // As far as is known: when the question's time is over.
        let mut end = Instant::now();
        let mut told = false;
        loop {
            let looked = tokio::select! {
                looked = hub.calls.waits.call(spot.clone()) => looked,
                () = stopped.cancelled() => return Err(Error::Closed { op: OP }),
            };
            let pause = match looked {
                Ok(Look::Done(outcome)) => {
                    tracing::debug!(%session, request = %id, outcome = outcome.as_str(), "question over");
                    return Ok(outcome);
                }
                Ok(Look::Open(left)) => {
                    end = Instant::now() + left;
                    end
                }
                Ok(Look::More) => continue,
                Ok(Look::Unknown) => {
                    return Err(Error::invalid("request id", "there is no such question, or not any more"));
                }
                Err(e @ Error::Closed { .. }) => return Err(e),
                Err(e) if !e.is_retryable() || Instant::now() > end + patience => return Err(e),
                Err(e) => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(%session, request = %id, error = %e, "waiting on for an answer");
                    }
                    Instant::now() + Duration::from_millis(500)
                }
            };
            tokio::select! {
                () = hearing.rang() => {}
                () = tokio::time::sleep_until(pause) => {}
                () = stopped.cancelled() => return Err(Error::Closed { op: OP }),
            }
        }
    }

    /// How many calls of this process wait for answers.
    pub fn waiting(&self) -> usize {
        self.hub().waiting()
    }

    /// Answers a question in the client's name. `scope` is who answers, as the process that received the answer knows it:
    /// it must be the scope of the question's task.
    ///
    /// `Ok` means stored: only then may the client be told so. The content of an acceptance is checked against the
    /// requested schema (feature `schema`); one that does not fit leaves the question open.
    ///
    /// Redis: `lua/question_get.lua`, `lua/question_answer.lua`.
    ///
    /// # Errors
    /// [`AnswerError::Refused`] says why it does not count; [`AnswerError::Store`] that it could not be stored.
    ///
    /// # Cancel safety
    /// A dropped call may have answered.
    pub async fn answer(
        &self,
        session: &SessionId,
        id: &RequestId,
        scope: Option<&str>,
        answer: Answer,
    ) -> Result<(), AnswerError> {
        let hub = self.hub();
        let spot = Spot::of(session, id);
        let by = uuid::Uuid::new_v4().simple().to_string();
        let storing = async || {
            loop {
                match hub.calls.gets.call((spot.clone(), false)).await? {
                    Got::More => {}
                    Got::Open(stored) => break Ok(Some(stored)),
                    Got::Done | Got::Unknown => break Ok(None),
                }
            }
        };
        let stored = self.courier.repeat("question_get", storing, true).await?;
        if let Some(stored) = stored {
            if stored.scope != scope.unwrap_or_default() {
                add(&self.courier.core.counters.answers_refused, 1);
                return Err(Refusal::OtherScope.into());
            }
            let question = question_of(&spot, stored)?;
            check(&question.request, &answer).inspect_err(|_| add(&hub.core.counters.answers_refused, 1))?;
        }
        let limit = hub.core.config.max_body_bytes;
        if let Answer::Accept(content) = &answer {
            self.bounded("content", content.as_bytes().len(), limit)?;
        }
        let storing = || hub.store(&spot, scope, &answer, &by);
        self.courier.repeat("question_answer", storing, true).await?.map_err(AnswerError::from)
    }

    /// A question as it was asked, as long as it is open.
    ///
    /// # Errors
    /// As [`Courier::stats`].
    ///
    /// # Cancel safety
    /// Only reads.
    pub async fn question(&self, session: &SessionId, id: &RequestId) -> Result<Option<Question>> {
        self.hub().question(&Spot::of(session, id)).await
    }

    /// The open questions of a session, the one that ends first in front, up to 256.
    ///
    /// # Errors
    /// As [`Courier::stats`].
    ///
    /// # Cancel safety
    /// Only reads.
    pub async fn open_questions(&self, session: &SessionId) -> Result<Vec<Question>> {
        let hub = self.hub();
        let mut open = Vec::new();
        for spot in hub.calls.lists.call(Sid::of(session)).await? {
            open.extend(hub.question(&spot).await?);
        }
        Ok(open)
    }

    /// Takes a question back: whoever waits for it gets [`Outcome::Cancelled`], and the client is not asked any longer.
    /// False when it was over already, or never there.
    ///
    /// Redis: `lua/question_close.lua`.
    ///
    /// # Errors
    /// As [`Courier::push`].
    ///
    /// # Cancel safety
    /// A dropped call may have withdrawn it.
    pub async fn withdraw(&self, session: &SessionId, id: &RequestId) -> Result<bool> {
        let spots = [Spot::of(session, id)];
        let how = CloseArgs { outcome: Outcome::Cancelled.as_str(), why: "withdrawn", token: "" };
        let closing = || self.hub().close(&how, &spots);
        Ok(self.courier.repeat("question_close", closing, true).await?.contains(&Closed::Now))
    }

    /// The session is over for good, on every replica: whoever waits for an answer of its client gets
    /// [`Outcome::SessionGone`] now. Answers how many questions that were.
    ///
    /// Call it when the client ends its session (as with HTTP DELETE). A subscription that ends because its sink is closed
    /// ([`Ended::SinkClosed`](crate::Ended::SinkClosed)) does the same by itself; one that is stopped, released or taken
    /// over leaves the questions to the session's next owner.
    ///
    /// # Errors
    /// As [`Courier::push`].
    ///
    /// # Cancel safety
    /// A dropped call may have closed some of them; call again.
    pub async fn end_session(&self, session: &SessionId) -> Result<usize> {
        let closing = || self.hub().close_all(session, "");
        self.courier.repeat("question_close", closing, true).await
    }

    /// A sink for a session whose client can be asked: it passes messages on to `sink`, and asks the questions through
    /// `asker`, in the background. Give it to [`Courier::subscriber_loop`] or
    /// [`SubscriberRegistry::ensure_running`](crate::SubscriberRegistry::ensure_running). Meant for one session: one sink
    /// may serve several, but not thousands.
    pub fn attach<S: NotificationSink, A: Asker>(&self, sink: S, asker: A) -> RelaySink<S, A> {
        RelaySink::new(self.hub().clone(), sink, asker)
    }
}
