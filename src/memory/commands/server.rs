//! The server itself, and messages.

use super::{Args, Command, int, is};
use crate::memory::glob;
use crate::memory::resp::{Blob, Reply};
use crate::memory::store::{Fault, Outcome, Store};

/// The version the engine passes for: the newest whose commands it has all that the scripts need.
pub(in crate::memory) const VERSION: &str = "7.2.0";

pub(super) const COMMANDS: &[Command] = &[
    ("PING", -1, ping),
    ("ECHO", 2, |_, args| Ok(Reply::text(args[0]))),
    ("SELECT", 2, select),
    ("TIME", 1, time),
    ("INFO", -1, info),
    ("CONFIG", -2, config),
    ("DBSIZE", 1, |store, _| Ok(Reply::count(store.len()))),
    ("FLUSHALL", -1, flush_all),
    ("PUBLISH", 3, |store, args| Ok(Reply::count(store.channels.publish(args[0], args[1])))),
    ("PUBSUB", -2, pubsub),
    // Nobody follows this engine, and nothing is to be waited for.
    ("WAIT", 3, |_, args| int(args[0]).and(int(args[1])).map(|_| Reply::count(0))),
];

fn ping(_: &mut Store, args: &Args<'_>) -> Outcome {
    match args {
        [] => Ok(Reply::status("PONG")),
        [text] => Ok(Reply::text(text)),
        _ => Err(Fault::new("ERR wrong number of arguments for 'ping' command")),
    }
}

fn select(_: &mut Store, args: &Args<'_>) -> Outcome {
    match int(args[0])? {
        0 => Ok(Reply::ok()),
        _ => Err(Fault::new("ERR DB index is out of range")),
    }
}

fn time(store: &mut Store, _: &Args<'_>) -> Outcome {
    let now = store.now_us();
    Ok(Reply::Array(vec![
        Reply::text((now / 1_000_000).to_string()),
        Reply::text((now % 1_000_000).to_string()),
    ]))
}

fn info(_: &mut Store, _: &Args<'_>) -> Outcome {
    let lines = [
        "# Server".to_owned(),
        format!("redis_version:{VERSION}"),
        "redis_mode:standalone".to_owned(),
        "mcp_courier_engine:memory".to_owned(),
        String::new(),
        "# Memory".to_owned(),
        "maxmemory:0".to_owned(),
        "maxmemory_policy:noeviction".to_owned(),
        String::new(),
        "# Replication".to_owned(),
        "role:master".to_owned(),
        String::new(),
    ];
    Ok(Reply::Verbatim(lines.join("\r\n")))
}

fn config(_: &mut Store, args: &Args<'_>) -> Outcome {
    const SETTINGS: [(&str, &str); 4] =
        [("maxmemory", "0"), ("maxmemory-policy", "noeviction"), ("appendonly", "no"), ("save", "")];
    match args {
        [word, patterns @ ..] if is(word, "GET") && !patterns.is_empty() => {
            let wanted = SETTINGS.iter().filter(|(name, _)| {
                patterns.iter().any(|pattern| glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes()))
            });
            Ok(Reply::Map(wanted.map(|(name, value)| (Reply::text(name), Reply::text(value))).collect()))
        }
        _ => Err(Fault::new("ERR unknown subcommand or wrong number of arguments for 'config'")),
    }
}

fn flush_all(store: &mut Store, args: &Args<'_>) -> Outcome {
    match args {
        [] => {}
        [mode] if is(mode, "SYNC") || is(mode, "ASYNC") => {}
        _ => return Err(Fault::SYNTAX),
    }
    store.clear();
    Ok(Reply::ok())
}

fn pubsub(store: &mut Store, args: &Args<'_>) -> Outcome {
    match args {
        [word, channels @ ..] if is(word, "NUMSUB") => {
            let count = |channel: &&[u8]| {
                [Reply::Bulk(Blob::from(*channel)), Reply::count(store.channels.listeners(channel))]
            };
            Ok(Reply::Array(channels.iter().flat_map(count).collect()))
        }
        _ => Err(Fault::new("ERR unknown subcommand or wrong number of arguments for 'pubsub'")),
    }
}
