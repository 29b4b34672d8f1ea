//! Faults of the processes that push and deliver.

use std::time::Duration;

use super::Making;
use crate::output::Failure;
use crate::soak::args::Role;
use crate::soak::recovery::Affected;
use crate::soak::stage::Stage;

/// Longer than the lease (10 s), and than a push may take (10 s).
const PAUSE: Duration = Duration::from_secs(12);
/// A client that lost its connection comes back elsewhere after a moment.
const COMES_BACK: Duration = Duration::from_millis(100);
/// What is watched after a process came back.
const AFTERWARDS: Duration = Duration::from_secs(2);

impl Stage {
    pub(super) async fn subscriber_kill(&mut self, making: &mut Making) -> Result<(), Failure> {
        let number = self.chance.u32(..self.args.subscribers);
        making.note(format!("subscriber {number}"));
        self.crew.kill(Role::Subscriber, number);
        tokio::time::sleep(COMES_BACK).await;
        let sessions = self.crew.evacuate(number);
        making.over();
        making.recovered(self, &Affected::Sessions(sessions)).await;
        self.crew.replace(Role::Subscriber, number).await
    }

    pub(super) async fn subscriber_pause(&mut self, making: &mut Making) -> Result<(), Failure> {
        let number = self.chance.u32(..self.args.subscribers);
        making.note(format!("subscriber {number}"));
        self.crew.pause(Role::Subscriber, number);
        tokio::time::sleep(COMES_BACK).await;
        let sessions = self.crew.evacuate(number);
        making.over();
        let waiting = tokio::time::Instant::now();
        making.recovered(self, &Affected::Sessions(sessions)).await;
        tokio::time::sleep_until(waiting + PAUSE).await;
        self.crew.resume(Role::Subscriber, number);
        tokio::time::sleep(AFTERWARDS).await;
        Ok(())
    }

    pub(super) async fn producer_kill(&mut self, making: &mut Making) -> Result<(), Failure> {
        let number = self.chance.u32(..self.args.producers);
        making.note(format!("producer {number}"));
        self.crew.kill(Role::Producer, number);
        self.crew.replace(Role::Producer, number).await?;
        making.over();
        let sessions = self.crew.sessions_of(number);
        making.recovered(self, &Affected::Streams(number, sessions)).await;
        Ok(())
    }

    pub(super) async fn producer_pause(&mut self, making: &mut Making) -> Result<(), Failure> {
        let number = self.chance.u32(..self.args.producers);
        making.note(format!("producer {number}"));
        self.crew.pause(Role::Producer, number);
        tokio::time::sleep(PAUSE).await;
        self.crew.resume(Role::Producer, number);
        making.over();
        let sessions = self.crew.sessions_of(number);
        making.recovered(self, &Affected::Streams(number, sessions)).await;
        Ok(())
    }
}
