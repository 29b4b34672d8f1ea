//! The tasks that ask a session's client.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::handle::{question_of, trimmed};
use super::hub::{Hearing, Hub};
use super::sink::{Shared, Turn};
use super::{Answer, AskError, Asker, Outcome, Question, Refusal, schema};
use crate::keys::{Sid, Spot};
use crate::script::{CloseArgs, Closed, Got};
use crate::{Claim, Error, Result, SessionId};

/// So often a client may answer what does not fit before its question is over.
const MAX_MISMATCHES: u32 = 3;
/// Longest pause between tries to store what the client said.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Asks one question, and stores what comes of it.
pub(super) async fn run<A: Asker>(turn: Turn<A>, known: Option<Question>) {
    let hub = turn.shared.hub.clone();
    let hearing = hub.hear(&turn.spot, false);
    let mut known = known;
    let (mut mismatches, mut complaint) = (0, None);
    loop {
        let question = match known.take() {
            Some(question) => question,
            None => match load(&turn).await {
                Some(question) => question,
                None => return,
            },
        };
        let question = Question { complaint: complaint.take(), ..question };
        let end = Instant::now() + question.left;
        let Some(answered) = ask(&turn, &hearing, question.clone(), end).await else { return };
        let answer = match answered {
            Ok(answer) => trimmed(&question.request, answer),
            // What a client does while its server goes down says nothing about the client.
            Err(AskError::Gone) if hub.is_closing() => return,
            Err(e) => return close(&turn, &question, end, &e).await,
        };
        if let Answer::Accept(content) = &answer
            && let Err(why) = schema::check_content(&question.request, content)
        {
            mismatches += 1;
            tracing::info!(session = %question.session, request = %question.id, why, "the answer does not fit");
            if mismatches == MAX_MISMATCHES {
                let e = AskError::Failed(Refusal::Mismatch(why).to_string());
                return close(&turn, &question, end, &e).await;
            }
            complaint = Some(why);
            continue;
        }
        return store(&turn, &question, end, answer).await;
    }
}

/// The question, unless it is over.
async fn load<A>(turn: &Turn<A>) -> Option<Question> {
    let hub = &turn.shared.hub;
    let loading = patiently(None, || async {
        loop {
            match hub.calls.gets.call((turn.spot.clone(), true)).await? {
                Got::Open(stored) => return question_of(&turn.spot, stored).map(Some),
                Got::Done | Got::Unknown => return Ok(None),
                Got::More => {}
            }
        }
    });
    tokio::select! {
        loaded = loading => loaded.flatten(),
        () = turn.stop.cancelled() => None,
    }
}

/// What the client says; nothing when its answer is not wanted any more.
async fn ask<A: Asker>(
    turn: &Turn<A>,
    hearing: &Hearing,
    question: Question,
    end: Instant,
) -> Option<Result<Answer, AskError>> {
    let asker = turn.shared.asker.clone();
    // In a task of its own: its panic is an answer as well.
    let mut asked = Aborting(tokio::spawn(async move {
        if !asker.capabilities().allow(&question.request) {
            return Err(AskError::Unsupported);
        }
        asker.ask(question).await
    }));
    loop {
        tokio::select! {
            biased;
            answer = &mut asked.0 => {
                return Some(answer.unwrap_or_else(|_| Err(AskError::Failed("the asker panicked".into()))));
            }
            () = turn.stop.cancelled() => return None,
            () = tokio::time::sleep_until(end) => return None,
            () = hearing.rang() => {}
        }
        // Somebody rang: is the answer still wanted?
        let got = turn.shared.hub.calls.gets.call((turn.spot.clone(), false)).await;
        if matches!(got, Ok(Got::Done | Got::Unknown)) {
            return None;
        }
    }
}

/// Stores an answer, whatever becomes of the subscription meanwhile: the client has given it.
async fn store<A>(turn: &Turn<A>, question: &Question, end: Instant, answer: Answer) {
    let hub = &turn.shared.hub;
    let scope = question.task.as_ref().and_then(|task| task.scope.as_deref());
    let by = uuid::Uuid::new_v4().simple().to_string();
    match patiently(Some(end), || hub.store(&turn.spot, scope, &answer, &by)).await {
        Some(Ok(())) => tracing::debug!(session = %question.session, request = %question.id, "answered"),
        Some(Err(why)) => {
            tracing::info!(session = %question.session, request = %question.id, %why, "an answer did not count");
        }
        None => {
            tracing::warn!(session = %question.session, request = %question.id, "an answer could not be stored")
        }
    }
}

/// The client gives no answer: the worker hears it now. Not when another owner has the session: its client may answer.
async fn close<A>(turn: &Turn<A>, question: &Question, end: Instant, why: &AskError) {
    tracing::info!(session = %question.session, request = %question.id, %why, "no answer from the client");
    let outcome = match why {
        AskError::Gone => Outcome::SessionGone,
        _ => Outcome::Cancelled,
    };
    let hub = &turn.shared.hub;
    let why = why.to_string();
    let closing = patiently(Some(end), || async {
        let Some(token) = turn.shared.token(&turn.spot.sid) else { return Ok(Vec::new()) };
        let how = CloseArgs { outcome: outcome.as_str(), why: &why, token: &token };
        hub.close(&how, std::slice::from_ref(&turn.spot)).await
    });
    if closing.await.is_some_and(|closed| closed.contains(&Closed::Fenced)) {
        tracing::debug!(session = %question.session, request = %question.id, "left to the session's new owner");
    }
}

/// Asks what an earlier owner of the session has announced and got no answer to.
pub(super) async fn resume<A: Asker>(shared: Arc<Shared<A>>, session: SessionId, stop: CancellationToken) {
    let hub = shared.hub.clone();
    let sid = Sid::of(&session);
    let looking = async {
        patiently(None, || hub.listen()).await?;
        patiently(None, || hub.calls.lists.call(sid.clone())).await
    };
    let open = tokio::select! {
        open = looking => open.unwrap_or_default(),
        () = stop.cancelled() => return,
    };
    let mut later = Vec::new();
    for spot in open {
        let got = tokio::select! {
            got = patiently(None, || hub.calls.gets.call((spot.clone(), false))) => got,
            () = stop.cancelled() => return,
        };
        match got {
            Some(Got::Open(stored)) if stored.told => start(&shared, &spot, question_of(&spot, stored).ok()),
            Some(Got::Open(_) | Got::More) => later.push(spot),
            _ => {}
        }
    }
    if later.is_empty() {
        return;
    }
    // Their announcements are still in the queue, or were dropped from it. Only these are left to ask here.
    tokio::select! {
        () = tokio::time::sleep(2 * hub.core.config.look_again) => {}
        () = stop.cancelled() => return,
    }
    for spot in later {
        start(&shared, &spot, None);
    }
}

fn start<A: Asker>(shared: &Arc<Shared<A>>, spot: &Spot, known: Option<Question>) {
    if let Some(turn) = shared.turn(spot) {
        tokio::spawn(run(turn, known));
    }
}

/// The session's client is gone for good, and with it whoever could answer.
pub(super) async fn session_gone(hub: Arc<Hub>, claim: Claim) {
    let token = format!("{}:{}", hub.core.node, claim.epoch);
    let end = Instant::now() + hub.core.config.deadline;
    let closing = patiently(Some(end), || hub.close_all(&claim.session, &token));
    match closing.await {
        Some(0) => {}
        Some(questions) => tracing::info!(session = %claim.session, questions, "closed: the client is gone"),
        None => tracing::warn!(session = %claim.session, "open questions are left to their grace"),
    }
}

/// Tries until it works, the error is none that passes, or it is too late.
async fn patiently<T, F>(end: Option<Instant>, mut operation: impl FnMut() -> F) -> Option<T>
where
    F: Future<Output = Result<T>>,
{
    let mut pause = Duration::from_millis(20);
    loop {
        match operation().await {
            Ok(done) => return Some(done),
            Err(e @ Error::Closed { .. }) => {
                tracing::debug!(error = %e, "no longer tried");
                return None;
            }
            Err(e) if !e.is_retryable() || end.is_some_and(|end| Instant::now() > end) => {
                tracing::warn!(error = %e, "a question's change of state failed");
                return None;
            }
            Err(_) => {}
        }
        tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// A task that ends with its handle.
struct Aborting<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for Aborting<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
