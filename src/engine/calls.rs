//! The engine's script calls, many sessions in each.

use std::sync::Arc;

use super::batch::Batcher;
use crate::Result;
use crate::core::Core;
use crate::keys::Sid;
use crate::prepared::Prepared;
use crate::script::{self, AckItem, ClaimMode, Claimed, Denied, Next, PopItem, PushReply};

/// What a script that checks the token answers.
pub(super) type Answer<T> = std::result::Result<T, Denied>;

/// Sessions in one claim or release.
const CLAIM_BATCH: usize = 500;
/// Sessions in one ack or pop.
const ACK_BATCH: usize = 128;

/// Messages in one push, and about how many bytes of bodies.
const PUSH_BATCH: usize = 128;
const PUSH_BATCH_BYTES: usize = 256 * 1024;

/// One batcher for each verb.
pub(super) struct Calls {
    pub(super) pushes: Batcher<Arc<Prepared>, PushReply>,
    pub(super) acks: Batcher<AckItem, Answer<Next>>,
    pub(super) pops: Batcher<PopItem, Answer<Next>>,
    /// One call at a time: two claims of one session by one process keep their order, or the older one would fence
    /// the newer.
    pub(super) claims: Batcher<(Sid, ClaimMode), Answer<Claimed>>,
    pub(super) releases: Batcher<(Sid, u64), bool>,
}

impl Calls {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        let pushes = {
            let core = core.clone();
            let weight = |prepared: &Arc<Prepared>| prepared.weight();
            Batcher::weighed(
                "push",
                PUSH_BATCH,
                (PUSH_BATCH_BYTES, weight),
                2,
                move |all: Vec<Arc<Prepared>>| {
                    let core = core.clone();
                    Box::pin(async move {
                        let args: Vec<_> = all.iter().map(|prepared| prepared.args(&core)).collect();
                        script::push(&core.cmd, &core.keys, &args).await
                    })
                },
            )
        };
        let acks = {
            let core = core.clone();
            Batcher::new("ack", ACK_BATCH, 2, move |items: Vec<AckItem>| {
                let core = core.clone();
                Box::pin(
                    async move { script::ack(&core.cmd, &core.keys, &core.config, &core.node, &items).await },
                )
            })
        };
        let pops = {
            let core = core.clone();
            Batcher::new("pop", ACK_BATCH, 2, move |items: Vec<PopItem>| {
                let core = core.clone();
                Box::pin(
                    async move { script::pop(&core.cmd, &core.keys, &core.config, &core.node, &items).await },
                )
            })
        };
        let claims = {
            let core = core.clone();
            Batcher::new("claim", CLAIM_BATCH, 1, move |wanted: Vec<(Sid, ClaimMode)>| {
                let core = core.clone();
                Box::pin(async move { claim_in_order(&core, &wanted).await })
            })
        };
        let releases = {
            let core = core.clone();
            Batcher::new("release", CLAIM_BATCH, 2, move |claims: Vec<(Sid, u64)>| {
                let core = core.clone();
                Box::pin(async move {
                    let given = script::release(&core.cmd, &core.keys, &core.node, &claims).await?;
                    Ok(given.into_iter().map(Ok).collect())
                })
            })
        };
        Self { pushes, acks, pops, claims, releases }
    }
}

/// A call for each run of one mode, in order.
async fn claim_in_order(core: &Core, wanted: &[(Sid, ClaimMode)]) -> Result<Vec<Result<Answer<Claimed>>>> {
    let mut answers = Vec::with_capacity(wanted.len());
    for run in wanted.chunk_by(|a, b| a.1 == b.1) {
        let sids: Vec<Sid> = run.iter().map(|(sid, _)| sid.clone()).collect();
        match script::claim(&core.cmd, &core.keys, &core.node, run[0].1, &sids).await {
            Ok(claimed) => answers.extend(claimed),
            Err(e) => answers.extend(run.iter().map(|_| Err(e.clone()))),
        }
    }
    Ok(answers)
}
