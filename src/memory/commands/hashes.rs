//! Hashes.

use super::{Args, Command, Scan, int, wrong_arity};
use crate::memory::dict::Dict;
use crate::memory::number;
use crate::memory::resp::{Blob, Reply};
use crate::memory::store::{Fault, Outcome, Store};

type Hash = Dict<Blob>;

pub(super) const COMMANDS: &[Command] = &[
    ("HGET", 3, |store, args| Ok(Reply::maybe(field(store, args)?))),
    ("HSET", -4, hset),
    ("HSETNX", 4, hsetnx),
    ("HDEL", -3, hdel),
    ("HLEN", 2, |store, args| Ok(Reply::count(store.get::<Hash>(args[0])?.map_or(0, |hash| hash.len())))),
    ("HEXISTS", 3, |store, args| Ok(Reply::Int(field(store, args)?.is_some().into()))),
    ("HMGET", -3, hmget),
    ("HGETALL", 2, hgetall),
    ("HINCRBY", 4, hincrby),
    ("HSCAN", -3, hscan),
];

/// Up to so many fields Redis keeps a hash in one piece, and a scan returns it whole, whatever its COUNT.
const COMPACT: usize = 512;

fn field(store: &mut Store, args: &Args<'_>) -> Result<Option<Blob>, Fault> {
    Ok(store.get::<Hash>(args[0])?.and_then(|hash| hash.get(args[1])).cloned())
}

fn hset(store: &mut Store, args: &Args<'_>) -> Outcome {
    if args.len().is_multiple_of(2) {
        return Err(wrong_arity("HSET"));
    }
    let added = store.upsert(args[0], |hash: &mut Hash| {
        args[1..].chunks_exact(2).filter(|pair| hash.insert(pair[0], Blob::from(pair[1])).is_none()).count()
    })?;
    Ok(Reply::count(added))
}

fn hsetnx(store: &mut Store, args: &Args<'_>) -> Outcome {
    let added = store.upsert(args[0], |hash: &mut Hash| {
        let vacant = !hash.contains(args[1]);
        if vacant {
            hash.insert(args[1], Blob::from(args[2]));
        }
        vacant
    })?;
    Ok(Reply::Int(added.into()))
}

fn hdel(store: &mut Store, args: &Args<'_>) -> Outcome {
    let removed = store.edit(args[0], |hash: &mut Hash| {
        args[1..].iter().filter(|field| hash.remove(field).is_some()).count()
    })?;
    Ok(Reply::count(removed.unwrap_or(0)))
}

fn hmget(store: &mut Store, args: &Args<'_>) -> Outcome {
    let hash = store.get::<Hash>(args[0])?;
    let value = |field: &&[u8]| Reply::maybe(hash.as_ref().and_then(|hash| hash.get(field)).cloned());
    Ok(Reply::Array(args[1..].iter().map(value).collect()))
}

fn hgetall(store: &mut Store, args: &Args<'_>) -> Outcome {
    let pairs = store.get::<Hash>(args[0])?.map(|hash| {
        hash.iter().map(|(field, value)| (Reply::Bulk(field.clone()), Reply::Bulk(value.clone()))).collect()
    });
    Ok(Reply::Map(pairs.unwrap_or_default()))
}

fn hincrby(store: &mut Store, args: &Args<'_>) -> Outcome {
    let step = int(args[2])?;
    let sum = store.upsert(args[0], |hash: &mut Hash| {
        let old = match hash.get(args[1]) {
            Some(text) => number::parse_int(text).ok_or(Fault::new("ERR hash value is not an integer"))?,
            None => 0,
        };
        let sum = old.checked_add(step).ok_or(Fault::new("ERR increment or decrement would overflow"))?;
        hash.insert(args[1], Blob::from(sum.to_string().as_bytes()));
        Ok(sum)
    })??;
    Ok(Reply::Int(sum))
}

fn hscan(store: &mut Store, args: &Args<'_>) -> Outcome {
    let scan = Scan::parse(&args[1..])?;
    if scan.kind.is_some() {
        return Err(Fault::SYNTAX);
    }
    let Some(hash) = store.get::<Hash>(args[0])? else {
        return Ok(Reply::Array(vec![Reply::text("0"), Reply::Array(Vec::new())]));
    };
    let count = if hash.len() <= COMPACT { COMPACT } else { scan.count };
    let (next, found) = hash.scan(scan.cursor, count);
    let wanted = found.into_iter().filter(|(field, _)| scan.wants(field));
    let flat = wanted.flat_map(|(field, value)| [field.clone(), value.clone()]);
    Ok(Reply::Array(vec![Reply::text(next.to_string()), Reply::list(flat)]))
}
