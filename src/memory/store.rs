//! The keyspace: typed values, expiry, and the clock.

use super::dict::Dict;
use super::pubsub::Channels;
use super::resp::{Blob, Reply};
use super::zset::Zset;
use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};
use std::time::{SystemTime, UNIX_EPOCH};

/// A refused command: the reply's text, its code first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault(pub(super) Cow<'static, str>);

impl Fault {
    pub(super) const WRONG_TYPE: Fault =
        Fault(Cow::Borrowed("WRONGTYPE Operation against a key holding the wrong kind of value"));
    pub(super) const SYNTAX: Fault = Fault(Cow::Borrowed("ERR syntax error"));
    pub(super) const NOT_INTEGER: Fault = Fault(Cow::Borrowed("ERR value is not an integer or out of range"));
    pub(super) const NOT_FLOAT: Fault = Fault(Cow::Borrowed("ERR value is not a valid float"));

    /// Any other text.
    pub(super) fn new(text: impl Into<Cow<'static, str>>) -> Self {
        Fault(text.into())
    }

    /// The reply that says so.
    pub(super) fn reply(&self) -> Reply {
        Reply::Error(Blob::from(self.0.as_bytes()))
    }
}

/// What a command gives back.
pub(super) type Outcome = Result<Reply, Fault>;

/// The value of a key.
#[derive(Debug)]
pub(super) enum Value {
    /// A string.
    Text(Blob),
    /// A list, head first.
    List(VecDeque<Blob>),
    /// A hash.
    Hash(Dict<Blob>),
    /// A sorted set.
    Zset(Zset),
}

impl Value {
    /// The name TYPE gives.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Value::Text(_) => "string",
            Value::List(_) => "list",
            Value::Hash(_) => "hash",
            Value::Zset(_) => "zset",
        }
    }
}

/// A type a key can hold that vanishes when it is empty.
pub(super) trait Collection: Default {
    fn of(value: &mut Value) -> Option<&mut Self>;
    fn wrap(self) -> Value;
    fn vacant(&self) -> bool;
}

macro_rules! collection {
    ($type:ty, $variant:ident) => {
        impl Collection for $type {
            fn of(value: &mut Value) -> Option<&mut Self> {
                match value {
                    Value::$variant(inner) => Some(inner),
                    _ => None,
                }
            }
            fn wrap(self) -> Value {
                Value::$variant(self)
            }
            fn vacant(&self) -> bool {
                self.is_empty()
            }
        }
    };
}
collection!(VecDeque<Blob>, List);
collection!(Dict<Blob>, Hash);
collection!(Zset, Zset);

#[derive(Debug)]
struct Entry {
    value: Value,
    expires_at: Option<i64>,
}

/// Expired keys removed by one command beyond those it touches.
const SWEEP: usize = 20;

/// Everything the commands work on.
#[derive(Debug, Default)]
pub(super) struct Store {
    keys: Dict<Entry>,
    deadlines: BTreeSet<(i64, Blob)>,
    now_us: i64,
    #[cfg(test)]
    clock_us: Option<i64>,
    /// Who listens to what.
    pub(super) channels: Channels,
}

impl Store {
    /// Reads the clock, which then stands still until the next call: a script sees one time from start to end.
    pub(super) fn tick(&mut self) {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.now_us = since_epoch.as_micros() as i64;
        #[cfg(test)]
        if let Some(set) = self.clock_us {
            self.now_us = set;
        }
        for _ in 0..SWEEP {
            match self.deadlines.first() {
                Some((deadline, key)) if *deadline <= self.now_ms() => {
                    let key = key.clone();
                    self.remove(&key);
                }
                _ => break,
            }
        }
    }

    #[cfg(test)]
    pub(super) fn set_clock_ms(&mut self, now_ms: u64) {
        self.clock_us = i64::try_from(now_ms).ok().map(|ms| ms * 1000);
    }

    pub(super) fn now_us(&self) -> i64 {
        self.now_us
    }

    pub(super) fn now_ms(&self) -> i64 {
        self.now_us / 1000
    }

    /// Number of keys, those included that expired and were not looked at since.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Removes every key.
    pub(super) fn clear(&mut self) {
        self.keys = Dict::default();
        self.deadlines.clear();
    }

    /// Keys from a scan's cursor on, with their types; the expired ones left out.
    pub(super) fn scan(&self, cursor: u64, count: usize) -> (u64, Vec<(Blob, &'static str)>) {
        let now = self.now_ms();
        let (next, found) = self.keys.scan(cursor, count);
        let live = found.into_iter().filter(|(_, entry)| entry.expires_at.is_none_or(|at| at > now));
        (next, live.map(|(key, entry)| (key.clone(), entry.value.type_name())).collect())
    }

    fn entry(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let expires_at = self.keys.get(key)?.expires_at;
        if expires_at.is_some_and(|at| at <= self.now_ms()) {
            self.remove(key);
            return None;
        }
        self.keys.get_mut(key)
    }

    /// Whatever the key holds.
    pub(super) fn value(&mut self, key: &[u8]) -> Option<&mut Value> {
        self.entry(key).map(|entry| &mut entry.value)
    }

    /// The key's string.
    pub(super) fn text(&mut self, key: &[u8]) -> Result<Option<Blob>, Fault> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Text(bytes)) => Ok(Some(bytes.clone())),
            Some(_) => Err(Fault::WRONG_TYPE),
        }
    }

    /// Sets a string; its expiry stays as it is.
    pub(super) fn set_text(&mut self, key: &[u8], text: Blob) {
        match self.entry(key) {
            Some(entry) => entry.value = Value::Text(text),
            None => {
                self.keys.insert(key, Entry { value: Value::Text(text), expires_at: None });
            }
        }
    }

    /// The collection at the key.
    pub(super) fn get<C: Collection>(&mut self, key: &[u8]) -> Result<Option<&mut C>, Fault> {
        match self.value(key) {
            None => Ok(None),
            Some(value) => C::of(value).map(Some).ok_or(Fault::WRONG_TYPE),
        }
    }

    /// Changes a collection that may be missing, and removes it when that leaves it empty.
    pub(super) fn edit<C: Collection, R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut C) -> R,
    ) -> Result<Option<R>, Fault> {
        let Some(collection) = self.get::<C>(key)? else {
            return Ok(None);
        };
        let result = change(collection);
        if collection.vacant() {
            self.remove(key);
        }
        Ok(Some(result))
    }

    /// Changes a collection, made when missing, and removes it when it is empty afterwards.
    pub(super) fn upsert<C: Collection, R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut C) -> R,
    ) -> Result<R, Fault> {
        if let Some(collection) = self.get::<C>(key)? {
            let result = change(collection);
            if collection.vacant() {
                self.remove(key);
            }
            return Ok(result);
        }
        let mut collection = C::default();
        let result = change(&mut collection);
        if !collection.vacant() {
            self.keys.insert(key, Entry { value: collection.wrap(), expires_at: None });
        }
        Ok(result)
    }

    /// Whether there was a live key to remove.
    pub(super) fn remove(&mut self, key: &[u8]) -> bool {
        let Some(entry) = self.keys.remove(key) else {
            return false;
        };
        let Some(at) = entry.expires_at else {
            return true;
        };
        self.deadlines.remove(&(at, Blob::from(key)));
        at > self.now_ms()
    }

    /// The key's deadline: outer `None` without the key, inner without a deadline.
    pub(super) fn deadline(&mut self, key: &[u8]) -> Option<Option<i64>> {
        self.entry(key).map(|entry| entry.expires_at)
    }

    /// Sets or takes away the key's deadline; one that has passed removes the key. Whether there is such a key.
    pub(super) fn set_deadline(&mut self, key: &[u8], deadline: Option<i64>) -> bool {
        let Some(entry) = self.entry(key) else {
            return false;
        };
        let old = std::mem::replace(&mut entry.expires_at, deadline);
        if let Some(at) = old {
            self.deadlines.remove(&(at, Blob::from(key)));
        }
        if let Some(at) = deadline {
            self.deadlines.insert((at, Blob::from(key)));
            if at <= self.now_ms() {
                self.remove(key);
            }
        }
        true
    }
}
