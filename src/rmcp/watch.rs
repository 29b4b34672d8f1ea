//! One shared look for all sessions and streams of a process: what a lost bell would have said, and what nobody rings for,
//! as the death of the replica that served a session.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::hub::Hub;
use super::limits::ms;
use super::tail::Tail;
use crate::Result;
use crate::keys::Sid;
use crate::script::{self, Party, Standing, Watched};

/// Looked at in one script call.
const BATCH: usize = 100;
/// A session may be without an owner for so long after it came here: its client's `initialized` is on its way.
const SETTLING: Duration = Duration::from_secs(2);

/// What one answer is about.
enum About {
    Session(Arc<str>),
    Tail(Arc<Tail>),
}

pub(super) async fn run(hub: Weak<Hub>, stop: CancellationToken) {
    loop {
        let Some(strong) = hub.upgrade() else { return };
        let pause = strong.courier.core.config.look_again;
        if let Err(e) = look(&strong).await {
            tracing::debug!(error = %e, "could not look after sessions");
        }
        drop(strong);
        tokio::select! {
            () = tokio::time::sleep(pause.mul_f64(0.75 + fastrand::f64() / 2.0)) => {}
            () = stop.cancelled() => return,
        }
    }
}

async fn look(hub: &Arc<Hub>) -> Result<()> {
    let mut all: Vec<(About, Watched)> = Vec::new();
    let sessions: Vec<Arc<str>> = hub.here().keys().cloned().collect();
    for session in sessions {
        let log = Hub::stream_key(&Hub::standalone(&session));
        let watched = Watched { sid: Sid::of_text(&session), log, token: String::new() };
        all.push((About::Session(session), watched));
    }
    for tail in hub.tails.all() {
        let (sid, token) = (Sid::of_text(&tail.home), tail.token.clone());
        let watched = Watched { sid, log: tail.stream.clone(), token };
        all.push((About::Tail(tail), watched));
    }
    let core = &hub.courier.core;
    let ttls = (ms(hub.limits.session_ttl), ms(hub.limits.event_ttl));
    let sorted = core.partitions.sort(all, |(_, watched)| &watched.sid);
    for (partition, mut all) in core.partitions.iter().zip(sorted) {
        while !all.is_empty() {
            let (abouts, watched): (Vec<_>, Vec<_>) = all.drain(..all.len().min(BATCH)).unzip();
            let answers = script::session_watch(&core.cmd, &partition.keys, ttls, false, &watched).await?;
            for (about, standing) in abouts.into_iter().zip(answers) {
                match about {
                    About::Session(session) => settle(hub, &session, standing).await,
                    About::Tail(tail) => follow(&tail, standing),
                }
            }
        }
    }
    Ok(())
}

async fn settle(hub: &Arc<Hub>, session: &Arc<str>, standing: Standing) {
    let Some((saved, initialized, since)) =
        hub.here().get(session).map(|here| (here.saved, here.initialized, here.since))
    else {
        return;
    };
    hub.detach_closed(session);
    if saved && !standing.known {
        return hub.end(session).await;
    }
    if since.elapsed() >= SETTLING && !hub.holds(session).await {
        return hub.forget(session);
    }
    if standing.owner == Party::Alive {
        return;
    }
    if !initialized && since.elapsed() >= SETTLING {
        // The client said so to another replica, which is gone.
        if let Some(local) = hub.local() {
            local.initialize(session).await;
        }
    } else {
        hub.attach_again(session).await;
    }
}

fn follow(tail: &Tail, standing: Standing) {
    if tail.request_wise && standing.writer == Party::Gone && standing.last <= tail.after() {
        // Whoever worked on the request is gone, and everything that it sent was given.
        return tail.end();
    }
    if standing.reader && standing.last > tail.after() {
        tail.look();
    }
}
