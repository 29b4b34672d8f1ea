//! `lua/leg_*.lua`: what workers do with the legs of tasks.

use std::time::Duration;

use bytes::Bytes;

use super::pop::ms;
use super::reply::Fields;
use super::source::script;
use super::{Invocation, Script};
use crate::connection::Commands;
use crate::keys::{Address, Keys};
use crate::{Error, Result};

script!(pub(super) static LEG_TAKE = "leg_take", uses ["now_ms", "task", "legs"],
    keys ["legs", "idle"] each ["t"],
    args ["worker", "lease_ms", "max_attempts", "outcome", "want", "reserve_ms", "interest_ms", "inboxes", "publish"]
    each ["address"]);

script!(pub(super) static LEG_RENEW = "leg_renew", uses ["now_ms", "task", "legs"],
    keys ["legs"] each ["t"],
    args ["lease_ms"] each ["address", "lease"]);

script!(pub(super) static LEG_DONE = "leg_done", uses ["now_ms", "task", "legs"],
    keys ["t", "legs", "idle"] each [],
    args ["address", "lease", "status", "outcome", "message", "worker", "want", "reserve_ms", "interest_ms",
          "inboxes", "publish"] each []);

script!(pub(super) static LEG_PARK = "leg_park", uses ["now_ms", "task", "legs"],
    keys ["t", "legs", "idle"] each [],
    args ["address", "lease", "state", "message", "delay_ms", "worker", "want", "reserve_ms", "interest_ms",
          "inboxes", "publish"] each ["key", "request"]);

script!(pub(super) static LEG_RETURN = "leg_return", uses ["now_ms", "task", "legs"],
    keys ["t", "legs", "idle"] each [],
    args ["address", "lease", "mode", "delay_ms", "max_attempts", "outcome", "message", "worker", "want",
          "reserve_ms", "interest_ms", "inboxes", "publish"] each []);

script!(pub(super) static LEG_ASK = "leg_ask", uses ["now_ms", "task"],
    keys ["t"] each [],
    args ["address", "lease", "key", "request", "max_keys", "inboxes", "publish"] each []);

script!(pub(super) static LEG_SAY = "leg_say", uses ["now_ms", "task"],
    keys ["t"] each [],
    args ["address", "lease", "message", "inboxes", "publish"] each []);

/// How a worker takes part in the queue of its group.
pub(crate) struct Stand<'a> {
    pub(crate) group: &'a str,
    /// `<node>:<worker>`.
    pub(crate) worker: &'a str,
    pub(crate) reserve: Duration,
    pub(crate) interest: Duration,
}

/// What a worker may take next.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) next: Vec<Address>,
    /// When the first leg becomes due that was not found, if there is one.
    pub(crate) wait: Option<Duration>,
}

/// A leg that is ours for a while.
#[derive(Debug)]
pub(crate) struct TakenLeg {
    pub(crate) lease: String,
    pub(crate) attempt: u64,
    pub(crate) number: u64,
    pub(crate) life: Duration,
    /// Who gets `notifications/tasks`; empty: nobody.
    pub(crate) session: String,
    pub(crate) call: Bytes,
    pub(crate) context: Bytes,
    pub(crate) state: Bytes,
    /// Encoded keys and answers.
    pub(crate) answers: Vec<(String, Bytes)>,
}

/// What became of a leg that was to be taken.
#[derive(Debug)]
pub(crate) enum Take {
    Leg(TakenLeg),
    Busy,
    Gone,
    Settled { session: String },
}

/// How a leg's own verbs answer when it is not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Somebody else has it, or finished the task.
    Fenced,
    /// The task expired.
    Gone,
}

impl Stand<'_> {
    fn args(&self, call: &mut Invocation, cmd: &Commands, keys: &Keys, want: u64) {
        call.arg(self.worker).num(want).num(ms(self.reserve)).num(ms(self.interest));
        call.arg(&keys.inboxes).arg(cmd.publish());
    }
}

fn found(reply: &mut Fields) -> Result<Found> {
    let mut next = reply.array()?;
    let next = (0..next.len()).map(|_| Ok(Address::encoded(&next.word()?))).collect::<Result<_>>()?;
    let wait = reply.count()?;
    Ok(Found { next, wait: (wait > 0).then(|| Duration::from_millis(wait)) })
}

/// Leases legs, and finds `want` more.
pub(crate) struct Wanted<'a> {
    pub(crate) addresses: &'a [Address],
    pub(crate) lease: Duration,
    pub(crate) max_attempts: u32,
    /// Of a task whose workers died so often.
    pub(crate) outcome: &'a [u8],
    pub(crate) want: u64,
}

pub(crate) async fn leg_take(
    cmd: &Commands,
    keys: &Keys,
    stand: &Stand<'_>,
    wanted: &Wanted<'_>,
) -> Result<(Vec<Take>, Found)> {
    let mut call = Invocation::new(&LEG_TAKE);
    call.key(keys.legs(stand.group)).key(keys.idle(stand.group));
    call.arg(stand.worker).num(ms(wanted.lease)).num(wanted.max_attempts).arg(wanted.outcome);
    call.num(wanted.want).num(ms(stand.reserve)).num(ms(stand.interest));
    call.arg(&keys.inboxes).arg(cmd.publish());
    for address in wanted.addresses {
        call.key(keys.task(address)).arg(address.as_str());
    }
    let mut reply = Fields::of(&LEG_TAKE, cmd.run(&call).await?)?;
    let mut answers = reply.array()?;
    let mut taken = Vec::with_capacity(wanted.addresses.len());
    while answers.len() > 0 {
        let mut one = answers.array()?;
        taken.push(match one.word()?.as_str() {
            "leg" => Take::Leg(TakenLeg {
                lease: one.word()?,
                attempt: one.count()?,
                number: one.count()?,
                life: Duration::from_millis(one.count()?),
                session: one.word()?,
                call: one.bytes()?,
                context: one.bytes()?,
                state: one.bytes()?,
                answers: one.array()?.pairs()?,
            }),
            "busy" => Take::Busy,
            "gone" => Take::Gone,
            "settled" => Take::Settled { session: one.word()? },
            other => return Err(one.unknown_word(other)),
        });
    }
    if taken.len() != wanted.addresses.len() {
        return Err(Error::Reply { op: "leg_take", got: format!("{} answers", taken.len()) });
    }
    Ok((taken, found(&mut reply)?))
}

/// A lease that was renewed, with what its holder should know.
#[derive(Debug)]
pub(crate) struct Renewed {
    pub(crate) cancel: bool,
    pub(crate) life: Duration,
    /// Encoded keys of the requests that wait for an answer.
    pub(crate) open: String,
}

pub(crate) async fn leg_renew(
    cmd: &Commands,
    keys: &Keys,
    group: &str,
    lease: Duration,
    held: &[(Address, String)],
) -> Result<Vec<std::result::Result<Renewed, Lost>>> {
    let mut call = Invocation::new(&LEG_RENEW);
    call.key(keys.legs(group)).num(ms(lease));
    for (address, token) in held {
        call.key(keys.task(address)).arg(address.as_str()).arg(token);
    }
    let mut reply = Fields::of(&LEG_RENEW, cmd.run(&call).await?)?;
    let mut renewed = Vec::with_capacity(held.len());
    while reply.len() > 0 {
        let mut one = reply.array()?;
        renewed.push(match one.word()?.as_str() {
            "held" => Ok(Renewed {
                cancel: one.count()? > 0,
                life: Duration::from_millis(one.count()?),
                open: one.word()?,
            }),
            other => Err(lost(&one, other)?),
        });
    }
    if renewed.len() != held.len() {
        return Err(Error::Reply { op: "leg_renew", got: format!("{} answers", renewed.len()) });
    }
    Ok(renewed)
}

fn lost(reply: &Fields, word: &str) -> Result<Lost> {
    match word {
        "fenced" => Ok(Lost::Fenced),
        "gone" => Ok(Lost::Gone),
        other => Err(reply.unknown_word(other)),
    }
}

/// The leg that a verb is about.
#[derive(Clone, Copy)]
pub(crate) struct Held<'a> {
    pub(crate) address: &'a Address,
    pub(crate) lease: &'a str,
}

/// How a leg ends, in the words of the scripts.
pub(crate) enum End<'a> {
    Done { status: &'static str, outcome: &'a [u8] },
    Park { state: &'a [u8], requests: &'a [(String, Bytes)], delay: Duration },
    Retry { delay: Duration, max_attempts: u32, outcome: &'a [u8] },
    Release,
}

/// What the end of a leg made of its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Done,
    Parked,
    Returned,
    Failed,
    Cancelled,
    Reused,
    Lost(Lost),
}

pub(crate) async fn leg_end(
    cmd: &Commands,
    keys: &Keys,
    stand: &Stand<'_>,
    leg: Held<'_>,
    message: &str,
    want: u64,
    end: &End<'_>,
) -> Result<(Ended, Found)> {
    let script: &'static Script = match end {
        End::Done { .. } => &LEG_DONE,
        End::Park { .. } => &LEG_PARK,
        End::Retry { .. } | End::Release => &LEG_RETURN,
    };
    let mut call = Invocation::new(script);
    call.key(keys.task(leg.address)).key(keys.legs(stand.group)).key(keys.idle(stand.group));
    call.arg(leg.address.as_str()).arg(leg.lease);
    match end {
        End::Done { status, outcome } => {
            call.arg(status).arg(outcome).arg(message);
            stand.args(&mut call, cmd, keys, want);
        }
        End::Park { state, requests, delay } => {
            call.arg(state).arg(message).num(ms(*delay));
            stand.args(&mut call, cmd, keys, want);
            for (key, request) in *requests {
                call.arg(key).arg(request);
            }
        }
        End::Retry { delay, max_attempts, outcome } => {
            call.arg("retry").num(ms(*delay)).num(*max_attempts).arg(outcome).arg(message);
            stand.args(&mut call, cmd, keys, want);
        }
        End::Release => {
            call.arg("release").num(0_u64).num(0_u64).arg("").arg(message);
            stand.args(&mut call, cmd, keys, want);
        }
    }
    let mut reply = Fields::of(script, cmd.run(&call).await?)?;
    let ended = match reply.word()?.as_str() {
        "done" => Ended::Done,
        "parked" => Ended::Parked,
        "returned" => Ended::Returned,
        "failed" => Ended::Failed,
        "cancelled" => Ended::Cancelled,
        "reused" => Ended::Reused,
        other => Ended::Lost(lost(&reply, other)?),
    };
    Ok((ended, found(&mut reply)?))
}

/// What became of a request that a running leg put to the client.
#[derive(Debug)]
pub(crate) enum Asked {
    Answered(Bytes),
    Open { life: Duration },
    Cancelled,
    Full,
    Reused,
    Lost(Lost),
}

pub(crate) async fn leg_ask(
    cmd: &Commands,
    keys: &Keys,
    leg: Held<'_>,
    key: &str,
    request: &[u8],
    max_keys: u64,
) -> Result<Asked> {
    let mut call = Invocation::new(&LEG_ASK);
    call.key(keys.task(leg.address)).arg(leg.address.as_str()).arg(leg.lease).arg(key).arg(request);
    call.num(max_keys).arg(&keys.inboxes).arg(cmd.publish());
    let mut reply = Fields::of(&LEG_ASK, cmd.run(&call).await?)?;
    Ok(match reply.word()?.as_str() {
        "answered" => Asked::Answered(reply.bytes()?),
        "open" => Asked::Open { life: Duration::from_millis(reply.count()?) },
        "cancelled" => Asked::Cancelled,
        "full" => Asked::Full,
        "reused" => Asked::Reused,
        other => Asked::Lost(lost(&reply, other)?),
    })
}

pub(crate) async fn leg_say(
    cmd: &Commands,
    keys: &Keys,
    leg: Held<'_>,
    message: &str,
) -> Result<std::result::Result<(), Lost>> {
    let mut call = Invocation::new(&LEG_SAY);
    call.key(keys.task(leg.address)).arg(leg.address.as_str()).arg(leg.lease).arg(message);
    call.arg(&keys.inboxes).arg(cmd.publish());
    let mut reply = Fields::of(&LEG_SAY, cmd.run(&call).await?)?;
    match reply.word()?.as_str() {
        "said" => Ok(Ok(())),
        other => Ok(Err(lost(&reply, other)?)),
    }
}
