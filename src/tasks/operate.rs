//! What operators do with tasks: look at all of them, and have work done once more.

use std::collections::HashSet;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{Scope, TaskId, Tasks};
use crate::core::Core;
use crate::keys::{Address, decode};
use crate::script::{self, Content, Created, Peeked, Remade, RetryReply};
use crate::{Error, Result};

/// How many of the server's keys a call looks at.
const PAGE: u64 = 1000;
/// Tasks in one call.
const PEEK: usize = 100;

/// Where a task stands, more precisely than its client learns it: `working` is `Queued` or `Running`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TaskStage {
    /// A leg waits for a worker, or for its time to start.
    Queued,
    /// A worker holds the lease of a leg.
    Running,
    /// It waits for its client's answers.
    InputRequired,
    /// It ended with a result.
    Completed,
    /// It ended with an error.
    Failed,
    /// It was stopped.
    Cancelled,
    /// Stored by another version.
    Unknown,
}

impl TaskStage {
    /// As the command line writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
        }
    }
}

impl std::fmt::Display for TaskStage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A task as an operator sees it: whose it is and where it stands, and nothing of its content. Times are milliseconds
/// by the server's clock.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct TaskSummary {
    /// Whose it is; empty: callers without an identity.
    pub scope: String,
    /// Its id.
    pub task_id: String,
    /// Where it stands.
    pub stage: TaskStage,
    /// Since its creation.
    pub age_ms: u64,
    /// Since its last change that a client can see.
    pub unchanged_ms: u64,
    /// Until it expires, if nothing changes.
    pub expires_in_ms: u64,
    /// Number of its current leg, from 0.
    pub leg: u64,
    /// Attempts at that leg.
    pub attempts: u64,
    /// Until the waiting leg may start; 0 when it may.
    pub starts_in_ms: u64,
    /// `<node>:<worker>` that holds the leg.
    pub worker: Option<String>,
    /// Its worker was asked to stop.
    pub cancel_requested: bool,
    /// Keys of the requests that wait for an answer.
    pub waits_for: Vec<String>,
    /// Who gets its notifications through the session's queue.
    pub session: Option<String>,
    /// The task that was made of it by [`Tasks::retry`].
    pub retried_as: Option<String>,
    /// Number of its last change.
    pub revision: u64,
}

/// What a task was given, said, asked, answered, and how it ended. Somebody's private matters, perhaps: ask for it only when you
/// need it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct TaskContent {
    /// What its worker was to do, as far as it can be opened and read.
    pub call: String,
    /// The status message; of a failed task its error's.
    pub message: String,
    /// Requests that wait for an answer, by key.
    pub requests: Vec<(String, Box<RawValue>)>,
    /// Answers for the current leg, by key.
    pub answers: Vec<(String, Box<RawValue>)>,
    /// Its result, or its error.
    pub outcome: Option<Box<RawValue>>,
}

/// Where [`Tasks::page`] goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskCursor(u64);

/// Some tasks of the group.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TaskPage {
    /// They may be none, although more pages follow.
    pub tasks: Vec<TaskSummary>,
    /// Where to go on; none: this was the last page.
    pub next: Option<TaskCursor>,
}

/// How many tasks stand somewhere, and how old the oldest of them is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StageCount {
    /// Tasks.
    pub count: u64,
    /// Milliseconds since the creation of the oldest.
    pub oldest_ms: u64,
    /// Milliseconds since the last change of the one that did not change for longest.
    pub unchanged_ms: u64,
}

/// Counts and ages of a group's tasks by where they stand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TaskCounts {
    /// Only what there is.
    pub stages: std::collections::BTreeMap<TaskStage, StageCount>,
    /// Legs in the queue: those that wait and those that run.
    pub legs: u64,
    /// Workers that have nothing to do.
    pub idle_workers: u64,
}

/// What became of the wish to have a task's work done once more.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskRetry {
    /// Its waiting leg may be taken at once, with all attempts ahead.
    Queued,
    /// It had failed, and stays failed: this new task begins its work again.
    Again(TaskId),
    /// There is nothing to retry: it runs, waits for its client, or ended otherwise.
    Refused(TaskStage),
}

/// What operators do. These calls look into every scope: offer them to nobody else.
impl Tasks {
    /// Some of the group's tasks, in no order. Begin without a cursor, and go on until there is no next one. A task that is
    /// there all the while is seen, perhaps twice. Redis: `lua/task_scan.lua` walks over the keys of the server, about
    /// 1,000 in a call, and `lua/task_peek.lua` looks at what was found; so a server with many other keys takes many
    /// pages.
    ///
    /// # Errors
    /// [`Error::Unreachable`] and others after the courier's deadline.
    pub async fn page(&self, from: Option<TaskCursor>) -> Result<TaskPage> {
        let (next, _, tasks) = self.scanned(from.map_or(0, |cursor| cursor.0)).await?;
        let tasks = tasks.into_iter().map(|(_, task)| task).collect();
        Ok(TaskPage { tasks, next: (next > 0).then_some(TaskCursor(next)) })
    }

    /// Counts all tasks of the group, page by page: the more keys the server has, the longer it takes.
    ///
    /// # Errors
    /// As [`Tasks::page`].
    pub async fn counts(&self) -> Result<TaskCounts> {
        let (mut counts, mut seen, mut cursor) = (TaskCounts::default(), HashSet::new(), 0);
        loop {
            let (next, (legs, idle), tasks) = self.scanned(cursor).await?;
            (counts.legs, counts.idle_workers) = (legs, idle);
            for (address, task) in tasks {
                if seen.insert(address) {
                    let stage = counts.stages.entry(task.stage).or_default();
                    stage.count += 1;
                    stage.oldest_ms = stage.oldest_ms.max(task.age_ms);
                    stage.unchanged_ms = stage.unchanged_ms.max(task.unchanged_ms);
                }
            }
            if next == 0 {
                return Ok(counts);
            }
            cursor = next;
        }
    }

    /// Where one task stands.
    ///
    /// # Errors
    /// [`Error::TaskNotFound`]; [`Error::Unreachable`] and others after the courier's deadline.
    pub async fn summary(&self, scope: &Scope, id: impl AsRef<str>) -> Result<TaskSummary> {
        Ok(self.looked_at(scope, id.as_ref(), false).await?.0)
    }

    /// The same with its content. What is encrypted stays so without the keys ([`Tasks::encrypted`]).
    ///
    /// # Errors
    /// As [`Tasks::summary`].
    pub async fn content(&self, scope: &Scope, id: impl AsRef<str>) -> Result<(TaskSummary, TaskContent)> {
        let (summary, content) = self.looked_at(scope, id.as_ref(), true).await?;
        let content = content.ok_or(Error::Reply { op: "task_peek", got: "no content".into() })?;
        Ok((summary, content))
    }

    /// Has the work of a task done once more. A leg that waits, for its backoff say, may be taken at once. A failed task
    /// stays as it is, since its client was told so; its call becomes a new task of the same scope and session, the same
    /// one however often this is repeated. Redis: `lua/task_retry.lua`, `lua/task_create.lua`.
    ///
    /// # Errors
    /// [`Error::TaskNotFound`]; [`Error::Invalid`] when the call cannot be opened, as it is without the keys;
    /// [`Error::TasksFull`], [`Error::Unreachable`] and others: repeat it.
    ///
    /// # Cancel safety
    /// A dropped call may have done its work; repeating it does no harm.
    pub async fn retry(&self, scope: &Scope, id: impl AsRef<str>) -> Result<TaskRetry> {
        let (_, address) = self.look_up(scope, id.as_ref())?;
        let (core, new) = (self.core(), TaskId::mint());
        let retry = || script::task_retry(&core.cmd, self.keys(), &self.group, &address, new.as_str());
        match self.courier.repeat("task_retry", retry, true).await? {
            RetryReply::None => Err(Error::TaskNotFound),
            RetryReply::Queued => Ok(TaskRetry::Queued),
            RetryReply::Refused { word } => Ok(TaskRetry::Refused(match word.as_str() {
                "running" | "cancelling" => TaskStage::Running,
                status => stage(status, true),
            })),
            RetryReply::Again(made_of) => self.make_again(scope, &address, &made_of).await,
        }
    }

    async fn make_again(&self, scope: &Scope, old: &Address, made_of: &Remade) -> Result<TaskRetry> {
        let open = |place, stored| {
            self.vault.open(place, old, stored).map_err(|why| Error::invalid("task to be retried", why))
        };
        let (call, context) = (open("call", &made_of.call)?, open("context", &made_of.context)?);
        let id = TaskId::known(&made_of.id);
        let address = self.address(scope, id.as_str());
        self.store(&Created {
            address: &address,
            group: &self.group,
            call: &self.vault.close("call", &address, &call),
            context: &self.vault.close("context", &address, &context),
            ttl_ms: made_of.ttl_ms,
            latest_ms: made_of.latest_ms,
            poll_ms: made_of.poll_ms,
            message: "",
            session: &made_of.session,
            delay_ms: 0,
            max_queued: self.settings.max_queued,
        })
        .await?;
        Ok(TaskRetry::Again(id))
    }

    /// The next cursor; legs in the queue and idle workers; tasks.
    async fn scanned(&self, cursor: u64) -> Result<(u64, (u64, u64), Vec<(Address, TaskSummary)>)> {
        let core = self.core();
        let scan = || script::task_scan(&core.cmd, self.keys(), &self.group, cursor, PAGE);
        let page = self.courier.repeat("task_scan", scan, true).await?;
        let mut tasks = Vec::new();
        for some in page.addresses.chunks(PEEK) {
            let (now, found) = self.peek(core, some, false).await?;
            for (address, peeked) in some.iter().zip(found) {
                // It may have expired since.
                let Some(task) = peeked.and_then(|peeked| summary(now, address, &peeked)) else { continue };
                tasks.push((address.clone(), task));
            }
        }
        Ok((page.cursor, (page.legs, page.idle), tasks))
    }

    async fn peek(&self, core: &Core, some: &[Address], content: bool) -> Result<(u64, Vec<Option<Peeked>>)> {
        let peek = || script::task_peek(&core.cmd, self.keys(), some, content);
        self.courier.repeat("task_peek", peek, true).await
    }

    async fn looked_at(
        &self,
        scope: &Scope,
        id: &str,
        content: bool,
    ) -> Result<(TaskSummary, Option<TaskContent>)> {
        let (_, address) = self.look_up(scope, id)?;
        let (now, mut found) = self.peek(self.core(), std::slice::from_ref(&address), content).await?;
        let mut peeked = found.pop().flatten().ok_or(Error::TaskNotFound)?;
        let message = std::mem::take(&mut peeked.message);
        let content = peeked.content.take().map(|content| self.opened(&address, message, content));
        Ok((summary(now, &address, &peeked).ok_or(Error::TaskNotFound)?, content))
    }

    fn opened(&self, address: &Address, message: String, content: Content) -> TaskContent {
        let json = |bytes: &Bytes| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            RawValue::from_string(text.clone()).or_else(|_| serde_json::value::to_raw_value(&text)).ok()
        };
        let all = |pairs: Vec<(String, Bytes)>| {
            pairs.iter().filter_map(|(key, value)| Some((decode(key), json(value)?))).collect()
        };
        TaskContent {
            call: match self.vault.open("call", address, &content.call) {
                _ if content.call.is_empty() => String::new(),
                Ok(call) => String::from_utf8_lossy(&call).into_owned(),
                Err(why) => format!("({why})"),
            },
            message,
            requests: all(content.requests),
            answers: all(content.answers),
            outcome: (!content.outcome.is_empty()).then(|| json(&content.outcome)).flatten(),
        }
    }
}

/// `held`: somebody has the lease of its leg.
fn stage(status: &str, held: bool) -> TaskStage {
    match status {
        "working" if held => TaskStage::Running,
        "working" => TaskStage::Queued,
        "input_required" => TaskStage::InputRequired,
        "completed" => TaskStage::Completed,
        "failed" => TaskStage::Failed,
        "cancelled" => TaskStage::Cancelled,
        _ => TaskStage::Unknown,
    }
}

/// Nothing when the key is none of a task of ours.
fn summary(now: u64, address: &Address, peeked: &Peeked) -> Option<TaskSummary> {
    let (_, scope, task_id) = address.parts()?;
    let held = !peeked.lease.is_empty() && peeked.due_ms > now;
    let stage = stage(&peeked.status, held);
    let holder = peeked.lease.rsplit_once(':').map(|(worker, _)| worker.to_owned());
    Some(TaskSummary {
        scope,
        task_id,
        stage,
        age_ms: now.saturating_sub(peeked.created_ms),
        unchanged_ms: now.saturating_sub(peeked.updated_ms),
        expires_in_ms: peeked.expires_ms.saturating_sub(now),
        leg: peeked.leg,
        attempts: peeked.attempts,
        starts_in_ms: if stage == TaskStage::Queued { peeked.due_ms.saturating_sub(now) } else { 0 },
        worker: holder.filter(|_| held),
        cancel_requested: peeked.cancel,
        waits_for: peeked.open.split_whitespace().map(decode).collect(),
        session: (!peeked.session.is_empty()).then(|| peeked.session.clone()),
        retried_as: (!peeked.retried.is_empty()).then(|| peeked.retried.clone()),
        revision: peeked.rev,
    })
}
