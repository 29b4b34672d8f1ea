//! Reading replies: a shape that is not expected is [`Error::Reply`], never a panic and never a guess.

use bytes::Bytes;
use redis::Value;

use super::{Denied, Script};
use crate::{Error, Result};

/// The error for a reply that the script's header does not have. Shows shapes and short words, never bodies.
pub(crate) fn unexpected(script: &Script, got: &Value) -> Error {
    fn shape(v: &Value, depth: u8) -> String {
        match v {
            Value::Array(items) if depth > 0 => {
                let inner: Vec<_> = items.iter().take(6).map(|v| shape(v, depth - 1)).collect();
                format!("[{}{}]", inner.join(", "), if items.len() > 6 { ", …" } else { "" })
            }
            Value::Array(items) => format!("array of {}", items.len()),
            Value::Int(n) => n.to_string(),
            Value::Nil => "nil".into(),
            Value::BulkString(b) if b.len() <= 24 && b.is_ascii() => {
                format!("{:?}", String::from_utf8_lossy(b))
            }
            Value::BulkString(b) => format!("{} bytes", b.len()),
            _ => "another type".into(),
        }
    }
    Error::Reply { op: script.name, got: shape(got, 2) }
}

/// Walks through one array of a reply.
pub(crate) struct Fields {
    script: &'static Script,
    items: std::vec::IntoIter<Value>,
}

impl Fields {
    pub(crate) fn of(script: &'static Script, value: Value) -> Result<Self> {
        match value {
            Value::Array(items) => Ok(Self { script, items: items.into_iter() }),
            other => Err(unexpected(script, &other)),
        }
    }

    fn next(&mut self) -> Result<Value> {
        self.items.next().ok_or_else(|| Error::Reply { op: self.script.name, got: "too few fields".into() })
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn int(&mut self) -> Result<i64> {
        match self.next()? {
            Value::Int(n) => Ok(n),
            other => Err(unexpected(self.script, &other)),
        }
    }

    /// A count: never negative.
    pub(crate) fn count(&mut self) -> Result<u64> {
        let n = self.int()?;
        u64::try_from(n).map_err(|_| unexpected(self.script, &Value::Int(n)))
    }

    pub(crate) fn word(&mut self) -> Result<String> {
        match self.next()? {
            Value::BulkString(b) => Ok(String::from_utf8_lossy(&b).into_owned()),
            Value::SimpleString(s) => Ok(s),
            other => Err(unexpected(self.script, &other)),
        }
    }

    /// Bytes as they are stored.
    pub(crate) fn bytes(&mut self) -> Result<Bytes> {
        match self.next()? {
            Value::BulkString(b) => Ok(Bytes::from(b)),
            other => Err(unexpected(self.script, &other)),
        }
    }

    pub(crate) fn array(&mut self) -> Result<Self> {
        let inner = self.next()?;
        Self::of(self.script, inner)
    }

    /// An array, or the count that stands for the common one.
    pub(crate) fn array_or_int(&mut self) -> Result<std::result::Result<Self, u64>> {
        match self.next()? {
            Value::Int(n) => Ok(Err(u64::try_from(n).map_err(|_| unexpected(self.script, &Value::Int(n)))?)),
            other => Self::of(self.script, other).map(Ok),
        }
    }

    /// What is left, as records.
    pub(crate) fn rest(self) -> Result<Vec<Bytes>> {
        let script = self.script;
        self.items
            .map(|v| match v {
                Value::BulkString(b) => Ok(Bytes::from(b)),
                other => Err(unexpected(script, &other)),
            })
            .collect()
    }

    /// The error for a first word that the header does not have.
    pub(crate) fn unknown_word(&self, word: &str) -> Error {
        Error::Reply { op: self.script.name, got: word.chars().take(40).collect() }
    }

    /// `fenced`, `lost` and `error`, which several scripts answer for one session of many.
    pub(crate) fn denied(&mut self, word: &str) -> Result<Denied> {
        match word {
            "fenced" => Ok(Denied::Fenced),
            "lost" => Ok(Denied::Lost),
            "error" => {
                let text = self.word()?;
                // Redis before 7 puts the place in the script in front of the code.
                let code = text
                    .split(|c: char| !c.is_ascii_alphanumeric())
                    .find(|w| w.len() > 2 && w.bytes().all(|b| b.is_ascii_uppercase()))
                    .unwrap_or("ERR")
                    .to_owned();
                Err(Error::Refused { op: self.script.name, code, message: text })
            }
            other => Err(self.unknown_word(other)),
        }
    }
}
