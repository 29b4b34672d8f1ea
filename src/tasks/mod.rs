//! Durable MCP tasks (SEP-2663): made on one replica, run by any worker, asked for on any replica.
//!
//! - [`Tasks`] is what a server needs: [`create`](Tasks::create), [`get`](Tasks::get), [`update`](Tasks::update),
//!   [`cancel`](Tasks::cancel), [`watch`](Tasks::watch).
//! - [`Worker`] runs the work: a [`TaskHandler`] is given one [`Leg`] after the other.
//! - [`DetailedTask`] is what the client sees, in the specification's shape.
//!
//! A task is one Redis hash; every change of it is one script. The legs that wait or run stand in one sorted set; a task
//! that waits for its client stands in none, and costs its bytes.

mod context;
mod handler;
mod held;
mod id;
mod leg_context;
mod new;
mod operate;
mod queue;
mod run;
mod settings;
mod watch;
mod wire;
mod worker;

use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;
use tracing::Instrument as _;
use tracing::field::Empty;

pub use self::context::ContextSnapshot;
use self::context::Vault;
pub use self::handler::{InputRequired, Leg, LegOutcome, TaskHandler};
pub use self::id::{Scope, TaskId};
pub use self::leg_context::{TaskContext, TaskExit};
pub use self::new::NewTask;
pub use self::operate::{
    StageCount, TaskContent, TaskCounts, TaskCursor, TaskPage, TaskRetry, TaskStage, TaskSummary,
};
use self::settings::Settings;
pub use self::watch::TaskWatch;
pub(crate) use self::watch::Watching;
pub use self::wire::{CreateTaskResult, DetailedTask, GetTaskResult, TaskAck, TaskStatus};
pub use self::worker::{Worker, WorkerBuilder, WorkerEnd};
use crate::config::millis;
use crate::core::Core;
use crate::keys::{Address, decode, encode_key};
use crate::script::{self, CancelReply, CreateReply, Created, RawTask, Tell};
use crate::{Courier, Error, Result};

/// Most answers in one update.
const MAX_ANSWERS: usize = 256;
/// Longest status message; a longer one is cut.
pub(crate) const MAX_MESSAGE_BYTES: usize = 4096;

/// The tasks of one server. Cheap to clone; clones share the settings they were cloned with.
///
/// All replicas and workers of a server use the same group and the same keys.
#[derive(Clone)]
pub struct Tasks {
    courier: Courier,
    group: Arc<str>,
    settings: Settings,
    vault: Vault,
}

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tasks")
            .field("courier", &self.courier)
            .field("group", &self.group)
            .field("settings", &self.settings)
            .field("encrypted", &self.vault.has_keys())
            .finish()
    }
}

/// What an update did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskUpdated {
    /// Answers that were stored. Others were for keys that are not open: unknown, answered before, superseded.
    pub accepted: u64,
    /// Requests that still wait for an answer.
    pub open: u64,
}

/// What cancelling did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskCancel {
    /// The task was finished before, and is unchanged.
    Finished,
    /// Nobody worked on it: it is cancelled.
    Cancelled,
    /// Its worker was asked to stop, and decides.
    Asked,
}

impl Courier {
    /// The tasks of a server: of the group `default`, encrypted as this courier is
    /// ([`Builder::encryption`](crate::Builder)), until told otherwise.
    pub fn tasks(&self) -> Tasks {
        Tasks {
            courier: self.clone(),
            group: "default".into(),
            settings: Settings::default(),
            vault: Vault::of(&self.core.config.bodies),
        }
    }
}

/// What clients do with tasks. Every call takes the caller's scope and the id as it came over the wire; an id that is
/// malformed, unknown, expired or of another scope gives the same [`Error::TaskNotFound`].
impl Tasks {
    /// Stores a task and queues its first leg. When this returns, every replica finds the task. Redis:
    /// `lua/task_create.lua`, one round trip; repeated after a lost connection until the courier's deadline, without ever
    /// making a second one.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::TooLarge`]: nothing was sent. [`Error::TasksFull`], [`Error::Refused`]: nothing was
    /// stored. [`Error::Unreachable`], [`Error::Timeout`]: the task may have been stored, and expires by itself.
    ///
    /// # Cancel safety
    /// A dropped call may have stored the task. Nobody knows its id then; it runs, and expires.
    pub async fn create(&self, new: NewTask) -> Result<DetailedTask> {
        let id = TaskId::mint();
        let span = tracing::debug_span!("task_create", task = %id);
        self.create_as(id, new).instrument(span).await
    }

    async fn create_as(&self, id: TaskId, mut new: NewTask) -> Result<DetailedTask> {
        new.context.in_current_trace();
        let settings = &self.settings;
        let ttl = new.ttl.unwrap_or(settings.ttl);
        let longest = if settings.fixed { ttl } else { settings.longest };
        let (ttl_ms, longest_ms) = (millis("task ttl", ttl)?, millis("longest life of a task", longest)?);
        if ttl_ms > longest_ms {
            return Err(Error::invalid("task ttl", "is over the longest life of a task"));
        }
        let poll_ms = millis("poll interval", new.poll_interval.unwrap_or(settings.poll_interval))?;
        if !new.context.headers.is_empty() && !self.may_keep_headers() {
            return Err(Error::invalid(
                "task context",
                "has headers, which may be secrets: use `Tasks::encrypted`, or `Tasks::headers_in_clear`",
            ));
        }
        let context =
            serde_json::to_vec(&new.context).map_err(|e| Error::invalid("task context", e.to_string()))?;
        self.check_size("task", new.call.len() + context.len())?;
        let address = self.address(&new.scope, id.as_str());
        let created = Created {
            address: &address,
            group: &self.group,
            call: &self.vault.close("call", &address, &new.call),
            context: &self.vault.close("context", &address, &context),
            ttl_ms,
            latest_ms: longest_ms,
            poll_ms,
            message: cut(&new.message),
            session: new.session.as_ref().map_or("", |s| s.as_str()),
            delay_ms: u64::try_from(new.delay.as_millis()).unwrap_or(u64::MAX).min(longest_ms),
            max_queued: settings.max_queued,
        };
        let (created_ms, expires_ms) = self.store(&created).await?;
        Ok(DetailedTask {
            task_id: id.as_str().to_owned(),
            status: TaskStatus::Working,
            status_message: (!created.message.is_empty()).then(|| created.message.to_owned()),
            created_at: wire::iso8601(created_ms),
            last_updated_at: wire::iso8601(created_ms),
            ttl_ms: expires_ms.saturating_sub(created_ms),
            poll_interval_ms: Some(poll_ms),
            input_requests: None,
            result: None,
            error: None,
            revision: 1,
        })
    }

    /// Where a task stands. Redis: `lua/task_get.lua`; writes nothing.
    ///
    /// # Errors
    /// [`Error::TaskNotFound`]; [`Error::Unreachable`] and others after the courier's deadline.
    pub async fn get(&self, scope: &Scope, id: impl AsRef<str>) -> Result<DetailedTask> {
        let (id, address) = self.look_up(scope, id.as_ref())?;
        let raw = self.raw(&address).await?;
        detailed(&id, raw)
    }

    /// Stores the client's answers. Those for keys that are not open are passed over. The last answer starts the next
    /// leg, or wakes the one that waits. Redis: `lua/task_update.lua`; repeating it does no harm.
    ///
    /// # Errors
    /// [`Error::TaskNotFound`], [`Error::TooLarge`], [`Error::Invalid`] for more than 256 answers; [`Error::Unreachable`]
    /// and others after the courier's deadline.
    pub async fn update(
        &self,
        scope: &Scope,
        id: impl AsRef<str>,
        answers: impl IntoIterator<Item = (String, Box<RawValue>)>,
    ) -> Result<TaskUpdated> {
        let (id, address) = self.look_up(scope, id.as_ref())?;
        let answers: Vec<(String, Bytes)> = answers
            .into_iter()
            .map(|(key, answer)| (encode_key(&key), Bytes::from(String::from(Box::<str>::from(answer)))))
            .collect();
        if answers.len() > MAX_ANSWERS {
            return Err(Error::invalid("task update", format!("has more than {MAX_ANSWERS} answers")));
        }
        self.check_size("task update", answers.iter().map(|(key, answer)| key.len() + answer.len()).sum())?;
        let core = self.core();
        let update = || script::task_update(&core.cmd, self.keys(), &self.group, &address, &answers);
        let span = tracing::debug_span!("task_update", task = %id, answers = answers.len(), accepted = Empty);
        let updating = async {
            let done = self.courier.repeat("task_update", update, true).await?.ok_or(Error::TaskNotFound)?;
            tracing::Span::current().record("accepted", done.accepted);
            if done.accepted > 0 {
                self.tell_session(&done.session, &address, &id).await;
            }
            Ok(done)
        };
        let done = updating.instrument(span).await?;
        Ok(TaskUpdated { accepted: done.accepted, open: done.left })
    }

    /// Cancels a task that nobody works on, or asks its worker to stop. A finished one stays as it is. Redis:
    /// `lua/task_cancel.lua`; repeating it does no harm.
    ///
    /// # Errors
    /// [`Error::TaskNotFound`]; [`Error::Unreachable`] and others after the courier's deadline.
    pub async fn cancel(&self, scope: &Scope, id: impl AsRef<str>) -> Result<TaskCancel> {
        let (id, address) = self.look_up(scope, id.as_ref())?;
        let core = self.core();
        let cancel = || script::task_cancel(&core.cmd, self.keys(), &self.group, &address);
        let span = tracing::debug_span!("task_cancel", task = %id);
        let (done, session) = self.courier.repeat("task_cancel", cancel, true).instrument(span).await?;
        let done = match done {
            CancelReply::None => return Err(Error::TaskNotFound),
            CancelReply::Finished => return Ok(TaskCancel::Finished),
            CancelReply::Cancelled => TaskCancel::Cancelled,
            CancelReply::Asked => TaskCancel::Asked,
        };
        self.tell_session(&session, &address, &id).await;
        Ok(done)
    }

    /// Follows a task: every change from now on, the newest state each time. However many are watched, a process hears
    /// of all of them over the connection it has.
    ///
    /// # Errors
    /// [`Error::TaskNotFound`]; [`Error::Unreachable`] and others when Redis is out of reach.
    pub async fn watch(&self, scope: &Scope, id: impl AsRef<str>) -> Result<TaskWatch> {
        let (id, address) = self.look_up(scope, id.as_ref())?;
        TaskWatch::start(self.clone(), id, address).await
    }

    /// A worker for these tasks, to be started.
    pub fn worker(&self) -> WorkerBuilder {
        WorkerBuilder::new(self.clone())
    }
}

impl Tasks {
    /// The keys of the group: all of its tasks and its queue share a partition.
    fn keys(&self) -> &crate::keys::Keys {
        self.courier.core.keys_of(&self.group)
    }

    fn core(&self) -> &Arc<Core> {
        &self.courier.core
    }

    #[cfg(feature = "rmcp")]
    pub(crate) fn group_name(&self) -> &str {
        &self.group
    }

    /// Whether headers may be stored with a task.
    pub(crate) fn may_keep_headers(&self) -> bool {
        self.vault.has_keys() || self.settings.headers_in_clear
    }

    fn address(&self, scope: &Scope, id: &str) -> Address {
        Address::of(&self.group, scope.as_str(), id)
    }

    /// When it was made, and when it expires; a task that is there already is left as it is.
    async fn store(&self, created: &Created<'_>) -> Result<(u64, u64)> {
        let core = self.core();
        let create = || script::task_create(&core.cmd, self.keys(), created);
        match self.courier.repeat("task_create", create, true).await? {
            CreateReply::Full { queued } => Err(Error::TasksFull { queued, limit: self.settings.max_queued }),
            CreateReply::Stored { created_ms, expires_ms } => Ok((created_ms, expires_ms)),
        }
    }

    /// An id from outside may be anything; one that cannot be a task's is not asked for.
    fn look_up(&self, scope: &Scope, id: &str) -> Result<(TaskId, Address)> {
        if id.is_empty() || id.len() > id::MAX_ID_BYTES {
            return Err(Error::TaskNotFound);
        }
        Ok((TaskId::known(id), self.address(scope, id)))
    }

    async fn raw(&self, address: &Address) -> Result<RawTask> {
        let core = self.core();
        let get = || script::task_get(&core.cmd, self.keys(), address);
        self.courier.repeat("task_get", get, true).await?.ok_or(Error::TaskNotFound)
    }

    fn check_size(&self, what: &'static str, actual: usize) -> Result<()> {
        let limit = self.core().config.max_body_bytes;
        if actual > limit { Err(Error::TooLarge { what, actual, limit }) } else { Ok(()) }
    }

    /// Queues `notifications/tasks` for the session that the task was made with, if there is one: the newest state, one
    /// teller at a time, so that no older state is queued behind a newer one. A convenience beside polling: a failure is
    /// only logged.
    async fn tell_session(&self, session: &str, address: &Address, id: &TaskId) {
        if session.is_empty() {
            return;
        }
        if let Err(error) = self.tell(session, address, id).await {
            tracing::warn!(task = %id, %error, "no notifications/tasks for the session");
        }
    }

    async fn tell(&self, session: &str, address: &Address, id: &TaskId) -> Result<()> {
        let core = self.core();
        let keys = self.keys();
        let session = crate::SessionId::new(session)?;
        let teller = uuid::Uuid::new_v4().simple().to_string();
        // Longer than a push may take with all its repetitions.
        let hold = core.config.deadline * 2;
        let mut told = 0;
        while script::task_tell(&core.cmd, keys, address, &teller, told, hold).await? == Tell::Now {
            let Some(raw) = script::task_get(&core.cmd, keys, address).await? else { return Ok(()) };
            told = raw.rev;
            let notification = detailed(id, raw)?.as_notification()?;
            let push = crate::Push::notification(&session, &notification)?;
            self.courier.push(push.coalesce(format!("task:{id}"))).await?;
        }
        Ok(())
    }
}

/// A stored task in the specification's shape.
fn detailed(id: &TaskId, raw: RawTask) -> Result<DetailedTask> {
    let unreadable = |what: &str| Error::Reply { op: "task_get", got: format!("{what} of another version") };
    let json = |bytes: &Bytes| {
        let text = String::from_utf8(bytes.to_vec()).map_err(|_| unreadable("JSON"))?;
        RawValue::from_string(text).map_err(|_| unreadable("JSON"))
    };
    let status = TaskStatus::stored(&raw.status).ok_or_else(|| unreadable("a status"))?;
    let requests = (status == TaskStatus::InputRequired).then_some(&raw.requests);
    let requests = requests
        .map(|all| all.iter().map(|(key, request)| Ok((decode(key), json(request)?))).collect::<Result<_>>());
    Ok(DetailedTask {
        task_id: id.as_str().to_owned(),
        status,
        status_message: (!raw.message.is_empty()).then_some(raw.message),
        created_at: wire::iso8601(raw.created_ms),
        last_updated_at: wire::iso8601(raw.updated_ms),
        ttl_ms: raw.expires_ms.saturating_sub(raw.created_ms),
        poll_interval_ms: Some(raw.poll_ms),
        input_requests: requests.transpose()?,
        result: (status == TaskStatus::Completed).then(|| json(&raw.outcome)).transpose()?,
        error: (status == TaskStatus::Failed).then(|| json(&raw.outcome)).transpose()?,
        revision: raw.rev,
    })
}

/// A status message within its limit.
fn cut(message: &str) -> &str {
    let mut end = message.len().min(MAX_MESSAGE_BYTES);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}
