//! Strings.

use super::keys::deadline;
use super::{Args, Command, int, is};
use crate::memory::number;
use crate::memory::resp::{Blob, Reply};
use crate::memory::store::{Fault, Outcome, Store};

pub(super) const COMMANDS: &[Command] = &[
    ("GET", 2, |store, args| Ok(Reply::maybe(store.text(args[0])?))),
    ("SET", -3, set),
    ("STRLEN", 2, |store, args| Ok(Reply::count(store.text(args[0])?.map_or(0, |text| text.len())))),
    ("INCR", 2, incr),
    ("SETBIT", 4, set_bit),
    ("BITFIELD", -2, bit_field),
    ("GETBIT", 3, get_bit),
];

/// Where a bit stands: its byte, and its mask in it. The first bit is the byte's highest.
fn place(offset: &[u8]) -> Result<(usize, u8), Fault> {
    let offset = number::parse_int(offset).filter(|o| (0..1 << 32).contains(o));
    let offset = offset.and_then(|o| usize::try_from(o).ok());
    let offset = offset.ok_or(Fault::new("ERR bit offset is not an integer or out of range"))?;
    Ok((offset / 8, 128 >> (offset % 8)))
}

/// Sets a bit and answers what it was.
fn write_bit(text: &mut Vec<u8>, (byte, mask): (usize, u8), on: bool) -> Reply {
    if text.len() <= byte {
        text.resize(byte + 1, 0);
    }
    let old = text[byte] & mask != 0;
    text[byte] = if on { text[byte] | mask } else { text[byte] & !mask };
    Reply::Int(old.into())
}

fn set_bit(store: &mut Store, args: &Args<'_>) -> Outcome {
    let at = place(args[1])?;
    let on = match args[2] {
        b"0" => false,
        b"1" => true,
        _ => return Err(Fault::new("ERR bit is not an integer or out of range")),
    };
    let mut text = store.text(args[0])?.map_or_else(Vec::new, |text| text.to_vec());
    let old = write_bit(&mut text, at, on);
    store.set_text(args[0], Blob::from(&text[..]));
    Ok(old)
}

/// `BITFIELD key SET u1 offset value …`: the one form that the scripts use.
fn bit_field(store: &mut Store, args: &Args<'_>) -> Outcome {
    let mut writes = Vec::new();
    for write in args[1..].chunks(4) {
        match write {
            [set, width, offset, value] if is(set, "SET") && is(width, "u1") => {
                let at = place(offset)?;
                let value = number::parse_int(value);
                writes.push((at, value.ok_or(Fault::NOT_INTEGER)? & 1 == 1));
            }
            _ => return Err(Fault::SYNTAX),
        }
    }
    let mut text = store.text(args[0])?.map_or_else(Vec::new, |text| text.to_vec());
    let old = writes.into_iter().map(|(at, on)| write_bit(&mut text, at, on)).collect();
    store.set_text(args[0], Blob::from(&text[..]));
    Ok(Reply::Array(old))
}

fn get_bit(store: &mut Store, args: &Args<'_>) -> Outcome {
    let (byte, mask) = place(args[1])?;
    let on = store.text(args[0])?.and_then(|text| text.get(byte).map(|b| b & mask != 0)).unwrap_or(false);
    Ok(Reply::Int(on.into()))
}

fn set(store: &mut Store, args: &Args<'_>) -> Outcome {
    let (mut nx, mut xx, mut get, mut keep, mut expiry) = (false, false, false, false, None);
    let mut rest = &args[2..];
    while let [word, tail @ ..] = rest {
        rest = match (*word, tail) {
            (word, _) if is(word, "NX") && !xx => {
                nx = true;
                tail
            }
            (word, _) if is(word, "XX") && !nx => {
                xx = true;
                tail
            }
            (word, _) if is(word, "GET") => {
                get = true;
                tail
            }
            (word, _) if is(word, "KEEPTTL") && expiry.is_none() => {
                keep = true;
                tail
            }
            (word, [amount, tail @ ..]) if !keep && expiry.is_none() => {
                let (unit_ms, relative) = match word {
                    _ if is(word, "EX") => (1000, true),
                    _ if is(word, "PX") => (1, true),
                    _ if is(word, "EXAT") => (1000, false),
                    _ if is(word, "PXAT") => (1, false),
                    _ => return Err(Fault::SYNTAX),
                };
                expiry = Some((*amount, unit_ms, relative));
                tail
            }
            _ => return Err(Fault::SYNTAX),
        };
    }
    let expires_at = match expiry {
        Some((amount, unit_ms, relative)) => {
            let amount = int(amount)?;
            let at = deadline(store, amount, unit_ms, relative);
            Some(at.filter(|_| amount > 0).ok_or(Fault::new("ERR invalid expire time in 'set' command"))?)
        }
        None => None,
    };
    let old = if get { Some(Reply::maybe(store.text(args[0])?)) } else { None };
    let exists = store.value(args[0]).is_some();
    if (nx && exists) || (xx && !exists) {
        return Ok(old.unwrap_or(Reply::Nil));
    }
    store.set_text(args[0], Blob::from(args[1]));
    if !keep {
        store.set_deadline(args[0], expires_at);
    }
    Ok(old.unwrap_or_else(Reply::ok))
}

fn incr(store: &mut Store, args: &Args<'_>) -> Outcome {
    let old = match store.text(args[0])? {
        Some(text) => number::parse_int(&text).ok_or(Fault::NOT_INTEGER)?,
        None => 0,
    };
    let new = old.checked_add(1).ok_or(Fault::new("ERR increment or decrement would overflow"))?;
    store.set_text(args[0], Blob::from(new.to_string().as_bytes()));
    Ok(Reply::Int(new))
}
