//! A worker's two loops: one takes legs, one renews leases. Both run beside the handlers, not among them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use super::handler::rpc_error;
use super::held::HeldLeg;
use super::run;
use super::worker::Inner;
use super::{Scope, TaskId};
use crate::keys::Address;
use crate::script::{self, Take, TakenLeg, Wanted};
use crate::{Error, Result};

/// Legs in one take or renewal.
const BATCH: usize = 64;

/// Takes legs as long as there are slots: those it hears of at once, and whatever a look finds.
pub(super) async fn fetch(inner: Arc<Inner>) {
    let mut told = String::new();
    let mut pause = Duration::from_millis(50);
    while !inner.stop.is_cancelled() {
        let free = inner.slots.available_permits();
        let look = free > 0 && inner.is_time_to_look();
        if !look && (free == 0 || !inner.has_hints()) {
            tokio::select! {
                () = inner.wake.notified() => {}
                // With no free slot, the end of a leg brings the next one along.
                () = tokio::time::sleep_until(inner.next_look()), if free > 0 => {}
                () = inner.stop.cancelled() => return,
            }
            continue;
        }
        let mut slots: Vec<OwnedSemaphorePermit> = Vec::new();
        while slots.len() < BATCH
            && let Ok(slot) = inner.slots.clone().try_acquire_owned()
        {
            slots.push(slot);
        }
        let addresses = inner.take_hints(slots.len());
        match take(&inner, &addresses, &mut slots).await {
            Ok(()) => {
                told.clear();
                pause = Duration::from_millis(50);
            }
            Err(Error::Closed { .. }) => return,
            Err(e) => {
                drop(slots);
                let why = e.to_string();
                if why != told {
                    tracing::warn!(error = %e, "no legs are taken, trying on");
                    told = why;
                }
                // Taken or not: asked again, a leg that is leased to us is given once more.
                inner.hint(addresses);
                inner.look();
                pause = (pause * 2).min(Duration::from_secs(1));
                tokio::select! {
                    () = tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)) => {}
                    () = inner.stop.cancelled() => return,
                }
            }
        }
    }
}

async fn take(
    inner: &Arc<Inner>,
    addresses: &[Address],
    slots: &mut Vec<OwnedSemaphorePermit>,
) -> Result<()> {
    let core = inner.tasks.core();
    let attempts = inner.settings.max_attempts;
    let died =
        rpc_error(-32603, &format!("the work was given up: its worker died in each of {attempts} attempts"));
    let wanted = Wanted {
        addresses,
        lease: inner.settings.lease,
        max_attempts: attempts,
        outcome: died.get().as_bytes(),
        want: (slots.len() - addresses.len()) as u64,
    };
    let (taken, found) = script::leg_take(&core.cmd, inner.tasks.keys(), &inner.stand(), &wanted).await?;
    for (address, take) in addresses.iter().zip(taken) {
        match take {
            Take::Leg(leg) => {
                if let Some(slot) = slots.pop() {
                    start(inner, address, leg, slot);
                }
            }
            Take::Settled { session } => {
                let Some((_, _, id)) = address.parts() else { continue };
                tracing::info!(task = %id, "ended without another attempt");
                let (inner, address) = (inner.clone(), address.clone());
                tokio::spawn(async move {
                    inner.tasks.tell_session(&session, &address, &TaskId::known(&id)).await;
                });
            }
            Take::Busy | Take::Gone => {}
        }
    }
    slots.clear();
    inner.learn(found);
    Ok(())
}

fn start(inner: &Arc<Inner>, address: &Address, taken: TakenLeg, slot: OwnedSemaphorePermit) {
    let Some((_, scope, id)) = address.parts() else { return };
    let (scope, id) = (Scope::known(&scope), TaskId::known(&id));
    let held = HeldLeg::new(
        address.clone(),
        id,
        scope,
        taken.session.clone(),
        taken.lease.clone(),
        taken.life,
        slot,
    );
    inner.held.insert(&held);
    inner.legs.spawn_on(run::supervise(inner.clone(), held, taken), &inner.engine);
}

/// Renews leases, all of them three times in their life, and at once those that have news.
pub(super) async fn renew(inner: Arc<Inner>) {
    let every = inner.settings.lease / 3;
    let mut next = tokio::time::Instant::now() + every;
    let mut again: Vec<Arc<HeldLeg>> = Vec::new();
    loop {
        let wait_until = if again.is_empty() {
            next
        } else {
            // A lease is soon over: no long pause after a failure.
            next.min(tokio::time::Instant::now() + Duration::from_millis(100).min(every))
        };
        tokio::select! {
            () = tokio::time::sleep_until(wait_until) => {}
            () = inner.renew_now.notified() => {}
            () = inner.finished.cancelled() => return,
        }
        let due = next <= tokio::time::Instant::now();
        let legs = if due || !again.is_empty() {
            inner.take_refresh();
            inner.held.all()
        } else {
            inner.take_refresh().iter().filter_map(|address| inner.held.get(address)).collect()
        };
        if due {
            next = tokio::time::Instant::now() + every.mul_f64(0.9 + fastrand::f64() / 10.0);
        }
        again = renew_some(&inner, legs).await;
    }
}

/// Answers those whose renewal failed.
pub(super) async fn renew_some(inner: &Inner, legs: Vec<Arc<HeldLeg>>) -> Vec<Arc<HeldLeg>> {
    let core = inner.tasks.core();
    let mut failed = Vec::new();
    for batch in legs.chunks(BATCH) {
        let held: Vec<_> = batch.iter().map(|leg| (leg.address.clone(), leg.lease.clone())).collect();
        match script::leg_renew(
            &core.cmd,
            inner.tasks.keys(),
            &inner.tasks.group,
            inner.settings.lease,
            &held,
        )
        .await
        {
            Ok(renewed) => {
                for (leg, renewed) in batch.iter().zip(renewed) {
                    leg.learn(renewed);
                }
            }
            Err(error) => {
                tracing::debug!(%error, legs = batch.len(), "leases were not renewed");
                failed.extend_from_slice(batch);
            }
        }
    }
    failed
}
