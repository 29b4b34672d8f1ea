//! What the relay reads and writes of stored questions, in the words of its types.

use bytes::Bytes;

use super::answer::ACCEPTED;
use super::calls::PAGE;
use super::hub::Hub;
use super::{Answer, Content, Outcome, Question, Refusal, Request, RequestKind, TaskRef, schema};
use crate::keys::{Sid, Spot, decode};
use crate::metrics::add;
use crate::script::{self, AnswerArgs, AnswerReply, CloseArgs, Closed, Got, Stored};
use crate::{Error, RequestId, Result, SessionId};

/// Whether an answer fits what was asked.
pub(super) fn check(request: &Request, answer: &Answer) -> Result<(), Refusal> {
    match answer {
        Answer::Accept(content) => schema::check_content(request, content).map_err(Refusal::Mismatch),
        Answer::Decline | Answer::Cancel => Ok(()),
    }
}

pub(super) fn question_of(spot: &Spot, stored: Stored) -> Result<Question> {
    let bad = |got: &str| Error::Reply { op: "question_get", got: got.chars().take(40).collect() };
    let kind = RequestKind::from_word(&stored.kind).ok_or_else(|| bad(&stored.kind))?;
    let params =
        serde_json::from_slice(&stored.request).map_err(|_| bad("params that are no JSON object"))?;
    let task = (!stored.task.is_empty()).then(|| TaskRef::new(stored.task).scope(stored.scope));
    Ok(Question {
        session: SessionId::new(decode(spot.sid.as_str()))?,
        id: RequestId::new(decode(&spot.rid))?,
        task,
        request: Request { kind, params },
        left: stored.left,
        complaint: None,
    })
}

impl Hub {
    /// Stores an answer that was checked.
    pub(super) async fn store(
        &self,
        spot: &Spot,
        scope: Option<&str>,
        answer: &Answer,
        by: &str,
    ) -> Result<Result<(), Refusal>> {
        let core = &self.core;
        let (outcome, content) = match answer {
            Answer::Accept(content) => {
                let plain = Bytes::copy_from_slice(content.as_bytes());
                (ACCEPTED, core.config.bodies.seal_answer(spot, plain)?)
            }
            Answer::Decline => ("declined", Bytes::new()),
            Answer::Cancel => ("cancelled", Bytes::new()),
        };
        let args = AnswerArgs { spot, scope: scope.unwrap_or_default(), outcome, content: &content, by };
        let reply = script::question_answer(&core.cmd, core.keys_of(spot.sid.as_str()), &args).await?;
        let counter = if reply == AnswerReply::Answered {
            &core.counters.answered
        } else {
            &core.counters.answers_refused
        };
        add(counter, 1);
        Ok(match reply {
            AnswerReply::Answered => Ok(()),
            AnswerReply::Second => Err(Refusal::AlreadyAnswered),
            AnswerReply::Late => Err(Refusal::Late),
            AnswerReply::Closed => Err(Refusal::Closed),
            AnswerReply::Scope => Err(Refusal::OtherScope),
            AnswerReply::Unknown => Err(Refusal::Unknown),
        })
    }

    /// A question, as long as it is open.
    pub(super) async fn question(&self, spot: &Spot) -> Result<Option<Question>> {
        loop {
            match self.calls.gets.call((spot.clone(), false)).await? {
                Got::Open(stored) => return question_of(spot, stored).map(Some),
                Got::Done | Got::Unknown => return Ok(None),
                Got::More => {}
            }
        }
    }

    /// Ends questions of one session.
    pub(super) async fn close(&self, how: &CloseArgs<'_>, spots: &[Spot]) -> Result<Vec<Closed>> {
        let Some(first) = spots.first() else { return Ok(Vec::new()) };
        let core = &self.core;
        let keys = core.keys_of(first.sid.as_str());
        script::question_close(&core.cmd, keys, how, spots).await?.into_iter().collect()
    }

    /// Ends every open question of a session that nobody else owns: its client is gone. Answers how many.
    pub(super) async fn close_all(&self, session: &SessionId, token: &str) -> Result<usize> {
        let (sid, mut closed) = (Sid::of(session), 0);
        let how = CloseArgs { outcome: Outcome::SessionGone.as_str(), why: "the session ended", token };
        loop {
            let open = self.calls.lists.call(sid.clone()).await?;
            let ended = self.close(&how, &open).await?;
            closed += ended.iter().filter(|one| **one == Closed::Now).count();
            if (open.len() as u64) < PAGE || ended.contains(&Closed::Fenced) {
                return Ok(closed);
            }
        }
    }
}

/// An answer whose content is of no use where none is asked for.
pub(super) fn trimmed(request: &Request, answer: Answer) -> Answer {
    match answer {
        Answer::Accept(_) if request.is_url() => Answer::Accept(Content::stored(Bytes::new())),
        other => other,
    }
}
