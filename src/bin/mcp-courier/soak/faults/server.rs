//! Faults of a server that stays, or comes back, what it is.

use std::time::Duration;

use super::Making;
use crate::output::Failure;
use crate::soak::args::Topology;
use crate::soak::recovery::Affected;
use crate::soak::servers::{Act, until};
use crate::soak::stage::Stage;

/// For how long a server refuses writes.
const REFUSES: Duration = Duration::from_secs(3);

impl Stage {
    /// A master of any session, and what it serves.
    async fn any_master(&mut self) -> Result<(usize, u32, Affected), Failure> {
        let session = self.chance.u32(..self.args.sessions);
        let master = self.servers.master_of(session).await?;
        let sessions = self.servers.sessions_of(master, self.args.sessions).await?;
        Ok((master, session, Affected::Sessions(sessions)))
    }

    pub(super) async fn client_kill(&mut self, making: &mut Making) -> Result<(), Failure> {
        let (master, _, affected) = self.any_master().await?;
        making.note(format!("server {master}"));
        let server = &self.servers.all[master];
        for kind in ["normal", "pubsub"] {
            server.ask::<u64>(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]).await?;
        }
        making.over();
        making.recovered(self, &affected).await;
        Ok(())
    }

    pub(super) async fn restart(&mut self, making: &mut Making) -> Result<(), Failure> {
        let (master, session, affected) = self.any_master().await?;
        making.note(format!("server {master}"));
        self.servers.all[master].act(Act::Stop).await?;
        self.servers.all[master].up().await?;
        // It may have taken long enough for another one to take its place.
        until("a server to take writes", Duration::from_secs(30), async || {
            let now = self.servers.master_of(session).await?;
            self.servers.wait_writable(now, session).await
        })
        .await?;
        making.over();
        making.recovered(self, &affected).await;
        Ok(())
    }

    pub(super) async fn server_kill(&mut self, making: &mut Making) -> Result<(), Failure> {
        let (master, session, affected) = self.any_master().await?;
        making.note(format!("server {master}"));
        self.servers.all[master].act(Act::Kill).await?;
        if self.servers.topology == Topology::Single {
            self.servers.all[master].up().await?;
            self.servers.wait_writable(master, session).await?;
        } else {
            let promoted = self.servers.wait_promoted(session, master).await?;
            // What it says of the old master's end is not ours to read: it comes back as it is.
            self.servers.all[master].up().await?;
            self.servers.wait_writable(promoted, session).await?;
        }
        making.over();
        making.recovered(self, &affected).await;
        Ok(())
    }

    pub(super) async fn stall(&mut self, making: &mut Making) -> Result<(), Failure> {
        let (master, _, affected) = self.any_master().await?;
        let time = Duration::from_millis(self.chance.u64(300..1_400));
        making.note(format!("server {master} for {time:?}"));
        self.servers.all[master].act(Act::Pause).await?;
        tokio::time::sleep(time).await;
        self.servers.all[master].act(Act::Resume).await?;
        making.over();
        making.recovered(self, &affected).await;
        Ok(())
    }

    pub(super) async fn full(&mut self, making: &mut Making) -> Result<(), Failure> {
        let (master, _, affected) = self.any_master().await?;
        making.note(format!("server {master}"));
        let server = &self.servers.all[master];
        server.ask::<()>(&["CONFIG", "SET", "maxmemory", "1mb", "maxmemory-policy", "noeviction"]).await?;
        tokio::time::sleep(REFUSES).await;
        server.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await?;
        making.over();
        making.recovered(self, &affected).await;
        Ok(())
    }

    pub(super) async fn failed_snapshot(&mut self, making: &mut Making) -> Result<(), Failure> {
        let (master, session, affected) = self.any_master().await?;
        // Sentinels take a master that answers MISCONF for dead, and replace it while it is alive.
        let long = self.servers.topology == Topology::Sentinel && self.chance.bool();
        let refuses = if self.servers.topology == Topology::Sentinel { REFUSES / 3 } else { REFUSES };
        making.note(format!("server {master}{}", if long { ", until it is replaced" } else { "" }));
        let server = &self.servers.all[master];
        // No file can take a folder's name.
        let in_the_way = server.folder().join("dump.rdb");
        let _ = std::fs::remove_file(&in_the_way);
        std::fs::create_dir_all(in_the_way.join("x"))?;
        let failing = async {
            server.ask::<()>(&["CONFIG", "SET", "save", "3600 1000000"]).await?;
            server.ask::<redis::Value>(&["BGSAVE", "SCHEDULE"]).await?;
            until("a snapshot to fail", Duration::from_secs(30), async || {
                let info: String = server.ask(&["INFO", "persistence"]).await?;
                let failed = info.contains("rdb_last_bgsave_status:err");
                if failed { Ok(()) } else { Err(Failure::failed("it did not fail yet")) }
            })
            .await?;
            if long {
                return self.servers.wait_promoted(session, master).await.map(Some);
            }
            tokio::time::sleep(refuses).await;
            Ok::<_, Failure>(None)
        }
        .await;
        std::fs::remove_dir_all(&in_the_way)?;
        let promoted = failing?;
        // At once: a server that refuses writes and becomes a replica panics ("unable to write command to disk").
        server.ask::<()>(&["CONFIG", "SET", "save", ""]).await?;
        if let Some(promoted) = promoted {
            self.servers.wait_writable(promoted, session).await?;
            making.over();
            making.recovered(self, &affected).await;
            return Ok(());
        }
        until("a snapshot to succeed", Duration::from_secs(30), async || {
            server.ask::<redis::Value>(&["BGSAVE", "SCHEDULE"]).await?;
            tokio::time::sleep(Duration::from_millis(50)).await;
            let info: String = server.ask(&["INFO", "persistence"]).await?;
            let done = info.contains("rdb_last_bgsave_status:ok");
            if done { Ok(()) } else { Err(Failure::failed("it did not succeed yet")) }
        })
        .await?;
        self.servers.wait_writable(master, session).await?;
        making.over();
        making.recovered(self, &affected).await;
        Ok(())
    }

    pub(super) async fn script_flush(&mut self, making: &mut Making) -> Result<(), Failure> {
        let (master, _, affected) = self.any_master().await?;
        making.note(format!("server {master}"));
        self.servers.all[master].ask::<()>(&["SCRIPT", "FLUSH"]).await?;
        making.over();
        making.recovered(self, &affected).await;
        Ok(())
    }
}
