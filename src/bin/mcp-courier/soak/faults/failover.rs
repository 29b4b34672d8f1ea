//! Faults after which another server is the master, or another master has a slot.

use std::time::Duration;

use super::Making;
use crate::output::Failure;
use crate::soak::args::Topology;
use crate::soak::recovery::Affected;
use crate::soak::servers::{Act, until};
use crate::soak::stage::Stage;

impl Stage {
    pub(super) async fn failover(&mut self, making: &mut Making) -> Result<(), Failure> {
        let session = self.chance.u32(..self.args.sessions);
        let master = self.servers.master_of(session).await?;
        let sessions = self.servers.sessions_of(master, self.args.sessions).await?;
        making.note(format!("server {master}"));
        let promoted = until("a failover to happen", Duration::from_secs(60), async || {
            match self.servers.topology {
                Topology::Cluster => self.servers.order_cluster_failover(master).await?,
                _ => self.servers.order_sentinel_failover().await?,
            }
            // A replica that could not catch up in time gives up, and is told again.
            tokio::time::timeout(Duration::from_secs(8), self.servers.wait_promoted(session, master))
                .await
                .map_err(|_| Failure::failed("no replica was promoted"))?
        })
        .await?;
        self.servers.wait_writable(promoted, session).await?;
        making.over();
        making.recovered(self, &Affected::Sessions(sessions)).await;
        Ok(())
    }

    pub(super) async fn master_pause(&mut self, making: &mut Making) -> Result<(), Failure> {
        let session = self.chance.u32(..self.args.sessions);
        let master = self.servers.master_of(session).await?;
        let sessions = self.servers.sessions_of(master, self.args.sessions).await?;
        making.note(format!("server {master}"));
        self.servers.all[master].act(Act::Pause).await?;
        let promoted = self.servers.wait_promoted(session, master).await;
        // In a Cluster the promoted one has no other replica: writes are refused until the old master is its replica.
        let alone = self.servers.topology == Topology::Cluster && !self.args.no_min_replicas;
        if promoted.is_err() || alone {
            self.servers.all[master].act(Act::Resume).await?;
        }
        let promoted = promoted?;
        self.servers.wait_writable(promoted, session).await?;
        making.over();
        making.recovered(self, &Affected::Sessions(sessions)).await;
        if !alone {
            // Two masters, each of them sure of itself.
            tokio::time::sleep(Duration::from_millis(self.chance.u64(0..3_000))).await;
            self.servers.all[master].act(Act::Resume).await?;
        }
        Ok(())
    }

    pub(super) async fn slot_migration(&mut self, making: &mut Making) -> Result<(), Failure> {
        let session = self.chance.u32(..self.args.sessions);
        let slot = self.servers.slot_of(session);
        let to = self.servers.migrate(session).await?;
        making.note(format!("slot {slot} to server {to}"));
        making.over();
        let moved = (0..self.args.sessions).filter(|&s| self.servers.slot_of(s) == slot).collect();
        making.recovered(self, &Affected::Sessions(moved)).await;
        Ok(())
    }
}
