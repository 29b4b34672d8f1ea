//! Serves sessions, and says what comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mcp_courier::{Claim, Courier, Delivery, Ended, NotificationSink, SinkError};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use super::super::args::SoakNode;
use super::super::clock;
use super::super::lines::{Order, Said};
use super::super::message::{self, Fate, Name};
use super::Voice;
use crate::output::Failure;

/// Returns at [`Order::End`]; the task says what is left to say, and ends when no session has a sink any more.
pub(super) async fn run(
    courier: &Courier,
    args: &Arc<SoakNode>,
    voice: &Voice,
    orders: &mut mpsc::UnboundedReceiver<Order>,
) -> Result<JoinHandle<()>, Failure> {
    // What sinks say in places that must not wait.
    let (asides, mut said) = mpsc::unbounded_channel::<Said>();
    let speaking = tokio::spawn({
        let voice = voice.clone();
        async move {
            while let Some(said) = said.recv().await {
                if voice.say(&said).await.is_err() {
                    break;
                }
            }
        }
    });
    let mut running = JoinSet::new();
    while let Some(order) = orders.recv().await {
        let registry = courier.subscribers();
        match order {
            Order::Serve(number) => {
                let session = message::session(number)?;
                let sink = Sink {
                    session: number,
                    seed: args.seed,
                    epoch: AtomicU64::new(0),
                    voice: voice.clone(),
                    asides: asides.clone(),
                };
                let asides = asides.clone();
                running.spawn(async move {
                    let served = registry.ensure_running(&session, sink).await;
                    let error = served.err().map(|e| e.to_string());
                    let _ = asides.send(Said::Served { session: number, error });
                });
            }
            Order::Stop(number) => {
                let session = message::session(number)?;
                running.spawn(async move {
                    registry.stop(&session).await;
                });
            }
            Order::End => break,
            Order::Rest => return Err(Failure::usage("a subscriber has nothing to rest from")),
        }
        while running.try_join_next().is_some() {}
    }
    running.shutdown().await;
    Ok(speaking)
}

struct Sink {
    session: u32,
    seed: u64,
    epoch: AtomicU64,
    voice: Voice,
    asides: mpsc::UnboundedSender<Said>,
}

impl Sink {
    /// The message's name, when everything about it is right.
    fn name(&self, delivery: &Delivery) -> Result<Name, String> {
        let name: Name = delivery.id.as_str().parse()?;
        let right = message::session(name.session).is_ok_and(|s| s == delivery.session);
        if !right || name.session != self.session {
            return Err(format!(
                "{name} came to session {}, sink {}",
                delivery.session.as_str(),
                self.session
            ));
        }
        if delivery.body() != name.body(self.seed) {
            return Err(format!("{name} came with another body"));
        }
        Ok(name)
    }
}

impl NotificationSink for Sink {
    async fn deliver(&self, delivery: Delivery) -> Result<(), SinkError> {
        let at = clock::now();
        let say = async |said: Said| self.voice.say(&said).await.map_err(|_| SinkError::Closed);
        let name = match self.name(&delivery) {
            Ok(name) => name,
            Err(what) => {
                say(Said::Wrong { what }).await?;
                return Ok(());
            }
        };
        let attempt = delivery.attempt;
        match name.fate(self.seed) {
            Fate::Fails if attempt == 1 => {
                say(Said::Failed { name, at, attempt }).await?;
                return Err(SinkError::retry("on purpose"));
            }
            Fate::Rejected => {
                say(Said::Failed { name, at, attempt }).await?;
                return Err(SinkError::rejected("on purpose"));
            }
            _ => {}
        }
        if let Some(pause) = name.pause(self.seed) {
            tokio::time::sleep(pause).await;
        }
        say(Said::Delivered { name, at: clock::now(), attempt, epoch: self.epoch.load(Ordering::Relaxed) })
            .await
    }

    fn claimed(&self, claim: &Claim) {
        self.epoch.store(claim.epoch, Ordering::Relaxed);
        let _ =
            self.asides.send(Said::Claimed { session: self.session, epoch: claim.epoch, at: clock::now() });
    }

    fn ended(&self, _: &Claim, why: Ended) {
        let why = format!("{why:?}");
        let _ = self.asides.send(Said::Ended { session: self.session, why, at: clock::now() });
    }
}
