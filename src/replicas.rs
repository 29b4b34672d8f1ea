//! Pushes that wait until replicas have them.
//!
//! WAIT covers what its own connection wrote, and holds up everything behind it. So these pushes have a connection of
//! their own, opened by the first of them, and those that meet while one WAIT runs share the next one.

use std::time::Duration;

use crate::core::Core;
use crate::keys::Keys;
use crate::prepared::Prepared;
use crate::script::{self, PushReply};
use crate::{Error, PushStatus, Result, config};

/// How many replicas must have a message, and how long that may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replicas {
    pub(crate) count: u32,
    pub(crate) within: Duration,
}

/// Most replicas that anybody may wait for.
const MOST: u32 = 1000;

impl Replicas {
    pub(crate) fn check(self, deadline: Duration) -> Result<Self> {
        config::millis("time to wait for replicas", self.within)?;
        if self.within >= deadline {
            let why = format!("is {:?}, and must be shorter than the deadline ({deadline:?})", self.within);
            return Err(Error::invalid("time to wait for replicas", why));
        }
        if self.count == 0 || self.count > MOST {
            return Err(Error::invalid("replicas", format!("use 1 to {MOST}")));
        }
        Ok(self)
    }
}

/// An answered push, and how many replicas have it, if that was asked.
pub(crate) type Stored = (PushReply, Option<u64>);

/// Pushes of one partition with the same wish, in one script call.
pub(crate) async fn push(core: &Core, keys: &Keys, all: &[&Prepared]) -> Result<Vec<Result<Stored>>> {
    let args: Vec<_> = all.iter().map(|prepared| prepared.args(core)).collect();
    let Some(wanted) = all.first().and_then(|prepared| prepared.replicas()) else {
        let replies = script::push(&core.cmd, keys, &args).await?;
        return Ok(replies.into_iter().map(|reply| Ok((reply?, None))).collect());
    };
    let cmd = core.waiting(wanted).await?;
    let replies = script::push(&cmd, keys, &args).await?;
    let written = cmd.confirmed()?;
    let is_known = |reply: &Result<PushReply>| {
        matches!(reply, Ok(PushReply::Stored { status: PushStatus::Duplicate, .. }))
    };
    let marks: Vec<String> =
        args.iter().zip(&replies).filter(|(_, reply)| is_known(reply)).map(|(a, _)| a.mark.clone()).collect();
    let known = if marks.is_empty() {
        written
    } else {
        let cmd = core.waiting(wanted).await?;
        if script::touch(&cmd, &marks).await? { cmd.confirmed()? } else { 0 }
    };
    let confirmed = |reply: &Result<PushReply>| if is_known(reply) { known } else { written };
    Ok(replies
        .into_iter()
        .map(|reply| {
            let confirmed = confirmed(&reply);
            Ok((reply?, Some(confirmed)))
        })
        .collect())
}

/// The same with several wishes: a call for each run of one, in order.
pub(crate) async fn push_runs(core: &Core, keys: &Keys, all: &[&Prepared]) -> Result<Vec<Result<Stored>>> {
    let mut answers = Vec::with_capacity(all.len());
    for run in all.chunk_by(|a, b| a.replicas() == b.replicas()) {
        match push(core, keys, run).await {
            Ok(stored) => answers.extend(stored),
            Err(e) => answers.extend(run.iter().map(|_| Err(e.clone()))),
        }
    }
    Ok(answers)
}
