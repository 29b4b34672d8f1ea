//! A push, checked: what the script gets, and what its answer means.

use std::sync::atomic::Ordering;

use crate::config;
use crate::core::Core;
use crate::keys::Sid;
use crate::metrics::add;
use crate::replicas::{Replicas, Stored};
use crate::script::{PushArgs, PushReply};
use crate::trace::MAX_TRACE_BYTES;
use crate::{Error, MessageId, OnFull, Push, PushStatus, Pushed, Result, TraceContext};

/// Most bytes of a coalescing key.
const MAX_COALESCE_BYTES: usize = 256;
/// Messages of a batch in one script call, and about how many bytes of bodies.
const PART: usize = 256;
const PART_BYTES: usize = 1 << 20;
/// Ids made here whose marks share a key: a kilobyte of bits.
const BLOCK_BITS: u64 = 8192;

/// Where it is marked that an id was pushed.
#[derive(Clone, Copy)]
enum Mark {
    /// An id of the caller's, which anybody may repeat: a key of its own.
    Own,
    /// An id made here, which only we repeat: a bit among this producer's.
    Bit { block: u64, bit: u64 },
}

/// Everything but the sending. Its id was chosen before the first try, so that a repetition is the same message.
pub(crate) struct Prepared {
    push: Push,
    pub(crate) sid: Sid,
    id: MessageId,
    ttl_ms: u64,
    dedupe_ms: u64,
    mark: Mark,
    max_pending: u64,
    on_full: OnFull,
    replicas: Option<Replicas>,
}

impl Prepared {
    /// Nothing is sent for a push that breaks a limit.
    pub(crate) fn check(core: &Core, mut push: Push) -> Result<Self> {
        let config = &core.config;
        if push.trace.is_none() {
            push.trace = TraceContext::current().map(|context| context.to_text());
        }
        if push.body.len() > config.max_body_bytes {
            add(&core.counters.refused_size, 1);
            return Err(Error::TooLarge {
                what: "body",
                actual: push.body.len(),
                limit: config.max_body_bytes,
            });
        }
        bounded("coalescing key", push.coalesce.as_deref(), MAX_COALESCE_BYTES)?;
        bounded("trace context", push.trace.as_deref(), MAX_TRACE_BYTES)?;
        if push.coalesce.as_deref() == Some("") {
            return Err(Error::invalid("coalescing key", "is empty; leave it out instead"));
        }
        let dedupe = push.dedupe.unwrap_or(config.dedupe);
        let dedupe_ms = if dedupe.is_zero() { 0 } else { config::millis("dedupe window", dedupe)? };
        let max_pending = push.max_pending.unwrap_or(config.max_pending);
        if max_pending == 0 {
            return Err(Error::invalid("max pending", "is zero; nothing could ever be queued"));
        }
        let replicas = match push.replicas {
            Some(wanted) => Some(wanted.check(config.deadline)?),
            None => config.replicas,
        };
        let mark = match push.id {
            Some(_) => Mark::Own,
            None => {
                let number = core.made_ids.fetch_add(1, Ordering::Relaxed);
                Mark::Bit { block: number / BLOCK_BITS, bit: number % BLOCK_BITS }
            }
        };
        let (sid, id) = (Sid::of(&push.session), push.id.clone().unwrap_or_else(MessageId::generate));
        push.body = config.bodies.seal(&sid, &id, push.body)?;
        Ok(Self {
            mark,
            ttl_ms: config::millis("ttl", push.ttl.unwrap_or(config.ttl))?,
            id,
            sid,
            on_full: push.on_full.unwrap_or(config.on_full),
            dedupe_ms,
            max_pending,
            replicas,
            push,
        })
    }

    /// Whether pushing it twice queues it once.
    pub(crate) fn is_idempotent(&self) -> bool {
        self.dedupe_ms > 0
    }

    /// How many replicas must have it.
    pub(crate) fn replicas(&self) -> Option<Replicas> {
        self.replicas
    }

    /// How many of them travel in one script call.
    pub(crate) fn part_of(all: &[&Self]) -> usize {
        let mut bytes = 0;
        let fits = |one: &&&Self| {
            bytes += one.weight();
            bytes <= PART_BYTES && one.replicas == all[0].replicas
        };
        all.iter().take(PART).take_while(fits).count().max(1)
    }

    /// About its bytes on the way.
    pub(crate) fn weight(&self) -> usize {
        self.push.body.len()
    }

    pub(crate) fn args<'a>(&'a self, core: &Core) -> PushArgs<'a> {
        let keys = core.keys_of(self.sid.as_str());
        let (mark, bit) = match self.mark {
            Mark::Own => (keys.dedupe(&self.sid, &self.id), None),
            Mark::Bit { block, bit } => (keys.dedupe_block(&core.node, block), Some(bit)),
        };
        PushArgs {
            mark,
            bit,
            sid: &self.sid,
            id: &self.id,
            body: &self.push.body,
            ttl_ms: self.ttl_ms,
            dedupe_ms: self.dedupe_ms,
            max_pending: self.max_pending,
            on_full: self.on_full,
            coalesce: self.push.coalesce.as_deref().unwrap_or(""),
            trace: self.push.trace.as_deref().unwrap_or(""),
            look_again_ms: config::millis("look again", core.config.look_again).unwrap_or(1000),
            handoff_bytes: core.config.handoff_bytes as u64,
        }
    }

    /// Counts the answer and puts it into the caller's words.
    pub(crate) fn settle(&self, core: &Core, (reply, replicas): Stored) -> Result<Pushed> {
        match reply {
            PushReply::Full { pending } => {
                add(&core.counters.refused_full, 1);
                Err(Error::QueueFull { session: self.push.session.clone(), pending, limit: self.max_pending })
            }
            PushReply::Stored { status, pending, dropped } => {
                let counter = match status {
                    PushStatus::Queued => &core.counters.pushed,
                    PushStatus::Coalesced => &core.counters.coalesced,
                    PushStatus::Duplicate => &core.counters.duplicates,
                };
                add(counter, 1);
                add(&core.counters.dropped, dropped);
                let (session, id) = (&self.push.session, &self.id);
                tracing::debug!(%session, %id, status = status.as_str(), pending, "push");
                if let (Some(wanted), Some(confirmed)) = (self.replicas, replicas)
                    && confirmed < u64::from(wanted.count)
                {
                    let (wanted, within) = (u64::from(wanted.count), wanted.within);
                    return Err(Error::NotReplicated { id: id.clone(), confirmed, wanted, within });
                }
                Ok(Pushed { id: self.id.clone(), status, pending, dropped, replicas })
            }
        }
    }
}

fn bounded(what: &'static str, text: Option<&str>, limit: usize) -> Result<()> {
    let actual = text.map_or(0, str::len);
    if actual > limit {
        return Err(Error::TooLarge { what, actual, limit });
    }
    Ok(())
}
