//! The end of a run: nothing new, everything delivered, everybody gone, nothing left.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use mcp_courier::{Courier, Push, PushStatus};

use super::check::{self, Found};
use super::ledger::Ledger;
use super::message::{self, Name};
use super::servers::{Server, raw, until};
use super::stage::Stage;
use super::{PREFIX, args::Topology};
use crate::output::Failure;

/// What the last messages are given to be delivered.
const DRAIN: Duration = Duration::from_secs(60);
/// What connections are given to end: a server keeps those to other servers for a while after slots were moved.
const DESERT: Duration = Duration::from_secs(30);

/// What was found when it was over.
pub struct Closing {
    /// The ledger as it was when all was delivered, before anything was asked.
    pub ledger: Ledger,
    pub found: HashMap<Name, Found>,
    /// What is not as it should be, beside messages.
    pub left: Vec<String>,
    pub dead_reasons: Vec<(String, u64)>,
}

impl Stage {
    /// Brings the run to its end.
    pub async fn close(&mut self) -> Result<Closing, Failure> {
        let mut left = Vec::new();
        self.stop_moving();
        self.crew.rest().await?;
        let courier = Courier::builder().prefix(PREFIX).connect(self.servers.url()).await?;
        if let Err(why) = drained(&courier).await {
            left.push(why.to_string());
        }
        let mut found = HashMap::new();
        let mut reasons: HashMap<String, u64> = HashMap::new();
        for session in 0..self.args.sessions {
            for (name, reason) in dead(&courier, session).await? {
                *reasons.entry(reason.clone()).or_default() += 1;
                found.insert(name, Found::Dead(reason));
            }
        }
        // The last lines are on their way.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let doubtful: Vec<Name> = check::doubtful(&self.crew.ledger(), self.seed);
        let ledger = std::mem::take(&mut *self.crew.ledger());
        for name in doubtful {
            if let Entry::Vacant(unknown) = found.entry(name) {
                unknown.insert(self.ask(&courier, name).await?);
            }
        }
        if let Err(why) = drained(&courier).await {
            left.push(format!("after asking: {why}"));
        }
        drop(courier);
        left.extend(self.connections().await?);
        if let Err(why) = self.crew.end().await {
            left.push(why.to_string());
        }
        left.extend(self.crew.deserted());
        left.extend(self.last_words());
        left.extend(self.deserted().await);
        left.extend(self.keys().await?);
        left.extend(alive(&self.crew.pids()));
        let mut dead_reasons: Vec<_> = reasons.into_iter().collect();
        dead_reasons.sort();
        Ok(Closing { ledger, found, left, dead_reasons })
    }

    /// Whether the id of a message is known where its session is now: a second push with it tells.
    async fn ask(&self, courier: &Courier, name: Name) -> Result<Found, Failure> {
        let session = message::session(name.session)?;
        let push = Push::new(&session, name.body(self.seed)).id(name.id()?).ttl(message::LONG);
        let status = courier.push(push).await?.status;
        Ok(if status == PushStatus::Duplicate { Found::Known } else { Found::Nothing })
    }

    /// Connections of couriers, as the servers list them: two of each process that serves, one of each that pushes, in a
    /// Cluster to each master.
    async fn connections(&self) -> Result<Vec<String>, Failure> {
        let each = self.args.subscribers * 2 + self.args.producers;
        let masters = self.servers.masters().await?.len();
        let most = each as usize * if self.servers.topology == Topology::Cluster { masters } else { 1 };
        Ok(self.fewer_than(most, "all is at rest").await)
    }

    async fn deserted(&self) -> Vec<String> {
        self.fewer_than(0, "all processes have ended").await
    }

    async fn fewer_than(&self, most: usize, when: &str) -> Vec<String> {
        let looked = until("connections to end", DESERT, async || {
            let mut lines = Vec::new();
            for server in &self.servers.all {
                lines.extend(couriers(server).await?);
            }
            if lines.len() <= most {
                return Ok(());
            }
            let count = lines.len();
            Err(Failure::failed(format!("{count} of couriers when {when}, {most} at most: {lines:?}")))
        });
        looked.await.err().map(|e| e.to_string()).into_iter().collect()
    }

    /// What processes said when they ended: tasks and sessions.
    fn last_words(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let ledger = self.crew.ledger();
        for ((role, number, life), last) in &ledger.last {
            if last.tasks > 0 || last.sessions > 0 || last.abandoned > 0 {
                wrong.push(format!(
                    "{} {number}.{life} ended with {} tasks, {} sessions, {} abandoned",
                    role.word(),
                    last.tasks,
                    last.sessions,
                    last.abandoned
                ));
            }
        }
        let expected = (self.args.producers + self.args.subscribers) as usize;
        if ledger.last.len() != expected {
            wrong.push(format!("{} of {expected} processes said their last words", ledger.last.len()));
        }
        wrong
    }

    /// Keys of the run that nobody owns and that do not expire.
    async fn keys(&self) -> Result<Vec<String>, Failure> {
        let mut wrong = Vec::new();
        for master in self.servers.masters().await? {
            let mut raw = raw::connect(self.servers.all[master].port()).await?;
            let mut cursor = "0".to_owned();
            loop {
                let words = ["SCAN", &cursor, "MATCH", &format!("{PREFIX}:*"), "COUNT", "1000"];
                let (next, keys): (String, Vec<String>) = raw::ask(&mut raw, &words).await?;
                for key in keys {
                    wrong.extend(leaked(&mut raw, &key).await?);
                }
                cursor = next;
                if cursor == "0" {
                    break;
                }
            }
        }
        Ok(wrong)
    }
}

/// Until nothing is pending.
async fn drained(courier: &Courier) -> Result<(), Failure> {
    until("queues to be empty", DRAIN, async || {
        let overview = courier.overview(3).await?;
        if overview.waiting == 0 {
            return Ok(());
        }
        Err(Failure::failed(format!("{} sessions wait, as {:?}", overview.waiting, overview.sessions)))
    })
    .await
}

async fn dead(courier: &Courier, session: u32) -> Result<Vec<(Name, String)>, Failure> {
    let session = message::session(session)?;
    let mut letters = Vec::new();
    loop {
        let (_, page) = courier.dead_letters(&session).list(letters.len() as u64, 100).await?;
        if page.is_empty() {
            return Ok(letters);
        }
        for letter in page {
            let name = letter.id.parse().map_err(Failure::failed)?;
            letters.push((name, format!("{}, {}", letter.reason, letter.last_error)));
        }
    }
}

/// Lines of `CLIENT LIST` that are neither ours nor of a server or a sentinel.
async fn couriers(server: &Server) -> Result<Vec<String>, Failure> {
    let list: String = server.ask(&["CLIENT", "LIST"]).await?;
    let value = |line: &str, name: &str| -> String {
        line.split(' ').find_map(|w| w.strip_prefix(name)).unwrap_or_default().to_owned()
    };
    let courier = |line: &&str| {
        let (flags, name) = (value(line, "flags="), value(line, "name="));
        !flags.contains(['S', 'M']) && name != raw::NAME && !name.starts_with("sentinel-")
    };
    Ok(list.lines().filter(courier).map(str::to_owned).collect())
}

/// What is wrong with a key, when something is.
async fn leaked(raw: &mut redis::aio::MultiplexedConnection, key: &str) -> Result<Option<String>, Failure> {
    let ttl: i64 = raw::ask(raw, &["PTTL", key]).await?;
    if ttl != -1 {
        return Ok(None);
    }
    // The two indexes without a time to live: nobody serves anything any more, and nothing is pending.
    let count = match key.rsplit(':').next() {
        Some("s") => "HLEN",
        Some("w") => "ZCARD",
        _ => return Ok(Some(format!("key {key} has no TTL"))),
    };
    let held: u64 = raw::ask(raw, &[count, key]).await?;
    Ok((held > 0).then(|| format!("key {key} still holds {held} sessions")))
}

/// Processes that still run under one of these ids.
fn alive(pids: &[u32]) -> Vec<String> {
    let status = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    let ours = pids.iter().filter(|pid| {
        // Another process may have the id by now: a child of ours is either gone or has us as its parent.
        let parent =
            |stat: &str| stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(2)?.parse().ok());
        status(pid).and_then(|stat| parent(&stat)) == Some(std::process::id())
    });
    ours.map(|pid| format!("process {pid} still runs")).collect()
}
