//! Lists.

use super::{Args, Command, int, is, place, span};
use crate::memory::resp::{Blob, Reply};
use crate::memory::store::{Fault, Outcome, Store};
use std::collections::VecDeque;

type List = VecDeque<Blob>;

pub(super) const COMMANDS: &[Command] = &[
    ("LLEN", 2, |store, args| Ok(Reply::count(store.get::<List>(args[0])?.map_or(0, |list| list.len())))),
    ("LRANGE", 4, lrange),
    ("LINDEX", 3, lindex),
    ("LSET", 4, lset),
    ("LPOP", -2, |store, args| pop(store, args, true)),
    ("RPOP", -2, |store, args| pop(store, args, false)),
    ("LPUSH", -3, |store, args| push(store, args, true)),
    ("RPUSH", -3, |store, args| push(store, args, false)),
    ("LTRIM", 4, ltrim),
    ("LREM", 4, lrem),
    ("LMOVE", 5, lmove),
];

fn lrange(store: &mut Store, args: &Args<'_>) -> Outcome {
    let (start, stop) = (int(args[1])?, int(args[2])?);
    Ok(match store.get::<List>(args[0])? {
        Some(list) => Reply::list(list.range(span(list.len(), start, stop)).cloned()),
        None => Reply::Array(Vec::new()),
    })
}

fn lindex(store: &mut Store, args: &Args<'_>) -> Outcome {
    let Some(list) = store.get::<List>(args[0])? else {
        return Ok(Reply::Nil);
    };
    let index = int(args[1])?;
    Ok(Reply::maybe(place(list.len(), index).and_then(|at| list.get(at)).cloned()))
}

fn lset(store: &mut Store, args: &Args<'_>) -> Outcome {
    let list = store.get::<List>(args[0])?.ok_or(Fault::new("ERR no such key"))?;
    let index = int(args[1])?;
    let item = place(list.len(), index).and_then(|at| list.get_mut(at));
    *item.ok_or(Fault::new("ERR index out of range"))? = Blob::from(args[2]);
    Ok(Reply::ok())
}

fn push(store: &mut Store, args: &Args<'_>, left: bool) -> Outcome {
    let len = store.upsert(args[0], |list: &mut List| {
        for item in &args[1..] {
            put(list, Blob::from(*item), left);
        }
        list.len()
    })?;
    Ok(Reply::count(len))
}

fn put(list: &mut List, item: Blob, left: bool) {
    if left { list.push_front(item) } else { list.push_back(item) }
}

fn take(list: &mut List, left: bool) -> Option<Blob> {
    if left { list.pop_front() } else { list.pop_back() }
}

fn pop(store: &mut Store, args: &Args<'_>, left: bool) -> Outcome {
    let count = match args {
        [_] => None,
        [_, count] => match int(count)? {
            count if count >= 0 => Some(count as usize),
            _ => return Err(Fault::new("ERR value is out of range, must be positive")),
        },
        _ => return Err(Fault::SYNTAX),
    };
    let popped = store.edit(args[0], |list: &mut List| match count {
        None => Reply::maybe(take(list, left)),
        Some(count) => {
            Reply::list((0..count.min(list.len())).filter_map(|_| take(list, left)).collect::<Vec<_>>())
        }
    })?;
    Ok(popped.unwrap_or(if count.is_some() { Reply::NilArray } else { Reply::Nil }))
}

fn ltrim(store: &mut Store, args: &Args<'_>) -> Outcome {
    let (start, stop) = (int(args[1])?, int(args[2])?);
    store.edit(args[0], |list: &mut List| {
        let keep = span(list.len(), start, stop);
        list.truncate(keep.end);
        list.drain(..keep.start);
    })?;
    Ok(Reply::ok())
}

fn lrem(store: &mut Store, args: &Args<'_>) -> Outcome {
    let count = int(args[1])?;
    let limit =
        if count == 0 { usize::MAX } else { usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX) };
    let removed = store.edit(args[0], |list: &mut List| {
        let mut hits = list.iter().enumerate().filter(|(_, item)| item[..] == *args[2]).map(|(at, _)| at);
        let doomed: Vec<usize> = if count < 0 {
            let mut last: Vec<usize> = hits.rev().take(limit).collect();
            last.reverse();
            last
        } else {
            hits.by_ref().take(limit).collect()
        };
        let (mut at, mut next) = (0, doomed.iter().peekable());
        list.retain(|_| {
            let hit = next.next_if(|doomed| **doomed == at).is_some();
            at += 1;
            !hit
        });
        doomed.len()
    })?;
    Ok(Reply::count(removed.unwrap_or(0)))
}

fn lmove(store: &mut Store, args: &Args<'_>) -> Outcome {
    let left = |word: &[u8]| match word {
        _ if is(word, "LEFT") => Ok(true),
        _ if is(word, "RIGHT") => Ok(false),
        _ => Err(Fault::SYNTAX),
    };
    let (from, to) = (left(args[2])?, left(args[3])?);
    if store.get::<List>(args[0])?.is_none() {
        return Ok(Reply::Nil);
    }
    // Nothing is taken before it is sure that it can be put down.
    store.get::<List>(args[1])?;
    if args[0] == args[1] {
        let rotated = store.edit(args[0], |list: &mut List| {
            let item = take(list, from)?;
            put(list, item.clone(), to);
            Some(item)
        })?;
        return Ok(Reply::maybe(rotated.flatten()));
    }
    let item = store.edit(args[0], |list: &mut List| take(list, from))?.flatten();
    if let Some(item) = &item {
        store.upsert(args[1], |list: &mut List| put(list, item.clone(), to))?;
    }
    Ok(Reply::maybe(item))
}
