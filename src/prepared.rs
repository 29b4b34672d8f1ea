//! A push, checked: what the script gets, and what its answer means.

use crate::config;
use crate::core::Core;
use crate::keys::Sid;
use crate::metrics::add;
use crate::script::{PushArgs, PushReply};
use crate::trace::MAX_TRACE_BYTES;
use crate::{Error, MessageId, OnFull, Push, PushStatus, Pushed, Result, TraceContext};

/// Most bytes of a coalescing key.
const MAX_COALESCE_BYTES: usize = 256;

/// Everything but the sending. Its id was chosen before the first try, so that a repetition is the same message.
pub(crate) struct Prepared {
    push: Push,
    sid: Sid,
    id: MessageId,
    ttl_ms: u64,
    pub(crate) dedupe_ms: u64,
    max_pending: u64,
    on_full: OnFull,
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
        Ok(Self {
            ttl_ms: config::millis("ttl", push.ttl.unwrap_or(config.ttl))?,
            id: push.id.clone().unwrap_or_else(MessageId::generate),
            sid: Sid::of(&push.session),
            on_full: push.on_full.unwrap_or(config.on_full),
            dedupe_ms,
            max_pending,
            push,
        })
    }

    pub(crate) fn args<'a>(&'a self, core: &Core) -> PushArgs<'a> {
        PushArgs {
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
    pub(crate) fn settle(self, core: &Core, reply: PushReply) -> Result<Pushed> {
        match reply {
            PushReply::Full { pending } => {
                add(&core.counters.refused_full, 1);
                Err(Error::QueueFull { session: self.push.session, pending, limit: self.max_pending })
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
                Ok(Pushed { id: self.id, status, pending, dropped })
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
