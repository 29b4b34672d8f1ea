//! The relay's script calls, many questions in each.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Outcome;
use super::answer::ACCEPTED;
use crate::core::Core;
use crate::engine::batch::Batcher;
use crate::keys::{Keys, Sid, Spot};
use crate::script::{self, Got, Waited};
use crate::{Error, Result};

/// Questions in one call.
const BATCH: usize = 256;
/// Sessions in one look for open questions.
const LIST_BATCH: usize = 500;
/// Open questions of a session in one look.
pub(super) const PAGE: u64 = 256;

/// What a look at a waiting question tells.
#[derive(Clone, Debug)]
pub(super) enum Look {
    Open(std::time::Duration),
    Done(Outcome),
    /// The reply was full.
    More,
    Unknown,
}

pub(super) struct Calls {
    pub(super) waits: Batcher<Spot, Look>,
    pub(super) gets: Batcher<(Spot, bool), Got>,
    /// The first page of a session's open questions.
    pub(super) lists: Batcher<Sid, Vec<Spot>>,
}

impl Calls {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        let waits = {
            let core = core.clone();
            Batcher::new("question_wait", BATCH, 2, move |spots: Vec<Spot>| {
                let core = core.clone();
                Box::pin(async move { wait(&core, &spots).await })
            })
        };
        let gets = {
            let core = core.clone();
            Batcher::new("question_get", BATCH, 2, move |wanted: Vec<(Spot, bool)>| {
                let core = core.clone();
                Box::pin(async move { get(&core, &wanted).await })
            })
        };
        let lists = {
            let core = core.clone();
            Batcher::new("question_list", LIST_BATCH, 2, move |sids: Vec<Sid>| {
                let core = core.clone();
                Box::pin(async move { list(&core, &sids).await })
            })
        };
        Self { waits, gets, lists }
    }
}

async fn wait(core: &Core, spots: &[Spot]) -> Result<Vec<Result<Look>>> {
    let budget = core.config.batch_bytes as u64;
    let mut answers = Vec::new();
    for (keys, places) in by_partition(core, spots, |spot| spot.sid.as_str()) {
        let part: Vec<&Spot> = places.iter().map(|&at| &spots[at]).collect();
        let waited = script::question_wait(&core.cmd, keys, &core.node, budget, &part).await?;
        let read = waited.into_iter().zip(part).map(|(one, spot)| read(core, spot, one?));
        answers.extend(places.into_iter().zip(read));
    }
    Ok(in_order(answers))
}

fn read(core: &Core, spot: &Spot, waited: Waited) -> Result<Look> {
    Ok(match waited {
        Waited::Open { left } => Look::Open(left),
        Waited::More => Look::More,
        Waited::Unknown => Look::Unknown,
        Waited::Done { outcome, content } => {
            let content = if outcome == ACCEPTED {
                let opened = core.config.bodies.open_answer(spot, content);
                opened.map_err(|why| Error::invalid("content of an answer", why))?
            } else {
                content
            };
            match Outcome::stored(&outcome, content) {
                Some(outcome) => Look::Done(outcome),
                None => return Err(Error::Reply { op: "question_wait", got: outcome }),
            }
        }
    })
}

async fn get(core: &Core, wanted: &[(Spot, bool)]) -> Result<Vec<Result<Got>>> {
    let budget = core.config.batch_bytes as u64;
    let mut answers = Vec::new();
    for (keys, places) in by_partition(core, wanted, |(spot, _)| spot.sid.as_str()) {
        for tell in [false, true] {
            let places: Vec<usize> = places.iter().copied().filter(|&at| wanted[at].1 == tell).collect();
            if places.is_empty() {
                continue;
            }
            let part: Vec<&Spot> = places.iter().map(|&at| &wanted[at].0).collect();
            let got = script::question_get(&core.cmd, keys, tell, budget, &part).await?;
            answers.extend(places.into_iter().zip(got));
        }
    }
    Ok(in_order(answers))
}

async fn list(core: &Core, sids: &[Sid]) -> Result<Vec<Result<Vec<Spot>>>> {
    let mut answers = Vec::new();
    for (keys, places) in by_partition(core, sids, |sid| sid.as_str()) {
        let part: Vec<&Sid> = places.iter().map(|&at| &sids[at]).collect();
        let pages = script::question_list(&core.cmd, keys, 0, PAGE, &part).await?;
        answers.extend(places.into_iter().zip(pages.into_iter().map(Ok)));
    }
    Ok(in_order(answers))
}

/// The places of the items of each partition: one script call touches one.
fn by_partition<'a, T>(
    core: &'a Core,
    items: &[T],
    id: impl Fn(&T) -> &str,
) -> impl Iterator<Item = (&'a Keys, Vec<usize>)> {
    let mut parts: BTreeMap<&str, (&'a Keys, Vec<usize>)> = BTreeMap::new();
    for (at, item) in items.iter().enumerate() {
        let keys = core.keys_of(id(item));
        parts.entry(&keys.inboxes).or_insert((keys, Vec::new())).1.push(at);
    }
    parts.into_values()
}

/// Back in the order of the requests. A reply that is too short shows as too few answers.
fn in_order<T>(mut answers: Vec<(usize, T)>) -> Vec<T> {
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}
