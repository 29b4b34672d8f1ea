//! From FastMCP 3 workers into our queues.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{FastMcp, KNOWN, Sessions, THEIR_TTL, convert};
use crate::script::{self, Taken};
use crate::{Error, MessageId, Push, Result, SessionId};

/// Sessions in one call.
const CHUNK: usize = 128;
/// Messages of a session in one call.
const WANT: u64 = 64;
/// How often all sessions are looked for.
const DISCOVER_EVERY: Duration = Duration::from_secs(1);
/// How long the bridge's lists wait for a bridge.
const KEEP: Duration = Duration::from_secs(24 * 3600);
/// Longest pause after a failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What a bridge brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Brought {
    /// Messages that are in our queues now.
    pub messages: u64,
    /// Messages whose time was over by FastMCP's rule.
    pub expired: u64,
    /// Messages that our queue does not take now, because it is full or they are too large. They stay where they are, and
    /// what is behind them waits.
    pub held: u64,
}

impl FastMcp {
    /// Brings what FastMCP 3 workers push into our queues, until `cancel` is cancelled. Failures of either server are
    /// logged and tried again. It ends when what it has in its hands is done with, at the latest after
    /// [`Builder::deadline`](crate::Builder::deadline).
    ///
    /// Any number of bridges may run. No FastMCP subscriber should serve the same sessions: it would take its share.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the next bridge goes on where this one stopped.
    pub async fn run_to_courier(&self, sessions: Sessions, cancel: &CancellationToken) -> Brought {
        let mut total = Brought::default();
        let (mut known, mut discover) = (BTreeSet::new(), Instant::now());
        let (mut told, mut pause) = (String::new(), self.look_every);
        loop {
            let round = async {
                match &sessions {
                    Sessions::These(these) => known.extend(these.iter().cloned()),
                    Sessions::All if discover <= Instant::now() => {
                        known = self.find(&self.keys.queues()).await?;
                        known.extend(self.find(&self.keys.leftovers()).await?);
                        discover = Instant::now() + DISCOVER_EVERY;
                    }
                    Sessions::All => {}
                }
                let all: Vec<SessionId> = known.iter().cloned().collect();
                self.bring(&all).await
            };
            match round.await {
                Ok(brought) => {
                    told.clear();
                    total.messages += brought.messages;
                    total.expired += brought.expired;
                    total.held = brought.held;
                    // More may be there at once.
                    pause = if brought.messages > 0 { Duration::ZERO } else { self.look_every };
                }
                Err(e) => {
                    let why = e.to_string();
                    if why != told {
                        tracing::warn!(error = %e, "nothing is brought from FastMCP, trying on");
                        told = why;
                    }
                    pause = (pause.max(self.look_every) * 2).min(LONGEST_PAUSE);
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = cancel.cancelled() => return total,
            }
        }
    }

    /// Brings what is there now, up to 64 messages of each session.
    ///
    /// A message leaves FastMCP's list into one of the bridge's, from there into our queue under an id that it keeps,
    /// and only then the bridge's list. Redis: `lua/fastmcp_take.lua`, `lua/push.lua`, `lua/fastmcp_done.lua`.
    ///
    /// # Errors
    /// As [`Courier::push`](crate::Courier::push). What was not brought comes with the next call.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn bring(&self, sessions: &[SessionId]) -> Result<Brought> {
        let mut brought = Brought::default();
        for chunk in sessions.chunks(CHUNK) {
            let name =
                |session: &SessionId| (self.keys.queue(session.as_str()), self.keys.taken(session.as_str()));
            let lists: Vec<_> = chunk.iter().map(name).collect();
            let taken = script::fastmcp_take(&self.theirs, &lists, WANT, THEIR_TTL, KEEP).await?;
            for ((session, (_, list)), messages) in chunk.iter().zip(&lists).zip(taken) {
                if !messages.is_empty() {
                    self.hand_on(session, list, &messages, &mut brought).await?;
                }
            }
        }
        Ok(brought)
    }

    /// In order: what comes behind one that is not taken stays behind it.
    async fn hand_on(
        &self,
        session: &SessionId,
        list: &str,
        messages: &[Taken],
        sum: &mut Brought,
    ) -> Result<()> {
        let mut done = 0;
        let failed = loop {
            match self.push_some(session, &messages[done..]).await {
                Ok(0) => break None,
                Ok(some) => done += some,
                Err((some, e)) => {
                    done += some;
                    break Some(e);
                }
            }
        };
        let expired = messages[..done].iter().filter(|message| message.left.is_none()).count();
        sum.expired += expired as u64;
        sum.messages += (done - expired) as u64;
        if done > 0 {
            let done: Vec<_> = messages[..done].iter().map(|message| (list, message.id.as_str())).collect();
            script::fastmcp_done(&self.theirs, &done).await?;
        }
        match failed {
            Some(e @ (Error::QueueFull { .. } | Error::TooLarge { .. })) => {
                tracing::debug!(%session, error = %e, "a message of FastMCP's is held");
                sum.held += 1;
                Ok(())
            }
            Some(e) => Err(e),
            None => Ok(()),
        }
    }

    /// The first one, and as many more as there was room for behind it: none may get in that stands behind one that
    /// does not. Answers how many are done with.
    async fn push_some(&self, session: &SessionId, messages: &[Taken]) -> Result<usize, (usize, Error)> {
        let Some(first) = messages.first() else { return Ok(0) };
        let mut room = 0;
        if let Some(push) = self.push_of(session, first).map_err(|e| (0, e))? {
            let pushed = self.courier.push(push).await.map_err(|e| (0, e))?;
            room = self.courier.core.config.max_pending.saturating_sub(pushed.pending);
        }
        let mut some = Vec::new();
        for message in messages[1..].iter().take(usize::try_from(room).unwrap_or(usize::MAX)) {
            match self.push_of(session, message) {
                Ok(Some(push)) if push.body.len() <= self.courier.core.config.max_body_bytes => {
                    some.push(push)
                }
                // Its own turn comes.
                _ => break,
            }
        }
        let mut done = 1;
        for pushed in self.courier.push_many(some).await {
            pushed.map_err(|e| (done, e))?;
            done += 1;
        }
        Ok(done)
    }

    /// None when its time is over.
    fn push_of(&self, session: &SessionId, message: &Taken) -> Result<Option<Push>> {
        let Some(left) = message.left else { return Ok(None) };
        let push = Push::new(session, convert::to_courier(&message.text));
        Ok(Some(push.id(MessageId::new(&message.id)?).ttl(left).dedupe(KNOWN)))
    }
}
