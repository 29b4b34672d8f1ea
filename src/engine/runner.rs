//! Serves one session for as long as it has something to do: claim, deliver in order, ack and fetch.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tracing::Instrument;

use super::Engine;
use super::recent::Recent;
use super::sessions::{Active, Ended, Slot};
use crate::delivery::{AnySink, is_closed, without_panic};
use crate::keys::Sid;
use crate::metrics::add;
use crate::record::Record;
use crate::script::{self, AckItem, ClaimMode, Denied, Failed, Next, PopItem, Requeued};
use crate::{Delivery, Error, MessageId, SessionId, SinkError};

/// Longest pause after a refusal of the server.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Delivered messages are acked at the latest after so long, even if more of the batch is left: what a crash repeats
/// stays small.
const ACK_WITHIN: Duration = Duration::from_millis(20);
/// A record that lay so long in the batch is checked against its expiry once more.
const FRESH: Duration = Duration::from_millis(20);
/// Longest error text kept with a message.
const ERROR_BYTES: usize = 400;

/// What wakes a session.
pub(super) enum Start {
    Claim(ClaimMode),
    Fetch,
    /// What a fetch answered.
    Answer(Next),
    /// A hint came for a session at rest.
    Hint,
    /// The doorbell carried the record itself.
    Record(Bytes),
    End,
}

/// How it goes on.
enum Step {
    On,
    /// Nothing before that.
    Wait(Duration),
    /// Claim, after a pause.
    Claim(ClaimMode, Duration),
    /// Nothing is pending.
    Idle,
    End(Ended),
}

pub(super) struct Runner {
    engine: Arc<Engine>,
    sid: Sid,
    serial: u64,
    session: SessionId,
    sink: Arc<dyn AnySink>,
    active: Arc<Active>,
    epoch: u64,
    recent: Recent,
    /// Fetched and not delivered yet.
    batch: VecDeque<Record>,
    fetched: Instant,
    /// Receipts of what was delivered and not acked yet, oldest first.
    delivered: Vec<Bytes>,
    /// Failures of the server in a row, and the last one told of this session alone.
    failures: u32,
    told: Option<String>,
    /// It ended as it should, and its slot says so.
    at_rest: bool,
}

impl Drop for Runner {
    fn drop(&mut self) {
        if !self.at_rest {
            // The task was torn down, or something in it panicked: nobody may believe that it is still served.
            self.engine.sessions.end(&self.sid, self.serial, Ended::Stopped);
        }
    }
}

impl Runner {
    /// Takes over what the slot keeps while its session is idle.
    pub(super) fn new(engine: Arc<Engine>, sid: Sid, slot: &mut Slot, active: Arc<Active>) -> Box<Self> {
        Box::new(Self {
            engine,
            sid,
            serial: slot.serial,
            session: slot.session.clone(),
            sink: slot.sink.clone(),
            active,
            epoch: slot.epoch,
            recent: Recent::from_kept(slot.recent.take()),
            batch: VecDeque::new(),
            fetched: Instant::now(),
            delivered: Vec::new(),
            failures: 0,
            told: None,
            at_rest: false,
        })
    }

    pub(super) fn is_claimed(&self) -> bool {
        self.epoch > 0
    }

    pub(super) async fn run(mut self: Box<Self>, start: Start) {
        let mut step = self.begin(start).await;
        loop {
            step = match step {
                // Boxed: what is rare must not make the task large, since one is made for most messages.
                Step::End(why) => return Box::pin(self.finish(why)).await,
                Step::Idle if self.go_idle() => {
                    self.at_rest = true;
                    return;
                }
                Step::Idle | Step::On => self.step().await,
                Step::Wait(pause) if Box::pin(self.interrupted(pause)).await => Step::End(Ended::Stopped),
                Step::Wait(_) => Step::On,
                Step::Claim(_, pause) if Box::pin(self.interrupted(pause)).await => Step::End(Ended::Stopped),
                Step::Claim(mode, _) => Box::pin(self.claim(mode)).await,
            };
        }
    }

    async fn begin(&mut self, start: Start) -> Step {
        match start {
            Start::Claim(mode) => Box::pin(self.claim(mode)).await,
            Start::Fetch => Step::On,
            Start::Answer(next) => self.take(next, self.engine.core.config.batch),
            // Nothing rang: the queue is not looked at.
            Start::Hint => Box::pin(self.hints()).await.unwrap_or(Step::Idle),
            Start::End => Step::End(Ended::Stopped),
            Start::Record(bytes) => {
                // One that was delivered before this doorbell came is not delivered again, and its ack removes nothing.
                let record = Record::parse(&bytes);
                // It may have been on its way for long: whether its time is over is the server's to say.
                let record = record.filter(|r| !self.is_past(r.expires_ms));
                self.batch.extend(record);
                Step::On
            }
        }
    }

    async fn step(&mut self) -> Step {
        if self.active.must_end() || self.engine.core.stop.is_cancelled() {
            return Step::End(Ended::Stopped);
        }
        if is_closed(&*self.sink) {
            return Step::End(Ended::SinkClosed);
        }
        if self.active.hinted()
            && let Some(end) = Box::pin(self.hints()).await
        {
            return end;
        }
        // It rang in the middle of a batch: somebody may have taken the session. What is left comes again if not.
        if !self.batch.is_empty() && self.active.rang() {
            self.batch.clear();
        }
        if self.batch.is_empty() {
            self.exchange(self.engine.core.config.batch).await
        } else {
            self.deliver_next().await
        }
    }

    /// By the clock of the server that has the session.
    fn is_past(&self, server_ms: u64) -> bool {
        self.engine.core.partition_of(self.sid.as_str()).clock.is_past(server_ms)
    }

    async fn deliver_next(&mut self) -> Step {
        let Some(mut record) = self.batch.pop_front() else { return Step::On };
        let core = self.engine.core.clone();
        let identity = self.engine.identities.of(&record);
        if self.recent.contains(identity) {
            add(&core.counters.suppressed, 1);
            self.delivered.push(record.receipt);
            return Step::On;
        }
        if self.fetched.elapsed() > FRESH && self.is_past(record.expires_ms) {
            self.batch.clear(); // Its time may be over: the server decides, at the next fetch.
            return Step::On;
        }
        match core.config.bodies.open(&self.sid, record.id.as_str(), record.body.clone()) {
            Ok(body) => record.body = body,
            Err(why) => {
                tracing::warn!(session = %self.session, id = %record.id, error = %why, "a body cannot be opened, it becomes a dead letter");
                let attempt = record.attempts.saturating_add(1);
                return Box::pin(self.failed(record, attempt, true, &why)).await;
            }
        }
        let delivery = Delivery::new(self.session.clone(), &record);
        let attempt = delivery.attempt;
        let span = tracing::debug_span!("deliver", session = %self.session, id = %record.id, attempt);
        #[cfg(feature = "otel")]
        if let Some(context) = delivery.trace_context() {
            crate::trace::continue_in(&span, &context);
        }
        self.active.set_delivering(true);
        let delivering = span.in_scope(|| without_panic(&*self.sink, delivery));
        let outcome = self.hand_over(delivering).instrument(span.clone()).await;
        self.active.set_delivering(false);
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(ended) => return Step::End(ended),
        };
        match outcome {
            Ok(()) => {
                add(&core.counters.delivered, 1);
                tracing::trace!(parent: &span, "delivered");
                self.recent.insert(identity, 2 * core.config.batch as usize);
                self.delivered.push(record.receipt);
                let late = self.fetched.elapsed() > ACK_WITHIN;
                if !self.batch.is_empty() && late {
                    return self.exchange(0).await;
                }
                Step::On
            }
            Err(SinkError::Closed) => Step::End(Ended::SinkClosed),
            Err(SinkError::Retry(why)) => {
                tracing::debug!(parent: &span, error = %why, "delivery failed");
                Box::pin(self.failed(record, attempt, false, &why)).await
            }
            Err(SinkError::Rejected(why)) => {
                tracing::warn!(parent: &span, error = %why, "message rejected, it becomes a dead letter");
                Box::pin(self.failed(record, attempt, true, &why)).await
            }
        }
    }

    /// Delivers the hints that wait. What becomes of them is nobody's concern, unless the client is gone.
    async fn hints(&mut self) -> Option<Step> {
        if is_closed(&*self.sink) {
            return Some(Step::End(Ended::SinkClosed));
        }
        let hints = self.engine.sessions.with(&self.sid, self.serial, |slot| slot.hints.take())?;
        for hint in hints.into_iter().flat_map(|hints| (*hints).all()) {
            if self.active.must_end() {
                break;
            }
            let delivery = Delivery::synthetic(&self.session, &MessageId::generate(), 1, hint.body);
            match self.hand_over(without_panic(&*self.sink, delivery)).await {
                Ok(Ok(())) => add(&self.engine.core.counters.hints, 1),
                Ok(Err(SinkError::Closed)) => return Some(Step::End(Ended::SinkClosed)),
                Ok(Err(e)) => {
                    tracing::debug!(session = %self.session, error = %e, "a hint was not taken");
                    add(&self.engine.core.counters.hints_dropped, 1);
                }
                Err(ended) => return Some(Step::End(ended)),
            }
        }
        None
    }

    /// Waits for the sink, and no longer than the session is ours: a doorbell in the middle has the token checked beside
    /// the delivery. Ended: the delivery's future was dropped.
    async fn hand_over(
        &self,
        mut delivering: impl Future<Output = Result<(), SinkError>> + Send + Unpin,
    ) -> Result<Result<(), SinkError>, Ended> {
        let at_once = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut delivering).poll(cx))).await;
        match at_once {
            Poll::Ready(outcome) => Ok(outcome),
            Poll::Pending => Box::pin(self.wait_for_sink(delivering)).await,
        }
    }

    async fn wait_for_sink(
        &self,
        mut delivering: impl Future<Output = Result<(), SinkError>> + Send + Unpin,
    ) -> Result<Result<(), SinkError>, Ended> {
        let core = &self.engine.core;
        loop {
            tokio::select! {
                biased;
                outcome = &mut delivering => return Ok(outcome),
                () = core.stop.cancelled() => return Err(Ended::Stopped),
                () = self.active.told_to_stop_or_check() => {}
            }
            if self.active.must_stop() {
                return Err(Ended::Stopped);
            }
            let token = PopItem { sid: self.sid.clone(), epoch: self.epoch, want: 0 };
            tokio::select! {
                biased;
                outcome = &mut delivering => return Ok(outcome),
                () = core.stop.cancelled() => return Err(Ended::Stopped),
                () = self.active.told_to_stop() => return Err(Ended::Stopped),
                answer = self.engine.calls.pops.call(token) => if matches!(answer, Ok(Err(Denied::Fenced))) {
                    return Err(Ended::Superseded);
                }
            }
        }
    }

    /// Acks what was delivered and takes what comes next; with `want` 0 only acks.
    async fn exchange(&mut self, want: u32) -> Step {
        self.active.rang(); // The answer will show whatever it rang for.
        let (sid, epoch) = (self.sid.clone(), self.epoch);
        let answer = if self.delivered.is_empty() {
            self.engine.calls.pops.call(PopItem { sid, epoch, want }).await
        } else {
            let receipts = self.delivered.clone();
            self.engine.calls.acks.call(AckItem { sid, epoch, want, receipts }).await
        };
        match answer {
            Ok(Ok(next)) => {
                self.recovered();
                self.delivered.clear();
                self.take(next, want)
            }
            Ok(Err(denied)) => Box::pin(self.denied(denied)).await,
            Err(e) => self.refused(&e),
        }
    }

    fn take(&mut self, next: Next, want: u32) -> Step {
        let counters = &self.engine.core.counters;
        add(&counters.acked, next.acked);
        add(&counters.expired, next.expired);
        add(&counters.dead, next.buried);
        if next.buried > 0 {
            tracing::warn!(session = %self.session, messages = next.buried, "out of attempts or not understood: dead letters");
        }
        if want == 0 {
            return Step::On;
        }
        self.fetched = Instant::now();
        self.batch.extend(next.records.iter().filter_map(Record::parse));
        match next.wait {
            Some(wait) => Step::Wait(wait),
            None if self.batch.is_empty() && !next.more => Step::Idle,
            None => Step::On,
        }
    }

    async fn claim(&mut self, mode: ClaimMode) -> Step {
        self.batch.clear();
        // Replaced meanwhile: a claim of ours now would fence the newer subscription.
        if self.engine.sessions.with(&self.sid, self.serial, |_| ()).is_none() {
            return Step::End(Ended::Superseded);
        }
        match self.engine.calls.claims.call((self.sid.clone(), mode)).await {
            Ok(Ok(claimed)) => {
                self.recovered();
                self.epoch = claimed.epoch;
                tracing::debug!(session = %self.session, epoch = claimed.epoch, pending = claimed.pending, "claimed");
                let pending = claimed.pending;
                self.engine.got(&self.sid, self.serial, claimed);
                if pending > 0 || !self.delivered.is_empty() { Step::On } else { Step::Idle }
            }
            Ok(Err(_)) => Step::End(Ended::Superseded),
            Err(e) => match self.refused(&e) {
                Step::Wait(pause) => Step::Claim(mode, pause),
                step => step,
            },
        }
    }

    async fn denied(&mut self, denied: Denied) -> Step {
        match denied {
            Denied::Fenced => Step::End(Ended::Superseded),
            Denied::Lost => {
                self.engine.owners_lost.store(true, Ordering::Relaxed);
                self.claim(ClaimMode::Keep).await
            }
        }
    }

    /// Counts a failed attempt. What was delivered before it is acked first: only a head can fail.
    async fn failed(&mut self, record: Record, attempt: u32, rejected: bool, why: &str) -> Step {
        self.batch.clear();
        if !self.delivered.is_empty() {
            match self.exchange(0).await {
                Step::On => {}
                // Not acked: the message keeps its attempts, and comes again after those before it.
                other => return other,
            }
        }
        let engine = self.engine.clone();
        let core = &engine.core;
        let delay = core.config.retry_delay(attempt);
        let error = truncate(why, ERROR_BYTES);
        let mut pause = Duration::ZERO;
        loop {
            if !pause.is_zero() && self.interrupted(pause).await {
                return Step::End(Ended::Stopped);
            }
            let (sid, epoch) = (&self.sid, self.epoch);
            let failed = Failed { sid, epoch, receipt: &record.receipt, attempt, rejected, delay, error };
            match script::requeue(&core.cmd, core.keys_of(sid.as_str()), &core.config, &core.node, failed)
                .await
            {
                Ok(Ok(outcome)) => {
                    self.recovered();
                    match outcome {
                        Requeued::Again => add(&core.counters.requeued, 1),
                        Requeued::Dead => {
                            tracing::warn!(session = %self.session, id = %record.id, attempt, "message became a dead letter");
                            add(&core.counters.dead, 1);
                        }
                        Requeued::Expired => add(&core.counters.expired, 1),
                        Requeued::Unknown => {}
                    }
                    return Step::On;
                }
                Ok(Err(denied)) => return self.denied(denied).await,
                Err(e) => match self.refused(&e) {
                    Step::Wait(longer) => pause = longer,
                    other => return other,
                },
            }
        }
    }

    /// The server refuses or is away: back off and go on. Told once for each kind of trouble, not for each try; what
    /// concerns this session alone is told for it, what concerns all of them once for all.
    fn refused(&mut self, e: &Error) -> Step {
        if matches!(e, Error::Closed { .. }) {
            return Step::End(Ended::Stopped);
        }
        let own = matches!(e, Error::Reply { .. })
            || matches!(e, Error::Refused { code, .. } if code == "WRONGTYPE");
        let news = if own {
            let kind = Some(e.trouble());
            std::mem::replace(&mut self.told, kind.clone()) != kind
        } else {
            self.engine.trouble.is_news(e)
        };
        if news && own {
            tracing::warn!(session = %self.session, error = %e, "the server does not serve this session, trying on");
        } else if news {
            tracing::warn!(session = %self.session, error = %e, "the server does not serve its sessions, trying on");
        } else {
            tracing::debug!(session = %self.session, error = %e, "not served, trying on");
        }
        let pause = Duration::from_millis(20).saturating_mul(1 << self.failures.min(8)).min(LONGEST_PAUSE);
        self.failures += 1;
        Step::Wait(pause.mul_f64(0.5 + fastrand::f64() / 2.0))
    }

    fn recovered(&mut self) {
        if self.failures == 0 {
            return;
        }
        if self.told.take().is_some() || self.engine.trouble.is_over() {
            tracing::info!(session = %self.session, failures = self.failures, "served again");
        } else {
            tracing::debug!(session = %self.session, failures = self.failures, "served again");
        }
        self.failures = 0;
    }

    /// Sleeps, or less when the doorbell rings (somebody may have taken the session); true when it is time to stop.
    async fn interrupted(&self, pause: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(pause) => false,
            () = self.active.changed() => self.active.must_end(),
            () = self.engine.core.stop.cancelled() => true,
        }
    }

    /// Leaves the session without a task, unless it rang meanwhile.
    fn go_idle(&mut self) -> bool {
        let kept = std::mem::take(&mut self.recent).into_kept();
        let back = self.engine.sessions.with(&self.sid, self.serial, |slot| {
            if self.active.rang() || slot.hints.is_some() || self.active.must_end() {
                return Some(kept);
            }
            slot.recent = kept;
            slot.active = None;
            None
        });
        match back {
            Some(Some(kept)) => {
                self.recent = Recent::from_kept(kept);
                false
            }
            // Idle now, or not in the table any more: a newer subscription took over.
            Some(None) | None => true,
        }
    }

    /// Acks what was delivered, gives the session back, and takes the subscription out of the table. Whatever does
    /// not get through within a call's time is left to the lease and to the next claim.
    async fn finish(&mut self, why: Ended) {
        self.active.finishing();
        tracing::debug!(session = %self.session, ?why, "subscription ends");
        if why == Ended::Superseded {
            self.engine.superseded(&self.sid, self.serial);
        } else if self.epoch > 0 {
            let limit = self.engine.core.config.call_timeout;
            let _ = tokio::time::timeout(limit, self.give_back()).await;
        }
        self.engine.sessions.end(&self.sid, self.serial, why);
        self.at_rest = true;
    }

    async fn give_back(&mut self) {
        while !self.delivered.is_empty() {
            match self.exchange(0).await {
                Step::Wait(pause) => tokio::time::sleep(pause).await,
                Step::On => {}
                _ => return,
            }
        }
        loop {
            match self.engine.calls.releases.call((self.sid.clone(), self.epoch)).await {
                Ok(_) | Err(Error::Closed { .. }) => return,
                Err(e) => {
                    if let Step::Wait(pause) = self.refused(&e) {
                        tokio::time::sleep(pause).await;
                    }
                }
            }
        }
    }
}

fn truncate(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
