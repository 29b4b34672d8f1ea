//! Keys of any type, and their expiry.

use super::{Args, Command, Scan, int, is};
use crate::memory::resp::Reply;
use crate::memory::store::{Fault, Outcome, Store};

pub(super) const COMMANDS: &[Command] = &[
    ("DEL", -2, del),
    ("UNLINK", -2, del),
    ("EXISTS", -2, |store, args| {
        Ok(Reply::count(args.iter().filter(|key| store.value(key).is_some()).count()))
    }),
    ("TYPE", 2, |store, args| {
        Ok(Reply::status(store.value(args[0]).map_or("none", |value| value.type_name())))
    }),
    ("TTL", 2, |store, args| Ok(ttl(store, args, 1000))),
    ("PTTL", 2, |store, args| Ok(ttl(store, args, 1))),
    ("PEXPIRETIME", 2, |store, args| {
        Ok(Reply::Int(store.deadline(args[0]).map_or(-2, |deadline| deadline.unwrap_or(-1))))
    }),
    ("EXPIRE", -3, |store, args| expire(store, args, 1000, true)),
    ("PEXPIRE", -3, |store, args| expire(store, args, 1, true)),
    ("PEXPIREAT", -3, |store, args| expire(store, args, 1, false)),
    ("PERSIST", 2, persist),
    ("SCAN", -2, scan),
];

fn del(store: &mut Store, args: &Args<'_>) -> Outcome {
    Ok(Reply::count(args.iter().filter(|key| store.remove(key)).count()))
}

fn ttl(store: &mut Store, args: &Args<'_>, unit_ms: i64) -> Reply {
    let now = store.now_ms();
    Reply::Int(match store.deadline(args[0]) {
        None => -2,
        Some(None) => -1,
        Some(Some(at)) => (at - now + unit_ms / 2) / unit_ms,
    })
}

/// Unix milliseconds of an expiry; `None` when it is out of range.
pub(super) fn deadline(store: &Store, amount: i64, unit_ms: i64, relative: bool) -> Option<i64> {
    let ms = amount.checked_mul(unit_ms)?;
    if relative { ms.checked_add(store.now_ms()) } else { Some(ms) }
}

fn expire(store: &mut Store, args: &Args<'_>, unit_ms: i64, relative: bool) -> Outcome {
    let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
    for word in &args[2..] {
        match *word {
            word if is(word, "NX") => nx = true,
            word if is(word, "XX") => xx = true,
            word if is(word, "GT") => gt = true,
            word if is(word, "LT") => lt = true,
            _ => return Err(Fault::new("ERR Unsupported option")),
        }
    }
    if (nx && (xx || gt || lt)) || (gt && lt) {
        return Err(Fault::new("ERR NX and XX, GT or LT options at the same time are not compatible"));
    }
    let at = deadline(store, int(args[1])?, unit_ms, relative);
    let at = at.ok_or(Fault::new("ERR invalid expire time"))?;
    let Some(old) = store.deadline(args[0]) else {
        return Ok(Reply::Int(0));
    };
    // No deadline counts as the farthest one.
    let refused = (nx && old.is_some())
        || (xx && old.is_none())
        || (gt && old.is_none_or(|old| at <= old))
        || (lt && old.is_some_and(|old| at >= old));
    if refused {
        return Ok(Reply::Int(0));
    }
    store.set_deadline(args[0], Some(at));
    Ok(Reply::Int(1))
}

fn persist(store: &mut Store, args: &Args<'_>) -> Outcome {
    let had = store.deadline(args[0]).flatten().is_some();
    if had {
        store.set_deadline(args[0], None);
    }
    Ok(Reply::Int(had.into()))
}

fn scan(store: &mut Store, args: &Args<'_>) -> Outcome {
    let scan = Scan::parse(args)?;
    let (next, found) = store.scan(scan.cursor, scan.count);
    let wanted = found
        .into_iter()
        .filter(|(key, kind)| scan.wants(key) && scan.kind.is_none_or(|wanted| is(wanted, kind)))
        .map(|(key, _)| key);
    Ok(Reply::Array(vec![Reply::text(next.to_string()), Reply::list(wanted)]))
}
