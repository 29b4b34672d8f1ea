//! Dead letters: messages that could not be delivered, with their bytes and the reasons.

use std::time::Duration;

use crate::keys::Sid;
use crate::metrics::add;
use crate::record::{DeadEntry, Record};
use crate::{Courier, Error, MessageId, Result, SessionId, script};

/// One dead letter.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The message's id; empty when the record's format is not understood.
    pub id: String,
    /// Why it is here: `attempts` (out of attempts), `rejected` (by the sink), `format` (not understood).
    pub reason: String,
    /// Attempts that were made.
    pub attempts: u32,
    /// The first failure's text; empty when there was none.
    pub first_error: String,
    /// The last failure's text; empty when there was none.
    pub last_error: String,
    /// When it was queued, by the server's clock, in Unix milliseconds; 0 when not understood.
    pub enqueued_at_ms: u64,
    /// When it became a dead letter, by the server's clock, in Unix milliseconds.
    pub died_at_ms: u64,
    /// The body, byte for byte as it was pushed; the whole record when its format is not understood.
    pub body: Vec<u8>,
}

impl std::fmt::Debug for DeadLetter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeadLetter")
            .field("id", &self.id)
            .field("reason", &self.reason)
            .field("attempts", &self.attempts)
            .field("last_error", &self.last_error)
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

impl DeadLetter {
    fn read(entry: &bytes::Bytes) -> Self {
        let (died_at_ms, reason, record) = match DeadEntry::parse(entry) {
            Some(e) => (e.died_ms, e.reason, e.record),
            None => (0, "format".into(), entry.clone()),
        };
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        match Record::parse(&record) {
            Some(r) => Self {
                id: r.id.as_str().to_owned(),
                reason,
                attempts: r.attempts,
                first_error: text(&r.first_error),
                last_error: text(&r.last_error),
                enqueued_at_ms: r.enqueued_ms,
                died_at_ms,
                body: r.body.to_vec(),
            },
            None => Self {
                id: String::new(),
                reason,
                attempts: 0,
                first_error: String::new(),
                last_error: String::new(),
                enqueued_at_ms: 0,
                died_at_ms,
                body: record.to_vec(),
            },
        }
    }
}

/// The dead letters of one session.
#[derive(Clone, Debug)]
pub struct DeadLetters {
    courier: Courier,
    session: SessionId,
    sid: Sid,
}

impl Courier {
    /// The dead letters of a session.
    pub fn dead_letters(&self, session: &SessionId) -> DeadLetters {
        DeadLetters { courier: self.clone(), session: session.clone(), sid: Sid::of(session) }
    }
}

impl DeadLetters {
    /// A page, oldest first, and the number of all. At most 1,000 letters a page. Redis: `lua/dead_list.lua`.
    ///
    /// # Errors
    /// Those of the connection, and [`Error::Refused`].
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn list(&self, offset: u64, limit: u64) -> Result<(u64, Vec<DeadLetter>)> {
        let core = &self.courier.core;
        let limit = limit.min(1000);
        let offset = offset.min(u64::from(u32::MAX));
        let (total, entries) = self
            .courier
            .repeat(
                "dead_list",
                || script::dead_list(&core.cmd, core.keys_of(self.sid.as_str()), &self.sid, offset, limit),
                true,
            )
            .await?;
        let mut letters: Vec<DeadLetter> = entries.iter().map(DeadLetter::read).collect();
        for letter in &mut letters {
            // One that does not open is shown as it is stored.
            if let Ok(body) = core.config.bodies.open(&self.sid, &letter.id, letter.body.clone().into()) {
                letter.body = body.into();
            }
        }
        Ok((total, letters))
    }

    /// Puts one message, or all with `None`, at the end of the session's queue again, with fresh attempts and the
    /// default time to live; answers how many. One whose format is not understood stays. Redis: `lua/dead_requeue.lua`.
    ///
    /// # Errors
    /// [`Error::QueueFull`] when the queue's limit was reached on the way: what was moved before stays moved.
    /// Those of the connection, and [`Error::Refused`].
    ///
    /// # Cancel safety
    /// A dropped call may have moved some; each is in exactly one of the two places.
    pub async fn requeue(&self, id: Option<&MessageId>) -> Result<u64> {
        let core = &self.courier.core;
        // Refused in the middle, a letter would be in both places.
        let keys = core.keys_of(self.sid.as_str());
        let check = || script::probe(&core.cmd, keys, script::Role::Undertaker);
        self.courier.repeat("dead_requeue", check, true).await?;
        let mut total = 0;
        loop {
            let moved = self
                .courier
                .repeat(
                    "dead_requeue",
                    || {
                        script::dead_requeue(
                            &core.cmd,
                            core.keys_of(self.sid.as_str()),
                            &core.config,
                            &self.sid,
                            id,
                        )
                    },
                    true,
                )
                .await?;
            total += moved.count;
            add(&core.counters.revived, moved.count);
            if moved.full {
                let limit = core.config.max_pending;
                return Err(Error::QueueFull { session: self.session.clone(), pending: limit, limit });
            }
            if !moved.more || moved.count == 0 {
                return Ok(total);
            }
            // Other callers of a busy server have their turn.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Removes one message, or all with `None`, for good; answers how many. Redis: `lua/dead_purge.lua`.
    ///
    /// # Errors
    /// Those of the connection, and [`Error::Refused`].
    ///
    /// # Cancel safety
    /// A dropped call may have removed them.
    pub async fn purge(&self, id: Option<&MessageId>) -> Result<u64> {
        let core = &self.courier.core;
        let purged = self
            .courier
            .repeat(
                "dead_purge",
                || script::dead_purge(&core.cmd, core.keys_of(self.sid.as_str()), &self.sid, id),
                true,
            )
            .await?;
        add(&core.counters.purged, purged);
        Ok(purged)
    }
}
