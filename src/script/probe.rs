//! `lua/probe.lua`: the rights of our user, found before they are needed.

use std::collections::BTreeSet;

use super::reply::Fields;
use super::source::script;
use super::{Invocation, Script};
use crate::connection::Commands;
use crate::keys::Keys;
use crate::{Error, Result};

script!(pub(super) static PROBE = "probe", uses [],
    keys ["probe"] each [],
    args ["channel", "publish"] each ["command"]);

/// What a process does, where its rights are tried before it does it: refused in the middle, a script would leave half
/// of its work.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    /// Every process: pushes, and looks at the indexes when it connects.
    Producer,
    /// One that serves sessions.
    Owner,
    /// Whoever puts dead letters back, or purges them.
    Undertaker,
    /// One that runs legs of tasks.
    Worker,
}

impl Role {
    fn scripts(self) -> Vec<&'static Script> {
        match self {
            Self::Producer => vec![
                &super::layout::LAYOUT,
                &super::push::PUSH,
                &super::push::COALESCE,
                &super::stats::OVERVIEW,
            ],
            Self::Owner => vec![
                &super::claim::CLAIM,
                &super::pop::POP,
                &super::ack::ACK,
                &super::requeue::REQUEUE,
                &super::release::RELEASE,
                &super::release::LEAVE,
                &super::heartbeat::HEARTBEAT,
                &super::sweep::SWEEP,
                &super::sweep::TIDY,
                &super::sweep::REAP,
                &super::topic::TOPIC_DUE,
                &super::topic::TOPIC_TIDY,
            ],
            Self::Undertaker => vec![&super::dead::DEAD_REQUEUE, &super::dead::DEAD_PURGE],
            Self::Worker => vec![
                &super::legs::LEG_TAKE,
                &super::legs::LEG_RENEW,
                &super::legs::LEG_DONE,
                &super::legs::LEG_PARK,
                &super::legs::LEG_RETURN,
                &super::legs::LEG_ASK,
                &super::legs::LEG_SAY,
            ],
        }
    }
}

/// The commands that a script calls, in lower case.
fn commands_of(script: &'static Script) -> impl Iterator<Item = String> {
    let calls = |start| script.source.split(start).skip(1);
    let calls = calls("call('").chain(calls("call_some('"));
    calls.filter_map(|call| call.split_once('\'')).map(|(name, _)| name.to_lowercase())
}

/// Checks that the user may do what this role does.
///
/// # Errors
/// [`Error::Refused`] with the code `NOPERM`, naming every command that is missing, or the keys.
pub(crate) async fn probe(cmd: &Commands, keys: &Keys, role: Role) -> Result<()> {
    let mut wanted: BTreeSet<String> = role.scripts().into_iter().flat_map(commands_of).collect();
    wanted.insert("publish".into());
    let channel = keys.inbox("probe");
    let (missing, why) =
        missing(cmd, &keys.probe(), &channel, &wanted).await.map_err(|e| with_pattern(e, keys))?;
    if missing.is_empty() {
        return Ok(());
    }
    let channel = if missing.iter().any(|m| m == "publish") {
        format!("; publishing needs the channels &{}*", keys.inboxes)
    } else {
        String::new()
    };
    let message = format!("no right to {}{channel}; the server says: {why}", missing.join(", "));
    Err(Error::Refused { op: "connect", code: "NOPERM".into(), message })
}

/// Those of the commands that the user may not run, and what the server says of one of them.
async fn missing(
    cmd: &Commands,
    key: &str,
    channel: &str,
    wanted: &BTreeSet<String>,
) -> Result<(Vec<String>, String)> {
    let mut call = Invocation::new(&PROBE);
    call.key(key).arg(channel).arg(cmd.publish());
    for command in wanted {
        call.arg(command);
    }
    // With its text: that right is needed after each restart of the server, and would be missed then.
    let mut reply = Fields::of(&PROBE, cmd.run_text(&call).await?)?;
    let (mut missing, mut why) = (Vec::new(), String::new());
    while reply.len() > 0 {
        let (name, text) = (reply.word()?, reply.word()?);
        // What was not asked for is not shown either.
        if !wanted.contains(&name) {
            return Err(Error::Reply { op: PROBE.name, got: "a command that was not asked for".into() });
        }
        missing.push(name);
        why = text;
    }
    Ok((missing, why))
}

/// The error of a call that was refused for a missing right, with what is missing, as far as that can be found.
pub(crate) async fn explain(cmd: &Commands, call: &Invocation, op: &'static str, said: String) -> Error {
    let refused = |message: String| Error::Refused { op, code: "NOPERM".into(), message };
    let Some(first) = call.first_key().and_then(|key| std::str::from_utf8(key).ok()) else {
        return refused(said);
    };
    // Beside the first key: with its hash tag, and what its name begins with.
    let key = format!("{first}:probe");
    match missing(cmd, &key, &key, &commands_of(call.script).collect()).await {
        Ok((missing, _)) if !missing.is_empty() => {
            refused(format!("no right to {}; the server says: {said}", missing.join(", ")))
        }
        // All commands may be used: it is about a key.
        _ if said.contains(" key") => {
            let prefix = first.split('{').next().unwrap_or_default();
            refused(format!("{said}; needed: keys ~{prefix}*"))
        }
        _ => refused(said),
    }
}

/// Says which keys or channels a refusal is about; the server does not.
pub(crate) fn with_pattern(e: Error, keys: &Keys) -> Error {
    match e {
        Error::Refused { op, code, message } if code == "NOPERM" => {
            let pattern = if message.contains("channel") {
                format!("; needed: channels &{}*", keys.inboxes)
            } else if message.contains("key") {
                format!("; needed: keys ~{}*", keys.base())
            } else {
                String::new()
            };
            Error::Refused { op, code, message: message + &pattern }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command that a script calls and the probe cannot try would be refused in the middle of that script.
    #[test]
    fn every_command_of_every_script_can_be_tried() {
        let (_, table) = PROBE.source.split_once("local try = {").expect("the table");
        for script in super::super::all() {
            for command in commands_of(script) {
                assert!(
                    table.contains(&format!("  {command} = function()")),
                    "{} calls {command}, which lua/probe.lua does not try",
                    script.name
                );
            }
        }
    }

    #[test]
    fn every_script_of_messages_and_sessions_has_a_role() {
        let roles: BTreeSet<&str> = [Role::Producer, Role::Owner, Role::Undertaker, Role::Worker]
            .iter()
            .flat_map(|role| role.scripts())
            .map(|script| script.name)
            .collect();
        // They look, or what they need is said when they are refused.
        let later = ["stats", "dead_list", "touch", "probe"];
        let families = ["question_", "task_", "topic_", "session_", "event_", "mail_", "fastmcp_"];
        for script in super::super::all() {
            let named = later.contains(&script.name) || families.iter().any(|f| script.name.starts_with(f));
            assert!(
                roles.contains(script.name) || named,
                "{}: give it a role in probe.rs, or name it here",
                script.name
            );
        }
    }
}
