//! Pushes to several sessions at once, to each of them one message after the other, and says what was answered.

use std::sync::Arc;
use std::time::Duration;

use mcp_courier::{Courier, Push};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::super::args::SoakNode;
use super::super::clock;
use super::super::lines::{Order, Said};
use super::super::message::{self, Name};
use super::Voice;
use crate::output::Failure;

pub(super) async fn run(
    courier: &Courier,
    args: &Arc<SoakNode>,
    voice: &Voice,
    orders: &mut mpsc::UnboundedReceiver<Order>,
) -> Result<(), Failure> {
    let (rest, resting) = watch::channel(false);
    let mut streams = JoinSet::new();
    for &session in &args.sessions {
        streams.spawn(stream(courier.clone(), args.clone(), session, voice.clone(), resting.clone()));
    }
    while let Some(order) = orders.recv().await {
        match order {
            Order::Rest => {
                rest.send_replace(true);
                while let Some(ended) = streams.join_next().await {
                    ended.map_err(|e| Failure::failed(e.to_string()))??;
                }
                voice.say(&Said::Idle).await?;
            }
            Order::End => break,
            Order::Serve(_) | Order::Stop(_) => return Err(Failure::usage("a producer serves nobody")),
        }
    }
    streams.shutdown().await;
    Ok(())
}

async fn stream(
    courier: Courier,
    args: Arc<SoakNode>,
    session: u32,
    voice: Voice,
    mut resting: watch::Receiver<bool>,
) -> Result<(), Failure> {
    let mut name = Name { session, producer: args.number, life: args.life, seq: 0 };
    let mut chance =
        fastrand::Rng::with_seed(args.seed ^ (u64::from(session) << 32) ^ u64::from(args.number) << 16);
    loop {
        let pause = Duration::from_millis(args.every_ms).mul_f64(0.5 + chance.f64());
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = resting.wait_for(|rest| *rest) => return Ok(()),
        }
        let said = push(&courier, name, args.seed).await?;
        let refused = matches!(said, Said::Refused { .. });
        voice.say(&said).await?;
        name.seq += 1;
        if refused {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Until it is known whether it was stored.
async fn push(courier: &Courier, name: Name, seed: u64) -> Result<Said, Failure> {
    let (session, id) = (message::session(name.session)?, name.id()?);
    let begun = clock::now();
    let mut unknown = false;
    loop {
        let push = Push::new(&session, name.body(seed)).id(id.clone()).ttl(name.ttl(seed));
        match courier.push(push).await {
            Ok(_) => return Ok(Said::Acked { name, begun, at: clock::now() }),
            Err(e) if !e.is_ambiguous() && !unknown => {
                return Ok(Said::Refused { name, begun, at: clock::now(), why: e.to_string() });
            }
            Err(e) => unknown |= e.is_ambiguous(),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
