//! The engine's script calls, many sessions of one partition in each.

use std::sync::Arc;

use super::batch::Batcher;
use crate::Result;
use crate::core::Core;
use crate::keys::{Keys, Sid};
use crate::prepared::Prepared;
use crate::replicas::{self, Stored};
use crate::script::{self, AckItem, ClaimMode, Claimed, Denied, Next, PopItem};

/// What a script that checks the token answers.
pub(super) type Answer<T> = std::result::Result<T, Denied>;

/// Sessions in one claim or release.
const CLAIM_BATCH: usize = 500;
/// Sessions in one ack or pop.
const ACK_BATCH: usize = 128;

/// Messages in one push, and about how many bytes of bodies.
const PUSH_BATCH: usize = 128;
const PUSH_BATCH_BYTES: usize = 256 * 1024;

/// One batcher for each verb and partition.
pub(super) struct Calls {
    pub(super) pushes: Sorted<Arc<Prepared>, Stored>,
    /// Those that wait for replicas: one call at a time, for each holds up what is behind it on its connection.
    pub(super) replicated: Sorted<Arc<Prepared>, Stored>,
    pub(super) acks: Sorted<AckItem, Answer<Next>>,
    pub(super) pops: Sorted<PopItem, Answer<Next>>,
    /// One call at a time: two claims of one session by one process keep their order, or the older one would fence
    /// the newer.
    pub(super) claims: Sorted<(Sid, ClaimMode), Answer<Claimed>>,
    pub(super) releases: Sorted<(Sid, u64), bool>,
}

/// A batcher for each partition: the keys of one call are in one place.
pub(super) struct Sorted<Q, R> {
    core: Arc<Core>,
    by_partition: Vec<Batcher<Q, R>>,
    sid: fn(&Q) -> &Sid,
}

impl<Q: Send + 'static, R: Send + 'static> Sorted<Q, R> {
    fn new(core: &Arc<Core>, sid: fn(&Q) -> &Sid, batcher: impl Fn(usize) -> Batcher<Q, R>) -> Self {
        let by_partition = (0..core.partitions.len()).map(batcher).collect();
        Self { core: core.clone(), by_partition, sid }
    }

    /// As [`Batcher::call`], in the session's partition.
    pub(super) async fn call(&self, request: Q) -> Result<R> {
        let partition = self.core.partitions.of((self.sid)(&request).as_str());
        self.by_partition[partition].call(request).await
    }

    /// As [`Batcher::tell`], in the session's partition.
    pub(super) fn tell(&self, request: Q, tell: impl FnOnce(Result<R>) + Send + 'static) {
        let partition = self.core.partitions.of((self.sid)(&request).as_str());
        self.by_partition[partition].tell(request, tell);
    }
}

impl Calls {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        let pushes = |calls: usize| {
            move |p: usize| {
                let core = core.clone();
                let weight = |prepared: &Arc<Prepared>| prepared.weight();
                let limit = (PUSH_BATCH_BYTES, weight as fn(&Arc<Prepared>) -> usize);
                Batcher::weighed("push", PUSH_BATCH, limit, calls, move |all: Vec<Arc<Prepared>>| {
                    let core = core.clone();
                    Box::pin(async move {
                        let all: Vec<&Prepared> = all.iter().map(|one| &**one).collect();
                        replicas::push_runs(&core, &core.partitions[p].keys, &all).await
                    })
                })
            }
        };
        let acks = |p: usize| {
            let core = core.clone();
            Batcher::new("ack", ACK_BATCH, 2, move |items: Vec<AckItem>| {
                let core = core.clone();
                Box::pin(async move {
                    let keys = &core.partitions[p].keys;
                    script::ack(&core.cmd, keys, &core.config, &core.node, &items).await
                })
            })
        };
        let pops = |p: usize| {
            let core = core.clone();
            Batcher::new("pop", ACK_BATCH, 2, move |items: Vec<PopItem>| {
                let core = core.clone();
                Box::pin(async move {
                    let keys = &core.partitions[p].keys;
                    script::pop(&core.cmd, keys, &core.config, &core.node, &items).await
                })
            })
        };
        let claims = |p: usize| {
            let core = core.clone();
            Batcher::new("claim", CLAIM_BATCH, 1, move |wanted: Vec<(Sid, ClaimMode)>| {
                let core = core.clone();
                Box::pin(async move { claim_in_order(&core, &core.partitions[p].keys, &wanted).await })
            })
        };
        let releases = |p: usize| {
            let core = core.clone();
            Batcher::new("release", CLAIM_BATCH, 2, move |claims: Vec<(Sid, u64)>| {
                let core = core.clone();
                Box::pin(async move {
                    let keys = &core.partitions[p].keys;
                    let given = script::release(&core.cmd, keys, &core.node, &claims).await?;
                    Ok(given.into_iter().map(Ok).collect())
                })
            })
        };
        Self {
            pushes: Sorted::new(core, |prepared| &prepared.sid, pushes(2)),
            replicated: Sorted::new(core, |prepared| &prepared.sid, pushes(1)),
            acks: Sorted::new(core, |item| &item.sid, acks),
            pops: Sorted::new(core, |item| &item.sid, pops),
            claims: Sorted::new(core, |(sid, _)| sid, claims),
            releases: Sorted::new(core, |(sid, _)| sid, releases),
        }
    }
}

/// A call for each run of one mode, in order.
async fn claim_in_order(
    core: &Core,
    keys: &Keys,
    wanted: &[(Sid, ClaimMode)],
) -> Result<Vec<Result<Answer<Claimed>>>> {
    let mut answers = Vec::with_capacity(wanted.len());
    for run in wanted.chunk_by(|a, b| a.1 == b.1) {
        let sids: Vec<Sid> = run.iter().map(|(sid, _)| sid.clone()).collect();
        match script::claim(&core.cmd, keys, &core.node, run[0].1, &sids).await {
            Ok(claimed) => answers.extend(claimed),
            Err(e) => answers.extend(run.iter().map(|_| Err(e.clone()))),
        }
    }
    Ok(answers)
}
