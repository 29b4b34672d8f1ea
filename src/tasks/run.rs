//! One leg: the handler runs on its own threads, this beside it, and sees to the end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::handler::{InputRequired, Leg, LegOutcome, rpc_error, without_panic};
use super::held::HeldLeg;
use super::leg_context::TaskContext;
use super::worker::Inner;
use super::{ContextSnapshot, cut, queue};
use crate::keys::{decode, encode_key};
use crate::script::{self, End, Found, Held, LegEnded, TakenLeg};
use crate::{Error, Result};

/// How long a handler whose leg is lost may take to end by itself: one that waits for an answer hears why.
const LAST_WORDS: Duration = Duration::from_millis(200);

pub(super) async fn supervise(inner: Arc<Inner>, held: Arc<HeldLeg>, taken: TakenLeg) {
    let attempt = u32::try_from(taken.attempt).unwrap_or(u32::MAX);
    let number = taken.number;
    let span = tracing::debug_span!("leg", task = %held.id, leg = number, attempt);
    let leg = leg(&inner, &held, taken);
    #[cfg(feature = "otel")]
    if let Some(made_in) = leg.as_ref().ok().and_then(|leg| leg.context.trace_context()) {
        crate::trace::continue_in(&span, &made_in);
    }
    carry_out(inner, held, leg, attempt, number).instrument(span).await;
}

async fn carry_out(
    inner: Arc<Inner>,
    held: Arc<HeldLeg>,
    leg: std::result::Result<Leg, String>,
    attempt: u32,
    number: u64,
) {
    tracing::debug!(task = %held.id, leg = number, attempt, "running");
    let outcome = match leg {
        Ok(leg) => run(&inner, &held, leg).await,
        // Never run without what belongs to it, and above all not as nobody.
        Err(why) => {
            tracing::error!(task = %held.id, why, "the task cannot be read");
            Some(LegOutcome::Failed(rpc_error(-32603, "the stored task cannot be read by its worker")))
        }
    };
    let found = match outcome {
        Some(outcome) => settle(&inner, &held, outcome, attempt, number).await,
        None => {
            tracing::info!(task = %held.id, why = ?held.why_lost(), "the leg is not ours any more");
            None
        }
    };
    inner.held.remove(&held);
    held.leave_slot();
    match found {
        Some(found) => inner.learn(found),
        None => inner.look(),
    }
}

/// What the handler gets.
fn leg(inner: &Arc<Inner>, held: &Arc<HeldLeg>, taken: TakenLeg) -> std::result::Result<Leg, String> {
    let vault = &inner.tasks.vault;
    let call = vault.open("call", &held.address, &taken.call)?;
    let context = vault.open("context", &held.address, &taken.context)?;
    let context: ContextSnapshot =
        serde_json::from_slice(&context).map_err(|e| format!("its context: {e}"))?;
    let state = match taken.state.is_empty() {
        true => None,
        false => Some(vault.open("state", &held.address, &taken.state)?),
    };
    let mut answers = std::collections::BTreeMap::new();
    for (key, answer) in &taken.answers {
        let text = String::from_utf8(answer.to_vec()).map_err(|e| format!("an answer: {e}"))?;
        let answer = serde_json::value::RawValue::from_string(text).map_err(|e| format!("an answer: {e}"))?;
        answers.insert(name_of(&decode(key)), answer);
    }
    Ok(Leg {
        id: held.id.clone(),
        scope: held.scope.clone(),
        call,
        context,
        number: taken.number,
        attempt: u32::try_from(taken.attempt).unwrap_or(u32::MAX),
        state,
        answers,
        task: TaskContext { worker: inner.clone(), leg: held.clone() },
    })
}

/// The key under which the client sees a request: the name, and the leg that asked. A later leg may ask under the same
/// name, and its key is a new one.
fn mint(name: &str, number: u64) -> String {
    format!("{name}.{}", number + 1)
}

fn name_of(key: &str) -> String {
    key.rsplit_once('.').map_or(key, |(name, _)| name).to_owned()
}

/// A handler that runs. Dropped, it is told to stop at its next await.
struct Running(JoinHandle<LegOutcome>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Until the handler ends, or must. `None`: the leg is not ours any more.
async fn run(inner: &Arc<Inner>, held: &Arc<HeldLeg>, leg: Leg) -> Option<LegOutcome> {
    let handling = {
        let (inner, runtime) = (inner.clone(), inner.runtime.clone());
        let handling = async move { without_panic(&*inner.handler, leg).await };
        runtime.spawn(handling.in_current_span())
    };
    let mut running = Running(handling);
    let ended = |joined: std::result::Result<LegOutcome, tokio::task::JoinError>| {
        // Only its runtime's end stops it like that: a panic was caught.
        joined.unwrap_or(LegOutcome::GiveBack)
    };
    loop {
        let budget = inner.settings.work_budget;
        let mut paused = std::pin::pin!(held.paused.notified());
        paused.as_mut().enable();
        let budget_ends = budget.and_then(|budget| held.budget_ends(budget));
        tokio::select! {
            joined = &mut running.0 => return Some(ended(joined)),
            () = held.lost.cancelled() => {
                let _ = tokio::time::timeout(LAST_WORDS, &mut running.0).await;
                return None;
            }
            () = inner.abort.cancelled() => {
                inner.interrupted.fetch_add(1, Ordering::Relaxed);
                return Some(LegOutcome::GiveBack);
            }
            () = sleep_until(budget_ends) => {
                let why = format!("it worked longer than {:?}", budget.unwrap_or_default());
                return Some(LegOutcome::Retry { why, after: None });
            }
            () = tokio::time::sleep_until(held.expires() + Duration::from_millis(1)) => {
                // Expired, unless it was extended: the server knows.
                if !queue::renew_some(inner, vec![held.clone()]).await.is_empty() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            () = &mut paused => {}
        }
    }
}

async fn sleep_until(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

/// Stores how the leg ended, until that is done or the leg is lost. The lease is renewed meanwhile.
async fn settle(
    inner: &Arc<Inner>,
    held: &Arc<HeldLeg>,
    outcome: LegOutcome,
    attempt: u32,
    number: u64,
) -> Option<Found> {
    let (ending, mut message) = Ending::of(inner, held, outcome, attempt, number);
    if message.is_empty() {
        message = held.last_message().unwrap_or_default();
    }
    let mut pause = Duration::from_millis(50);
    loop {
        match end(inner, held, &ending, cut(&message)).await {
            Ok((ended, found)) => {
                told(inner, held, ended, number);
                return Some(found);
            }
            Err(Error::Closed { .. }) => return None,
            Err(error) => {
                tracing::warn!(task = %held.id, %error, "the end of a leg is not stored, trying on")
            }
        }
        pause = (pause * 2).min(Duration::from_secs(1));
        tokio::select! {
            () = tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)) => {}
            () = held.lost.cancelled() => return None,
            () = inner.finished.cancelled() => return None,
        }
    }
}

fn told(inner: &Arc<Inner>, held: &Arc<HeldLeg>, ended: LegEnded, number: u64) {
    match ended {
        LegEnded::Lost(why) => {
            // A repeated call finds its own first one as well: then nothing is wrong.
            tracing::info!(task = %held.id, ?why, "the end of a leg came too late");
            held.lose(why);
        }
        LegEnded::Reused => {
            tracing::error!(task = %held.id, leg = number, "a key of a request was used before")
        }
        _ => {
            tracing::debug!(task = %held.id, leg = number, ?ended, "ended");
            if ended != LegEnded::Returned {
                inner.tell_session(held);
            }
        }
    }
}

/// An outcome, ready to be stored.
enum Ending {
    Done { status: &'static str, outcome: Bytes },
    Park { state: Vec<u8>, requests: Vec<(String, Bytes)>, delay: Duration },
    Retry { delay: Duration, error: Bytes },
    Release,
}

impl Ending {
    /// And the status message that goes with it.
    fn of(inner: &Inner, held: &HeldLeg, outcome: LegOutcome, attempt: u32, number: u64) -> (Self, String) {
        let settings = &inner.settings;
        let fits = |what: &str, bytes: usize| {
            let limit = settings.max_result_bytes;
            if bytes <= limit {
                Ok(())
            } else {
                Err(format!("{what} has {bytes} bytes, the limit is {limit}"))
            }
        };
        let failed = |why: String| {
            let error = rpc_error(-32603, &why).get().to_owned();
            (Self::Done { status: "failed", outcome: error.into() }, why)
        };
        match outcome {
            LegOutcome::Completed(result) => match fits("the result", result.get().len()) {
                Ok(()) => (Self::Done { status: "completed", outcome: text(result) }, String::new()),
                Err(why) => failed(why),
            },
            LegOutcome::Failed(error) => {
                let message = serde_json::from_str::<super::wire::RpcError<'_>>(error.get());
                let message = message.map(|e| e.message.into_owned()).unwrap_or_default();
                match fits("the error", error.get().len()) {
                    Ok(()) => (Self::Done { status: "failed", outcome: text(error) }, message),
                    Err(why) => failed(why),
                }
            }
            LegOutcome::Cancelled => {
                (Self::Done { status: "cancelled", outcome: Bytes::new() }, String::new())
            }
            LegOutcome::InputRequired(asked) => {
                let state = asked.state.as_ref().map_or(0, Bytes::len);
                let bytes = state + asked.requests.values().map(|r| r.get().len()).sum::<usize>();
                match fits("what the leg asks", bytes) {
                    Ok(()) if asked.requests.len() > 64 => {
                        failed("the leg asks more than 64 requests".into())
                    }
                    Ok(()) => Self::park(inner, held, asked, number),
                    Err(why) => failed(why),
                }
            }
            LegOutcome::Retry { why, after } => {
                let delay = after.unwrap_or_else(|| backoff(settings.backoff, settings.backoff_cap, attempt));
                tracing::warn!(task = %held.id, attempt, why, "a leg failed");
                let error = rpc_error(-32603, &format!("given up after {attempt} attempts: {}", cut(&why)));
                (Self::Retry { delay, error: text(error) }, String::new())
            }
            LegOutcome::GiveBack => (Self::Release, String::new()),
        }
    }

    fn park(inner: &Inner, held: &HeldLeg, asked: InputRequired, number: u64) -> (Self, String) {
        let vault = &inner.tasks.vault;
        let state = asked.state.map_or_else(Vec::new, |state| vault.close("state", &held.address, &state));
        let requests = asked
            .requests
            .into_iter()
            .map(|(name, request)| (encode_key(&mint(&name, number)), text(request)))
            .collect();
        let delay = backoff(inner.settings.backoff, inner.settings.backoff_cap, 1);
        (Self::Park { state, requests, delay }, asked.message.unwrap_or_default())
    }
}

fn text(json: Box<serde_json::value::RawValue>) -> Bytes {
    Bytes::from(String::from(Box::<str>::from(json)))
}

/// Exponential, capped, with a jitter of a quarter to either side.
fn backoff(first: Duration, cap: Duration, attempt: u32) -> Duration {
    let exponent = attempt.saturating_sub(1).min(20);
    first.saturating_mul(1 << exponent).min(cap).mul_f64(0.75 + fastrand::f64() / 2.0)
}

async fn end(inner: &Inner, held: &HeldLeg, ending: &Ending, message: &str) -> Result<(LegEnded, Found)> {
    let core = inner.tasks.core();
    let end = match ending {
        Ending::Done { status, outcome } => End::Done { status, outcome },
        Ending::Park { state, requests, delay } => End::Park { state, requests, delay: *delay },
        Ending::Retry { delay, error } => {
            End::Retry { delay: *delay, max_attempts: inner.settings.max_attempts, outcome: error }
        }
        Ending::Release => End::Release,
    };
    let leg = Held { address: &held.address, lease: &held.lease };
    // The slot that this leg leaves wants the next one, unless some are known already.
    let want = u64::from(!inner.stop.is_cancelled() && !inner.has_hints());
    let keys = inner.tasks.keys();
    script::leg_end(&core.cmd, keys, &inner.stand(), leg, message, want, &end).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_asked_twice_gets_a_new_key_each_time() {
        assert_eq!(mint("city", 0), "city.1");
        assert_eq!(mint("city", 1), "city.2");
        for name in ["city", "a.b", "", "a.", ".1", "ü x"] {
            assert_eq!(name_of(&mint(name, 7)), name);
        }
    }
}
