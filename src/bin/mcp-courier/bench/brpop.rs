//! The baseline that every Redis client has: `LPUSH` to lists, each with a connection that waits in `BRPOP`. It
//! acknowledges nothing: what is popped when its process dies is lost.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

use super::ledger::Ledger;
use super::load::System;
use super::server::{Target, raw_failure};
use super::stage;
use crate::output::Failure;

/// Lists, and their poppers.
pub struct Lists {
    keys: Vec<String>,
    pushing: MultiplexedConnection,
    ledger: Arc<Ledger>,
    _poppers: JoinSet<()>,
}

impl Lists {
    /// One popper, with a connection of its own, for each list. The pushers share one connection, as those of a courier
    /// do.
    pub async fn new(target: &Target, count: usize) -> Result<Arc<Self>, Failure> {
        let name = format!("{}:lists-{count}-{:08x}", target.root, fastrand::u32(..));
        let keys: Vec<String> = (0..count).map(|n| format!("{name}:{n}")).collect();
        let ledger = Arc::new(stage::ledger(count)?);
        let mut poppers = JoinSet::new();
        for key in &keys {
            let (key, ledger, mut waiting) = (key.clone(), ledger.clone(), target.raw().await?);
            poppers.spawn(async move {
                let mut pop = redis::cmd("BRPOP");
                pop.arg(&key).arg(0);
                // An error leaves messages behind, and the ledger tells.
                while let Ok((_, body)) = pop.query_async::<(Vec<u8>, Vec<u8>)>(&mut waiting).await {
                    ledger.note(&body);
                }
            });
        }
        Ok(Arc::new(Self { keys, pushing: target.raw().await?, ledger, _poppers: poppers }))
    }
}

impl System for Lists {
    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn share(&self, pusher: usize, of: usize) -> Vec<(usize, usize)> {
        stage::share(self.keys.len(), pusher, of)
    }

    async fn push(&self, queue: usize, body: Vec<u8>) -> Result<(), Failure> {
        let mut pushing = self.pushing.clone();
        redis::cmd("LPUSH")
            .arg(&self.keys[queue])
            .arg(body)
            .exec_async(&mut pushing)
            .await
            .map_err(raw_failure)
    }

    async fn settle(&self) -> Result<(), Failure> {
        self.ledger.settle("BRPOP").await
    }
}
