//! The scripts of the relay: `lua/question_*.lua`.

use std::time::Duration;

use bytes::Bytes;
use redis::Value;

use super::reply::Fields;
use super::source::script;
use super::{Invocation, Script};
use crate::connection::Commands;
use crate::keys::{Keys, Sid, Spot};
use crate::{Error, Result};

script!(pub(super) static ASK = "question_ask", uses ["now_ms", "record", "some", "first", "enqueue"],
    keys ["q", "s", "w", "e", "eo"] each [],
    args ["sid", "rid", "id", "body", "timeout_ms", "grace_ms", "keep_ms", "max_pending", "kind", "request", "task",
          "scope", "node", "look_again_ms", "inboxes", "publish", "handoff_bytes"] each []);

script!(pub(super) static WAIT = "question_wait", uses ["now_ms", "small_writes", "question"],
    keys ["s", "n"] each ["e", "eo"],
    args ["node", "budget"] each ["sid", "rid"]);

script!(pub(super) static ANSWER = "question_answer", uses ["now_ms", "question"],
    keys ["s", "e", "eo"] each [],
    args ["sid", "rid", "scope", "outcome", "content", "by", "inboxes", "publish"] each []);

script!(pub(super) static CLOSE = "question_close", uses ["question"],
    keys ["s"] each ["e", "eo"],
    args ["outcome", "why", "token", "inboxes", "publish"] each ["sid", "rid"]);

script!(pub(super) static GET = "question_get", uses ["now_ms"],
    keys [] each ["e"],
    args ["tell", "budget"] each []);

script!(pub(super) static LIST = "question_list", uses [],
    keys [] each ["eo"],
    args ["offset", "limit"] each []);

/// What `question_ask.lua` takes beside what the courier knows.
pub(crate) struct AskArgs<'a> {
    pub(crate) spot: &'a Spot,
    pub(crate) message_id: &'a str,
    pub(crate) body: &'a [u8],
    pub(crate) timeout_ms: u64,
    pub(crate) grace_ms: u64,
    pub(crate) keep_ms: u64,
    pub(crate) max_pending: u64,
    pub(crate) kind: &'a str,
    pub(crate) request: &'a [u8],
    pub(crate) task: &'a str,
    pub(crate) scope: &'a str,
    pub(crate) node: &'a str,
    pub(crate) look_again_ms: u64,
    pub(crate) handoff_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskReply {
    Asked,
    Known,
    Other,
    Full { pending: u64 },
}

pub(crate) async fn question_ask(cmd: &Commands, keys: &Keys, a: &AskArgs<'_>) -> Result<AskReply> {
    let mut call = Invocation::new(&ASK);
    call.key(keys.queue(&a.spot.sid)).key(&keys.owners).key(&keys.waiting);
    call.key(keys.question(a.spot)).key(keys.questions(&a.spot.sid));
    call.arg(a.spot.sid.as_str()).arg(&*a.spot.rid).arg(a.message_id).arg(a.body);
    call.num(a.timeout_ms).num(a.grace_ms).num(a.keep_ms).num(a.max_pending);
    call.arg(a.kind).arg(a.request).arg(a.task).arg(a.scope).arg(a.node);
    call.num(a.look_again_ms).arg(&keys.inboxes).arg(cmd.publish()).num(a.handoff_bytes);
    let mut reply = Fields::of(&ASK, cmd.run(&call).await?)?;
    let word = reply.word()?;
    let pending = reply.count()?;
    Ok(match word.as_str() {
        "asked" => AskReply::Asked,
        "known" => AskReply::Known,
        "other" => AskReply::Other,
        "full" => AskReply::Full { pending },
        other => return Err(reply.unknown_word(other)),
    })
}

/// One question of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    Open { left: Duration },
    Done { outcome: String, content: Bytes },
    More,
    Unknown,
}

pub(crate) async fn question_wait(
    cmd: &Commands,
    keys: &Keys,
    node: &str,
    budget: u64,
    spots: &[&Spot],
) -> Result<Vec<Result<Waited>>> {
    let mut call = Invocation::new(&WAIT);
    call.key(&keys.owners).key(&keys.nodes).arg(node).num(budget);
    for spot in spots {
        call.key(keys.question(spot)).key(keys.questions(&spot.sid));
        call.arg(spot.sid.as_str()).arg(&*spot.rid);
    }
    each(&WAIT, cmd.run(&call).await?, |word, one| {
        Ok(match word {
            "open" => Waited::Open { left: Duration::from_millis(one.count()?) },
            "done" => Waited::Done { outcome: one.word()?, content: one.bytes()? },
            "more" => Waited::More,
            "unknown" => Waited::Unknown,
            other => return Err(refused(one, other)),
        })
    })
}

/// An answer as `question_answer.lua` takes it.
pub(crate) struct AnswerArgs<'a> {
    pub(crate) spot: &'a Spot,
    pub(crate) scope: &'a str,
    pub(crate) outcome: &'a str,
    pub(crate) content: &'a [u8],
    pub(crate) by: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerReply {
    Answered,
    Second,
    Late,
    Closed,
    Scope,
    Unknown,
}

pub(crate) async fn question_answer(cmd: &Commands, keys: &Keys, a: &AnswerArgs<'_>) -> Result<AnswerReply> {
    let mut call = Invocation::new(&ANSWER);
    call.key(&keys.owners).key(keys.question(a.spot)).key(keys.questions(&a.spot.sid));
    call.arg(a.spot.sid.as_str()).arg(&*a.spot.rid).arg(a.scope).arg(a.outcome).arg(a.content).arg(a.by);
    call.arg(&keys.inboxes).arg(cmd.publish());
    let mut reply = Fields::of(&ANSWER, cmd.run(&call).await?)?;
    let word = reply.word()?;
    Ok(match word.as_str() {
        "answered" => AnswerReply::Answered,
        "second" => AnswerReply::Second,
        "late" => AnswerReply::Late,
        "closed" => AnswerReply::Closed,
        "scope" => AnswerReply::Scope,
        "unknown" => AnswerReply::Unknown,
        other => return Err(reply.unknown_word(other)),
    })
}

/// How questions end without an answer.
pub(crate) struct CloseArgs<'a> {
    pub(crate) outcome: &'a str,
    pub(crate) why: &'a str,
    /// Owner token of the caller; empty when it does not matter who owns the session.
    pub(crate) token: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    Now,
    Before,
    Unknown,
    Fenced,
}

pub(crate) async fn question_close(
    cmd: &Commands,
    keys: &Keys,
    a: &CloseArgs<'_>,
    spots: &[Spot],
) -> Result<Vec<Result<Closed>>> {
    let mut call = Invocation::new(&CLOSE);
    call.key(&keys.owners).arg(a.outcome).arg(a.why).arg(a.token).arg(&keys.inboxes).arg(cmd.publish());
    for spot in spots {
        call.key(keys.question(spot)).key(keys.questions(&spot.sid));
        call.arg(spot.sid.as_str()).arg(&*spot.rid);
    }
    each(&CLOSE, cmd.run(&call).await?, |word, one| {
        Ok(match word {
            "closed" => Closed::Now,
            "done" => Closed::Before,
            "unknown" => Closed::Unknown,
            "fenced" => Closed::Fenced,
            other => return Err(refused(one, other)),
        })
    })
}

/// A question as it was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) left: Duration,
    /// An owner had told its client before.
    pub(crate) told: bool,
    pub(crate) kind: String,
    pub(crate) request: Bytes,
    pub(crate) task: String,
    pub(crate) scope: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    Open(Stored),
    Done,
    More,
    Unknown,
}

pub(crate) async fn question_get(
    cmd: &Commands,
    keys: &Keys,
    tell: bool,
    budget: u64,
    spots: &[&Spot],
) -> Result<Vec<Result<Got>>> {
    let mut call = Invocation::new(&GET);
    call.arg(if tell { "yes" } else { "no" }).num(budget);
    for spot in spots {
        call.key(keys.question(spot));
    }
    each(&GET, cmd.run(&call).await?, |word, one| {
        Ok(match word {
            "open" => Got::Open(Stored {
                left: Duration::from_millis(one.count()?),
                told: one.int()? == 1,
                kind: one.word()?,
                request: one.bytes()?,
                task: one.word()?,
                scope: one.word()?,
            }),
            "done" => Got::Done,
            "more" => Got::More,
            "unknown" => Got::Unknown,
            other => return Err(refused(one, other)),
        })
    })
}

/// Request ids of open questions, a page for each session.
pub(crate) async fn question_list(
    cmd: &Commands,
    keys: &Keys,
    offset: u64,
    limit: u64,
    sids: &[&Sid],
) -> Result<Vec<Vec<Spot>>> {
    let mut call = Invocation::new(&LIST);
    call.num(offset).num(limit);
    for sid in sids {
        call.key(keys.questions(sid));
    }
    let mut all = Fields::of(&LIST, cmd.run(&call).await?)?;
    let mut out = Vec::with_capacity(sids.len());
    for sid in sids {
        let mut page = all.array()?;
        let mut spots = Vec::with_capacity(page.len());
        while page.len() > 0 {
            spots.push(Spot::encoded(sid.as_str(), &page.word()?));
        }
        out.push(spots);
    }
    Ok(out)
}

/// Reads a reply of one array an item.
fn each<T>(
    script: &'static Script,
    value: Value,
    read: impl Fn(&str, &mut Fields) -> Result<T>,
) -> Result<Vec<Result<T>>> {
    let mut all = Fields::of(script, value)?;
    let mut out = Vec::with_capacity(all.len());
    while all.len() > 0 {
        let mut one = all.array()?;
        let word = one.word()?;
        out.push(read(&word, &mut one));
    }
    Ok(out)
}

/// `error` with its text, or a word that the header does not have.
fn refused(one: &mut Fields, word: &str) -> Error {
    // `fenced` and `lost` are no words of these scripts, or were read before.
    match one.denied(word) {
        Err(e) => e,
        Ok(_) => one.unknown_word(word),
    }
}
