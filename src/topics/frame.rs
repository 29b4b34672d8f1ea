//! A message to a topic on its way into a node's inbox: `@topic <kind> <topic> <key> <body>`.

use std::sync::Arc;

use bytes::Bytes;

use crate::keys::{self, Tid};

/// The name that nodes listen to.
pub(super) const SIGNAL: &str = "topic";

/// Whom a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Sessions and listeners.
    Hint,
    /// Listeners; the sessions have it in their queues.
    Durable,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) topic: Tid,
    /// Not encoded; empty: none.
    pub(super) key: Arc<str>,
    pub(super) body: Bytes,
}

impl Frame {
    /// As it goes into the inbox.
    pub(super) fn write(&self) -> Vec<u8> {
        let kind = match self.kind {
            Kind::Hint => "h",
            Kind::Durable => "d",
        };
        let head = format!("@{SIGNAL} {kind} {} {} ", self.topic.as_str(), keys::encode(&self.key));
        [head.as_bytes(), &self.body].concat()
    }

    /// What stands behind the name.
    pub(super) fn read(payload: &[u8]) -> Option<Self> {
        let mut parts = payload.splitn(4, |&b| b == b' ');
        let kind = match parts.next()? {
            b"h" => Kind::Hint,
            b"d" => Kind::Durable,
            _ => return None,
        };
        let topic = Tid::encoded(std::str::from_utf8(parts.next()?).ok()?);
        let key = keys::decode(std::str::from_utf8(parts.next()?).ok()?).into();
        Some(Self { kind, topic, key, body: Bytes::copy_from_slice(parts.next()?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Topic;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        for (key, body) in [("", "{} {}"), ("a b\n%", ""), ("-", "\u{0} x")] {
            let frame = Frame {
                kind: Kind::Hint,
                topic: Tid::of(&Topic::new("a b:{c}").expect("valid")),
                key: key.into(),
                body: Bytes::copy_from_slice(body.as_bytes()),
            };
            let written = frame.write();
            let payload = written.strip_prefix(b"@topic ").expect("the name");
            assert_eq!(Frame::read(payload), Some(frame));
        }
        for bad in [&b""[..], b"h", b"h t", b"h t k", b"x t k b", b"h \xff k b"] {
            assert_eq!(Frame::read(bad), None, "{bad:?}");
        }
    }
}
