//! `mcp-courier tasks`.

use std::io;

use clap::Subcommand;
use mcp_courier::tasks::{Scope, TaskCancel, TaskRetry, TaskSummary, Tasks};
use serde_json::json;

use crate::args::Server;
use crate::output::{self, Failure, time};

#[derive(Debug, Subcommand)]
pub enum TaskCommand {
    /// List them: whose they are and where they stand, nothing of their content.
    List(TaskList),
    /// Count them, and say how old the oldest are.
    Count {
        /// The server's group of tasks.
        #[arg(long, default_value = "default")]
        group: String,
    },
    /// One task.
    Show {
        #[command(flatten)]
        task: ChosenTask,
        /// Also what it was given, what it says, asked and was answered, and how it ended.
        #[arg(long)]
        content: bool,
    },
    /// Cancel it, or ask its worker to stop.
    Cancel(ChosenTask),
    /// Let a waiting leg start now, with all its attempts; make a failed task again as a new one.
    Retry(ChosenTask),
}

#[derive(Debug, clap::Args)]
pub struct TaskList {
    /// The server's group of tasks.
    #[arg(long, default_value = "default")]
    pub group: String,
    /// Only those that stand there.
    #[arg(long, value_parser = ["queued", "running", "input_required", "completed", "failed", "cancelled"])]
    pub stage: Option<String>,
    /// Only those of this caller; empty: callers without an identity.
    #[arg(long)]
    pub scope: Option<String>,
    /// No more than so many.
    #[arg(long, default_value_t = 100)]
    pub limit: u64,
}

#[derive(Debug, clap::Args)]
pub struct ChosenTask {
    /// The task's id.
    pub id: String,
    /// Whose it is, as `list` shows it; without it: of a caller without an identity.
    #[arg(long)]
    pub scope: Option<String>,
    /// The server's group of tasks.
    #[arg(long, default_value = "default")]
    pub group: String,
}

pub async fn run(server: &Server, json: bool, command: TaskCommand) -> Result<u8, Failure> {
    let courier = server.connect().await?;
    let of = |group: &str| courier.tasks().group(group);
    match command {
        TaskCommand::List(args) => list(&of(&args.group)?, json, &args).await?,
        TaskCommand::Count { group } => count(&of(&group)?, json).await?,
        TaskCommand::Show { task, content } => show(&of(&task.group)?, json, &task, content).await?,
        TaskCommand::Cancel(task) => {
            let done = match of(&task.group)?.cancel(&scope(&task)?, &task.id).await? {
                TaskCancel::Finished => ("finished", "it was finished before, and is unchanged"),
                TaskCancel::Cancelled => ("cancelled", "it is cancelled"),
                _ => ("asked", "its worker was asked to stop"),
            };
            said(json, &task, done.0, done.1, None)?;
        }
        TaskCommand::Retry(task) => match of(&task.group)?.retry(&scope(&task)?, &task.id).await? {
            TaskRetry::Queued => said(json, &task, "queued", "its leg may be taken now", None)?,
            TaskRetry::Again(id) => {
                let text = format!("it stays failed; its work begins again as task {id}");
                said(json, &task, "again", &text, Some(id.as_str()))?;
            }
            TaskRetry::Refused(stage) => {
                let why = format!("nothing to retry: it is {stage}");
                said(json, &task, "refused", &why, None)?;
                return Ok(output::FAILED);
            }
            other => return Err(Failure::failed(format!("{other:?}"))),
        },
    }
    Ok(0)
}

fn scope(task: &ChosenTask) -> Result<Scope, Failure> {
    Ok(match &task.scope {
        Some(scope) if !scope.is_empty() => Scope::named(scope)?,
        _ => Scope::anonymous(),
    })
}

async fn list(tasks: &Tasks, json: bool, args: &TaskList) -> Result<(), Failure> {
    let (mut from, mut shown, mut seen) = (None, 0, std::collections::HashSet::new());
    if !json {
        output::line(&format!(
            "{:<34} {:<15} {:>9} {:>10} {:>10} {:>8}  {}",
            "task", "stage", "age", "unchanged", "expires in", "attempts", "scope"
        ))?;
    }
    loop {
        let page = tasks.page(from).await?;
        for task in page.tasks {
            let wanted = args.stage.as_deref().is_none_or(|stage| stage == task.stage.as_str())
                && args.scope.as_deref().is_none_or(|scope| scope == task.scope)
                && seen.insert((task.scope.clone(), task.task_id.clone()));
            if !wanted {
                continue;
            }
            if shown == args.limit {
                if !json {
                    output::line(&format!("more than {shown}; see --limit"))?;
                }
                return Ok(());
            }
            shown += 1;
            if json { output::json(&task)? } else { output::line(&row(&task))? }
        }
        from = page.next;
        if from.is_none() {
            return Ok(());
        }
    }
}

fn row(task: &TaskSummary) -> String {
    let scope =
        if task.scope.is_empty() { "(anonymous)".into() } else { task.scope.escape_debug().to_string() };
    format!(
        "{:<34} {:<15} {:>9} {:>10} {:>10} {:>8}  {scope}",
        task.task_id.escape_debug().to_string(),
        task.stage.as_str(),
        time(task.age_ms),
        time(task.unchanged_ms),
        time(task.expires_in_ms),
        task.attempts,
    )
}

async fn count(tasks: &Tasks, json: bool) -> Result<(), Failure> {
    let counts = tasks.counts().await?;
    if json {
        return Ok(output::json(&counts)?);
    }
    output::line(&format!("{} legs in the queue, {} idle workers", counts.legs, counts.idle_workers))?;
    for (stage, count) in &counts.stages {
        output::line(&format!(
            "{:<15} {:>8}  the oldest {}, unchanged for {}",
            stage.as_str(),
            count.count,
            time(count.oldest_ms),
            time(count.unchanged_ms)
        ))?;
    }
    Ok(())
}

async fn show(tasks: &Tasks, json: bool, task: &ChosenTask, content: bool) -> Result<(), Failure> {
    let scope = scope(task)?;
    let (summary, content) = if content {
        let (summary, content) = tasks.content(&scope, &task.id).await?;
        (summary, Some(content))
    } else {
        (tasks.summary(&scope, &task.id).await?, None)
    };
    if json {
        return Ok(output::json(&json!({ "task": summary, "content": content }))?);
    }
    output::line(&row(&summary))?;
    let mut facts = vec![format!("leg {}, change {}", summary.leg, summary.revision)];
    if summary.starts_in_ms > 0 {
        facts.push(format!("starts in {}", time(summary.starts_in_ms)));
    }
    facts.extend(summary.worker.as_ref().map(|worker| format!("held by worker {worker}")));
    facts.extend(summary.cancel_requested.then(|| "asked to stop".to_owned()));
    facts.extend(
        (!summary.waits_for.is_empty()).then(|| format!("waits for {}", summary.waits_for.join(", "))),
    );
    facts.extend(
        summary.session.as_ref().map(|session| format!("notifies session {}", session.escape_debug())),
    );
    facts.extend(summary.retried_as.as_ref().map(|id| format!("was made again as {id}")));
    for fact in facts {
        output::line(&fact)?;
    }
    let Some(content) = content else { return Ok(()) };
    output::line(&format!("call: {}", content.call))?;
    if !content.message.is_empty() {
        output::line(&format!("says: {}", content.message.escape_debug()))?;
    }
    for (what, all) in [("request", &content.requests), ("answer", &content.answers)] {
        for (key, value) in all {
            output::line(&format!("{what} {}: {value}", key.escape_debug()))?;
        }
    }
    if let Some(outcome) = &content.outcome {
        output::line(&format!("outcome: {outcome}"))?;
    }
    Ok(())
}

fn said(json: bool, task: &ChosenTask, done: &str, text: &str, new: Option<&str>) -> io::Result<()> {
    if json {
        return output::json(&json!({ "task_id": task.id, "done": done, "new_task_id": new }));
    }
    output::line(text)
}
