//! Bodies of messages and contents of answers at rest: sealed with a key ring where one is configured, else as they came.
//!
//! What is sealed says so, so that a process without the ring never hands ciphertext to a client, and one with a ring
//! never takes a body that somebody else wrote into Redis for one of ours.

use bytes::Bytes;

use crate::keys::{Sid, Spot};
use crate::{Error, MessageId, Result};

/// In front of a sealed body. `0xC0` stands in no UTF-8 text.
const SEALED: &[u8] = b"\xC0mcs1";

/// How the bodies of this courier are kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bodies {
    #[cfg(feature = "encryption")]
    pub(crate) ring: Option<crate::KeyRing>,
}

/// What a sealed text belongs to. An encoded session id holds neither a space nor a tab.
#[cfg_attr(not(feature = "encryption"), allow(dead_code, reason = "nothing is sealed"))]
enum Place<'a> {
    Message(&'a Sid, &'a str),
    Answer(&'a Spot),
}

#[cfg(feature = "encryption")]
impl Place<'_> {
    fn name(&self) -> Vec<u8> {
        match self {
            Self::Message(sid, id) => [sid.as_str().as_bytes(), b" ", id.as_bytes()].concat(),
            Self::Answer(spot) => [spot.sid.as_str().as_bytes(), b"\tanswer\t", spot.rid.as_bytes()].concat(),
        }
    }
}

impl Bodies {
    /// The body of a message as it is stored. It opens for this session and this message only.
    pub(crate) fn seal(&self, sid: &Sid, id: &MessageId, body: Bytes) -> Result<Bytes> {
        self.close("body", &Place::Message(sid, id.as_str()), body)
    }

    /// The body as it was pushed, or why it cannot be had.
    pub(crate) fn open(&self, sid: &Sid, id: &str, stored: Bytes) -> std::result::Result<Bytes, String> {
        self.reopen(&Place::Message(sid, id), stored)
    }

    /// The content of an answer as it is stored. It opens for this question only.
    pub(crate) fn seal_answer(&self, spot: &Spot, content: Bytes) -> Result<Bytes> {
        self.close("content", &Place::Answer(spot), content)
    }

    /// The content as it was given, or why it cannot be had.
    pub(crate) fn open_answer(&self, spot: &Spot, stored: Bytes) -> std::result::Result<Bytes, String> {
        self.reopen(&Place::Answer(spot), stored)
    }

    #[cfg_attr(not(feature = "encryption"), allow(unused_variables, reason = "nothing is sealed"))]
    fn close(&self, what: &'static str, place: &Place<'_>, plain: Bytes) -> Result<Bytes> {
        #[cfg(feature = "encryption")]
        if let Some(ring) = &self.ring {
            let sealed = ring.seal(&plain, &place.name());
            return Ok([SEALED, &sealed].concat().into());
        }
        if plain.starts_with(SEALED) {
            return Err(Error::invalid(what, "begins like a sealed one, and there is no key ring"));
        }
        Ok(plain)
    }

    #[cfg_attr(not(feature = "encryption"), allow(unused_variables, reason = "nothing is opened"))]
    fn reopen(&self, place: &Place<'_>, stored: Bytes) -> std::result::Result<Bytes, String> {
        #[cfg(feature = "encryption")]
        if let Some(ring) = &self.ring {
            let Some(sealed) = stored.strip_prefix(SEALED) else {
                return Err("not sealed, and this process takes sealed ones only".into());
            };
            return ring.open(sealed, &place.name()).map(Bytes::from).map_err(|e| e.to_string());
        }
        if stored.starts_with(SEALED) {
            return Err("sealed, and this process has no key ring".into());
        }
        Ok(stored)
    }
}
