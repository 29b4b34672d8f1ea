//! The imperative style: a leg that asks and goes on in one function, and hears of cancelling.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::context::raw;
use super::held::HeldLeg;
use super::worker::Inner;
use crate::keys::encode_key;
use crate::script::{self, Asked, Held, Lost};
use crate::{Error, Result};

/// Most requests in a task's life.
pub(super) const MAX_KEYS: u64 = 256;
const MAX_KEY_BYTES: usize = 256;

/// A running leg's way to its task: to put requests to the client, to tell how it goes, and to hear of cancelling.
///
/// What is asked and answered is stored with the task. A handler that asks in this style keeps its place in memory,
/// though: when its worker dies, the leg is run again from its beginning, and each `request_input` with a key that was
/// answered gives that answer at once. So write such a handler as one that may be run again. A leg that ends with
/// [`LegOutcome::InputRequired`](super::LegOutcome::InputRequired) has no such beginning to go back to.
#[derive(Clone)]
pub struct TaskContext {
    pub(super) worker: Arc<Inner>,
    pub(super) leg: Arc<HeldLeg>,
}

/// Why waiting inside of a leg ended without what was waited for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskExit {
    /// The client cancelled the task.
    #[error("the task was cancelled")]
    Cancelled,
    /// The task expired.
    #[error("the task expired")]
    Expired,
    /// The worker shuts down; the leg is run again by another one.
    #[error("the worker shuts down")]
    ShuttingDown,
    /// Somebody else has the leg, or finished the task.
    #[error("the leg is somebody else's now")]
    Superseded,
    /// The request cannot be put.
    #[error(transparent)]
    Error(#[from] Error),
}

impl std::fmt::Debug for TaskContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskContext").field("task", &self.leg.id).finish_non_exhaustive()
    }
}

impl TaskContext {
    /// The task's id.
    pub fn task_id(&self) -> &str {
        self.leg.id.as_str()
    }

    /// Puts a request to the client and waits for its answer. The task is `input_required` meanwhile; another leg may use
    /// this one's place in the worker, and its work budget stands still.
    ///
    /// The client sees the request under `key`. A key is one request for the task's whole life: asking again with the
    /// same key, as a leg does that is run again, waits for the same answer, and gives it when it is there.
    ///
    /// # Errors
    /// [`TaskExit`] says why there will be no answer.
    ///
    /// # Cancel safety
    /// A dropped call leaves the request open; the answer is there for the next call.
    pub async fn request_input(
        &self,
        key: &str,
        request: &impl Serialize,
    ) -> std::result::Result<Box<RawValue>, TaskExit> {
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return Err(Error::invalid("input request key", "use 1 to 256 bytes").into());
        }
        let request = raw("input request", request)?;
        self.worker.tasks.check_size("input request", request.get().len())?;
        let key = encode_key(key);
        let mut waiting: Option<Waiting<'_>> = None;
        let mut pause = Duration::from_millis(50);
        let answer = loop {
            let mut news = std::pin::pin!(self.leg.news.notified());
            // From here on no news is missed.
            news.as_mut().enable();
            let life = match self.ask(&key, request.get()).await {
                Ok(Asked::Answered(answer)) => break answer,
                Ok(Asked::Open { life }) => life,
                Ok(Asked::Cancelled) => return Err(TaskExit::Cancelled),
                Ok(Asked::Lost(why)) => {
                    self.leg.lose(why);
                    return Err(exit(why));
                }
                Ok(Asked::Full) => {
                    return Err(Error::invalid(
                        "input request",
                        format!("is more than {MAX_KEYS} of a task"),
                    )
                    .into());
                }
                Ok(Asked::Reused) => {
                    return Err(Error::invalid("input request key", "belongs to an earlier request").into());
                }
                Err(e) if e.is_retryable() => {
                    // What is stored is unknown; the same call again finds out.
                    tracing::debug!(task = %self.leg.id, error = %e, "asking again");
                    pause = (pause * 2).min(Duration::from_secs(1));
                    pause
                }
                Err(e) => return Err(e.into()),
            };
            if waiting.is_none() {
                waiting = Some(Waiting::begin(self, key.clone()));
            }
            tokio::select! {
                () = &mut news => {}
                // The task expires, unless it was extended meanwhile: ask.
                () = tokio::time::sleep(life.max(Duration::from_millis(1))) => {}
                () = self.leg.lost.cancelled() => return Err(self.leg.why_lost().map_or(TaskExit::Superseded, exit)),
                () = self.leg.cancel.cancelled() => return Err(TaskExit::Cancelled),
                () = self.worker.stop.cancelled() => return Err(TaskExit::ShuttingDown),
            }
        };
        if let Some(waiting) = waiting {
            waiting.end().await;
        }
        let text = String::from_utf8(answer.to_vec()).map_err(|e| Error::invalid("answer", e.to_string()))?;
        Ok(RawValue::from_string(text).map_err(|e| Error::invalid("answer", e.to_string()))?)
    }

    async fn ask(&self, key: &str, request: &str) -> Result<Asked> {
        let core = self.worker.tasks.core();
        let leg = Held { address: &self.leg.address, lease: &self.leg.lease };
        let keys = self.worker.tasks.keys();
        let asked = script::leg_ask(&core.cmd, keys, leg, key, request.as_bytes(), MAX_KEYS).await?;
        if matches!(asked, Asked::Open { .. }) {
            self.worker.tell_session(&self.leg);
        }
        Ok(asked)
    }

    /// Sets the task's status message. Returns at once; of messages that come faster than they can be stored, the newest
    /// is. What was set last before the leg ends is never lost.
    pub fn set_status_message(&self, message: impl Into<String>) {
        if !self.leg.put_message(message.into()) {
            return;
        }
        let (worker, leg) = (self.worker.clone(), self.leg.clone());
        self.worker.engine.spawn(async move {
            while let Some(message) = leg.next_message() {
                let core = worker.tasks.core();
                let held = Held { address: &leg.address, lease: &leg.lease };
                let said = script::leg_say(&core.cmd, worker.tasks.keys(), held, super::cut(&message)).await;
                match said {
                    Ok(Ok(())) => worker.tell_session(&leg),
                    Ok(Err(why)) => leg.lose(why),
                    Err(error) => tracing::debug!(task = %leg.id, %error, "a status message was not stored"),
                }
            }
        });
    }

    /// Whether the client asked to cancel the task.
    pub fn is_cancel_requested(&self) -> bool {
        self.leg.cancel.is_cancelled()
    }

    /// Until the client asks to cancel the task. A handler that stops for it returns
    /// [`LegOutcome::Cancelled`](super::LegOutcome::Cancelled); one that finishes all the same completes the task.
    pub async fn cancelled(&self) {
        self.leg.cancel.cancelled().await;
    }

    /// Until the worker is told to stop: hand over what can be handed over, then return
    /// [`LegOutcome::GiveBack`](super::LegOutcome::GiveBack), or finish within the grace period.
    pub async fn shutting_down(&self) {
        self.worker.stop.cancelled().await;
    }

    /// Until when the task lives, as far as is known: every renewal of the lease may extend that.
    pub fn expires_in(&self) -> Duration {
        self.leg.expires().saturating_duration_since(Instant::now())
    }
}

fn exit(why: Lost) -> TaskExit {
    match why {
        Lost::Gone => TaskExit::Expired,
        Lost::Fenced => TaskExit::Superseded,
    }
}

/// While a leg waits, it works for nobody: its slot is free, its budget stands still.
struct Waiting<'a> {
    context: &'a TaskContext,
    key: String,
    over: bool,
}

impl<'a> Waiting<'a> {
    fn begin(context: &'a TaskContext, key: String) -> Self {
        context.leg.begin_wait(&key);
        context.worker.look();
        Self { context, key, over: false }
    }

    /// Waits for a slot, so that no more legs work than may.
    async fn end(mut self) {
        if self.context.leg.end_wait(&self.key) {
            // Dropped here, it works on without a slot.
            let slot = self.context.worker.slots.clone().acquire_owned().await.ok();
            self.context.leg.resume(slot);
        }
        self.over = true;
    }
}

/// The handler gave up waiting: it works on without a slot, which is better than never.
impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.over && self.context.leg.end_wait(&self.key) {
            self.context.leg.resume(self.context.worker.slots.clone().try_acquire_owned().ok());
        }
    }
}
