//! A run: servers, processes, and what has happened to them so far.

use std::time::{Duration, Instant};

use super::args::Soak;
use super::crew::Crew;
use super::faults::{Fault, Kind};
use super::servers::Servers;
use crate::output::{self, Failure};

/// Before the first fault: everybody is at work.
const WARM_UP: Duration = Duration::from_secs(1);

pub struct Stage {
    pub args: Soak,
    pub seed: u64,
    pub chance: fastrand::Rng,
    pub servers: Servers,
    pub crew: Crew,
    pub faults: Vec<Fault>,
    /// Moves sessions from one subscriber to another all the time.
    mover: Option<tokio::task::JoinHandle<()>>,
}

impl Stage {
    pub fn new(args: Soak, seed: u64, servers: Servers, crew: Crew) -> Self {
        let chance = fastrand::Rng::with_seed(seed);
        Self { args, seed, chance, servers, crew, faults: Vec::new(), mover: None }
    }

    fn keep_moving(&mut self) {
        let (moving, mut chance) = (self.crew.clone(), fastrand::Rng::with_seed(self.seed ^ 3));
        self.mover = Some(tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(chance.u64(100..1_000))).await;
                moving.move_any();
            }
        }));
    }

    /// One fault after the other, each kind once before any comes again, until the time is over.
    pub async fn suffer_all(&mut self, kinds: &[Kind], json: bool) -> Result<(), Failure> {
        self.keep_moving();
        let start = Instant::now();
        tokio::time::sleep(WARM_UP).await;
        let mut bag: Vec<Kind> = Vec::new();
        while start.elapsed() < self.args.time() {
            if bag.is_empty() {
                bag = kinds.to_vec();
                self.chance.shuffle(&mut bag);
            }
            let Some(kind) = bag.pop() else { break };
            let fault = match self.suffer(kind).await {
                Ok(fault) => fault,
                Err(e) => {
                    let (seed, kind, logs) = (self.seed, kind.word(), self.servers.last_words().await);
                    return Err(Failure::failed(format!("seed {seed}: {kind} could not be done: {e}{logs}")));
                }
            };
            if !json {
                output::line(&told(start, &fault))?;
            }
            self.faults.push(fault);
            let pause = Duration::from_millis(self.chance.u64(100..1_500));
            tokio::time::sleep(pause.min(self.args.time().saturating_sub(start.elapsed()))).await;
        }
        Ok(())
    }

    pub fn stop_moving(&self) {
        self.mover.iter().for_each(tokio::task::JoinHandle::abort);
    }

    /// Ends everything that was started; what is left of it is no more.
    pub async fn end(&self) {
        self.stop_moving();
        self.crew.kill_all().await;
        self.servers.end().await;
    }
}

fn told(start: Instant, fault: &Fault) -> String {
    let seconds = |s: Option<f64>| s.map_or("-".to_owned(), |s| format!("{s:.2} s"));
    format!(
        "{:>6.1} s  {:<17} {:<40} over after {:.1} s, first delivery {}, all sessions {}{}",
        start.elapsed().as_secs_f64(),
        fault.kind.word(),
        fault.note,
        fault.outage(),
        seconds(fault.recovery.first),
        seconds(fault.recovery.all),
        if fault.window.is_some() { ", another master" } else { "" },
    )
}
