//! Sorted sets.

use super::{Args, Command, double, int, is, span};
use crate::memory::resp::{Blob, Reply};
use crate::memory::store::{Fault, Outcome, Store};
use crate::memory::zset::{Limit, Zset};

pub(super) const COMMANDS: &[Command] = &[
    ("ZADD", -4, zadd),
    ("ZREM", -3, zrem),
    ("ZCARD", 2, |store, args| Ok(Reply::count(store.get::<Zset>(args[0])?.map_or(0, |zset| zset.len())))),
    ("ZSCORE", 3, zscore),
    ("ZCOUNT", 4, zcount),
    ("ZRANGE", -4, |store, args| range(store, args, false)),
    ("ZRANGEBYSCORE", -4, |store, args| range(store, args, true)),
    ("ZREMRANGEBYSCORE", 4, zremrangebyscore),
];

fn limit(text: &[u8]) -> Result<Limit, Fault> {
    let (excluded, number) = match text {
        [b'(', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    if number.is_empty() {
        return Ok(Limit { score: 0.0, excluded });
    }
    let not_float = || Fault::new("ERR min or max is not a float");
    let score: f64 =
        std::str::from_utf8(number).ok().and_then(|text| text.parse().ok()).ok_or_else(not_float)?;
    if score.is_nan() { Err(not_float()) } else { Ok(Limit { score, excluded }) }
}

fn zadd(store: &mut Store, args: &Args<'_>) -> Outcome {
    let (mut nx, mut xx, mut gt, mut lt, mut ch) = (false, false, false, false, false);
    let mut rest = &args[1..];
    while let [word, tail @ ..] = rest {
        match *word {
            word if is(word, "NX") => nx = true,
            word if is(word, "XX") => xx = true,
            word if is(word, "GT") => gt = true,
            word if is(word, "LT") => lt = true,
            word if is(word, "CH") => ch = true,
            _ => break,
        }
        rest = tail;
    }
    if rest.is_empty() || !rest.len().is_multiple_of(2) {
        return Err(Fault::SYNTAX);
    }
    if (nx && (xx || gt || lt)) || (gt && lt) {
        return Err(Fault::new("ERR XX, NX, GT and LT options at the same time are not compatible"));
    }
    let pairs: Vec<(f64, &[u8])> =
        rest.chunks_exact(2).map(|pair| Ok((double(pair[0])?, pair[1]))).collect::<Result<_, Fault>>()?;
    let (added, changed) = store.upsert(args[0], |zset: &mut Zset| {
        let (mut added, mut changed) = (0, 0);
        for (score, member) in pairs {
            match zset.score(member) {
                Some(old) => {
                    if nx || (gt && score <= old) || (lt && score >= old) || score == old {
                        continue;
                    }
                    changed += 1;
                }
                None if xx => continue,
                None => added += 1,
            }
            zset.insert(member, score);
        }
        (added, changed)
    })?;
    Ok(Reply::Int(if ch { added + changed } else { added }))
}

fn zrem(store: &mut Store, args: &Args<'_>) -> Outcome {
    let removed = store
        .edit(args[0], |zset: &mut Zset| args[1..].iter().filter(|member| zset.remove(member)).count())?;
    Ok(Reply::count(removed.unwrap_or(0)))
}

fn zscore(store: &mut Store, args: &Args<'_>) -> Outcome {
    let score = store.get::<Zset>(args[0])?.and_then(|zset| zset.score(args[1]));
    Ok(score.map_or(Reply::Nil, Reply::Double))
}

fn zcount(store: &mut Store, args: &Args<'_>) -> Outcome {
    let (min, max) = (limit(args[1])?, limit(args[2])?);
    Ok(Reply::count(store.get::<Zset>(args[0])?.map_or(0, |zset| zset.between(min, max).count())))
}

fn zremrangebyscore(store: &mut Store, args: &Args<'_>) -> Outcome {
    let (min, max) = (limit(args[1])?, limit(args[2])?);
    let removed = store.edit(args[0], |zset: &mut Zset| {
        let doomed: Vec<Blob> = zset.between(min, max).map(|(member, _)| member.clone()).collect();
        doomed.iter().filter(|member| zset.remove(member)).count()
    })?;
    Ok(Reply::count(removed.unwrap_or(0)))
}

/// ZRANGE and, with `by_score` from the start, ZRANGEBYSCORE.
fn range(store: &mut Store, args: &Args<'_>, mut by_score: bool) -> Outcome {
    let general = !by_score;
    let (mut reverse, mut with_scores, mut window) = (false, false, None);
    let mut rest = &args[3..];
    while let [word, tail @ ..] = rest {
        rest = match (*word, tail) {
            (word, _) if is(word, "WITHSCORES") => {
                with_scores = true;
                tail
            }
            (word, [offset, count, tail @ ..]) if is(word, "LIMIT") => {
                window = Some((int(offset)?, int(count)?));
                tail
            }
            (word, _) if general && is(word, "BYSCORE") => {
                by_score = true;
                tail
            }
            (word, _) if general && is(word, "REV") => {
                reverse = true;
                tail
            }
            _ => return Err(Fault::SYNTAX),
        };
    }
    let found = if by_score {
        let (low, high) = if reverse { (args[2], args[1]) } else { (args[1], args[2]) };
        let (min, max) = (limit(low)?, limit(high)?);
        let (offset, count) = window.unwrap_or((0, -1));
        // A negative offset finds nothing, a negative count everything.
        let count = if offset < 0 { 0 } else { usize::try_from(count).unwrap_or(usize::MAX) };
        let skip = usize::try_from(offset).unwrap_or(0);
        store.get::<Zset>(args[0])?.map(|zset| {
            let found = zset.between(min, max);
            if reverse { pick(found.rev(), skip, count) } else { pick(found, skip, count) }
        })
    } else {
        if window.is_some() {
            return Err(Fault::SYNTAX);
        }
        let (start, stop) = (int(args[1])?, int(args[2])?);
        store.get::<Zset>(args[0])?.map(|zset| {
            let part = span(zset.len(), start, stop);
            if reverse {
                pick(zset.iter().rev(), part.start, part.len())
            } else {
                pick(zset.iter(), part.start, part.len())
            }
        })
    };
    let found = found.unwrap_or_default();
    Ok(if with_scores {
        Reply::Scored(found)
    } else {
        Reply::list(found.into_iter().map(|(member, _)| member))
    })
}

fn pick<'a>(found: impl Iterator<Item = (&'a Blob, f64)>, skip: usize, count: usize) -> Vec<(Blob, f64)> {
    found.skip(skip).take(count).map(|(member, score)| (member.clone(), score)).collect()
}
