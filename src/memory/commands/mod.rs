//! The data commands: those a script may call.

mod hashes;
mod keys;
mod lists;
mod server;
mod strings;
mod zsets;

pub(super) use server::VERSION;

use super::number;
use super::store::{Fault, Outcome, Store};
use std::collections::HashMap;
use std::sync::LazyLock;

/// A command's arguments, without its name.
type Args<'a> = [&'a [u8]];

/// A command and the number of its arguments, the name counted: exact, or at least so many when negative (as Redis
/// writes it).
type Command = (&'static str, i32, fn(&mut Store, &Args<'_>) -> Outcome);

/// Every area's commands.
const AREAS: [&[Command]; 6] =
    [server::COMMANDS, keys::COMMANDS, strings::COMMANDS, lists::COMMANDS, hashes::COMMANDS, zsets::COMMANDS];

static COMMANDS: LazyLock<HashMap<&'static [u8], Command>> =
    LazyLock::new(|| AREAS.into_iter().flatten().map(|command| (command.0.as_bytes(), *command)).collect());

/// Longest command name.
const MAX_NAME: usize = 20;

/// Runs one command, its name first; `None` when there is no such command.
pub(super) fn run(store: &mut Store, request: &[&[u8]]) -> Option<Outcome> {
    let (name, args) = request.split_first()?;
    let mut upper = [0; MAX_NAME];
    let upper = upper.get_mut(..name.len())?;
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    let (name, arity, handler) = COMMANDS.get(&*upper)?;
    Some(match check_arity(name, *arity, request.len()) {
        Ok(()) => handler(store, args),
        Err(fault) => Err(fault),
    })
}

/// Refuses a wrong number of arguments.
pub(super) fn check_arity(name: &str, arity: i32, len: usize) -> Result<(), Fault> {
    let wanted = arity.unsigned_abs() as usize;
    if len == wanted || (arity < 0 && len > wanted) {
        return Ok(());
    }
    Err(wrong_arity(name))
}

fn wrong_arity(name: &str) -> Fault {
    Fault::new(format!("ERR wrong number of arguments for '{}' command", name.to_ascii_lowercase()))
}

fn int(text: &[u8]) -> Result<i64, Fault> {
    number::parse_int(text).ok_or(Fault::NOT_INTEGER)
}

fn double(text: &[u8]) -> Result<f64, Fault> {
    number::parse_double(text).ok_or(Fault::NOT_FLOAT)
}

fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

/// The part of `len` items that Redis's inclusive, possibly negative indexes name.
fn span(len: usize, start: i64, stop: i64) -> std::ops::Range<usize> {
    let len = len as i64;
    let start = if start < 0 { start.saturating_add(len).max(0) } else { start };
    let stop = if stop < 0 { stop.saturating_add(len) } else { stop.min(len - 1) };
    if start > stop || start >= len { 0..0 } else { start as usize..stop as usize + 1 }
}

/// The item a possibly negative index names.
fn place(len: usize, index: i64) -> Option<usize> {
    let at = if index < 0 { index.checked_add(len as i64)? } else { index };
    usize::try_from(at).ok().filter(|at| *at < len)
}

/// MATCH, COUNT and TYPE of the scans.
struct Scan<'a> {
    cursor: u64,
    count: usize,
    pattern: Option<&'a [u8]>,
    kind: Option<&'a [u8]>,
}

impl<'a> Scan<'a> {
    fn parse(args: &Args<'a>) -> Result<Self, Fault> {
        let (cursor, options) = args.split_first().ok_or(Fault::SYNTAX)?;
        let cursor = std::str::from_utf8(cursor).ok().and_then(|text| text.parse().ok());
        let cursor = cursor.ok_or(Fault::new("ERR invalid cursor"))?;
        let mut scan = Scan { cursor, count: 10, pattern: None, kind: None };
        for option in options.chunks(2) {
            match option {
                [name, value] if is(name, "COUNT") => match int(value)? {
                    count if count > 0 => scan.count = count as usize,
                    _ => return Err(Fault::SYNTAX),
                },
                [name, value] if is(name, "MATCH") => scan.pattern = Some(value),
                [name, value] if is(name, "TYPE") => scan.kind = Some(value),
                _ => return Err(Fault::SYNTAX),
            }
        }
        Ok(scan)
    }

    fn wants(&self, name: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| super::glob::matches(pattern, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_clamped_as_in_redis() {
        for (start, stop, expected) in [
            (0, -1, 0..5),
            (1, 2, 1..3),
            (-2, -1, 3..5),
            (-100, 100, 0..5),
            (3, 1, 0..0),
            (5, 9, 0..0),
            (0, -6, 0..0),
            (i64::MIN, i64::MAX, 0..5),
        ] {
            assert_eq!(span(5, start, stop), expected, "{start} {stop}");
        }
        assert_eq!(span(0, 0, -1), 0..0);
        assert_eq!(
            [0, 4, 5, -1, -5, -6, i64::MIN].map(|i| place(5, i)),
            [Some(0), Some(4), None, Some(4), Some(0), None, None]
        );
    }

    #[test]
    fn every_name_fits_and_is_there_once() {
        assert_eq!(AREAS.iter().map(|area| area.len()).sum::<usize>(), COMMANDS.len());
        assert!(COMMANDS.keys().all(|name| name.len() <= MAX_NAME && name.is_ascii()));
    }
}
