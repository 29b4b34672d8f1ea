//! Encryption of what is stored: XChaCha20-Poly1305 with a ring of keys.
//!
//! A sealed text is `0x01`, the length of the key's id, the id, 24 random bytes, and the ciphertext with its tag. The id
//! says which key opens it, so that keys can change while old texts are still stored: give every process the new key
//! for opening first, then make it the one that seals, and take the old one out when nothing sealed with it is left.
//!
//! Nonces are random. With 192 bits they do not repeat, whatever the number of processes that share a key.

use std::collections::HashMap;
use std::sync::Arc;

use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{Key, KeyInit, XChaCha20Poly1305, XNonce};

use crate::{Error, Result};

const FORMAT: u8 = 1;
const NONCE_BYTES: usize = 24;
const MAX_KEY_ID_BYTES: usize = 32;

/// Keys that seal and open what is stored. One seals; all open.
///
/// Cheap to clone. Keys are never shown: `Debug` names their ids only.
///
/// ```
/// use mcp_courier::KeyRing;
///
/// # fn main() -> mcp_courier::Result<()> {
/// let (old, new) = ([1; 32], [2; 32]); // from a secret store; 32 random bytes each
/// let ring = KeyRing::new("2026-07", new)?.and("2026-06", old)?;
/// let sealed = ring.seal(b"bearer token", b"what it belongs to");
/// assert_eq!(ring.open(&sealed, b"what it belongs to").unwrap(), b"bearer token");
/// assert!(ring.open(&sealed, b"something else").is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct KeyRing {
    sealing: Arc<str>,
    keys: Arc<HashMap<Arc<str>, XChaCha20Poly1305>>,
}

/// Why a sealed text cannot be opened. None of these says anything about its content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The ring does not have the key.
    #[error("sealed with the key {id}, which is not in the key ring")]
    UnknownKey {
        /// The key's id.
        id: String,
    },
    /// Wrong key under this id, changed bytes, or associated data of something else.
    #[error("sealed with the key {id}, but it does not open: other key, other place, or changed bytes")]
    Forged {
        /// The key's id.
        id: String,
    },
    /// Not a sealed text, or of a later format.
    #[error("no sealed text, or of a format that this version does not know")]
    NotSealed,
}

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut ids: Vec<_> = self.keys.keys().collect();
        ids.sort();
        f.debug_struct("KeyRing").field("sealing", &self.sealing).field("ids", &ids).finish()
    }
}

impl KeyRing {
    /// A ring whose only key seals and opens. The id is stored in clear: 1 to 32 visible ASCII characters.
    ///
    /// # Errors
    /// [`Error::Invalid`] for such an id.
    pub fn new(id: &str, key: [u8; 32]) -> Result<Self> {
        Self { sealing: id.into(), keys: Arc::default() }.and(id, key)
    }

    /// Adds a key that only opens: an old one, or the next one.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an id that is in the ring, or is not 1 to 32 visible ASCII characters.
    pub fn and(mut self, id: &str, key: [u8; 32]) -> Result<Self> {
        if id.is_empty() || id.len() > MAX_KEY_ID_BYTES || !id.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Error::invalid("key id", "use 1 to 32 visible ASCII characters"));
        }
        let keys = Arc::make_mut(&mut self.keys);
        if keys.insert(id.into(), XChaCha20Poly1305::new(&Key::from(key))).is_some() {
            return Err(Error::invalid("key id", format!("{id} is in the ring already")));
        }
        Ok(self)
    }

    /// Encrypts and authenticates. `belongs` is not stored, but what is sealed opens with the same bytes only: name the
    /// place where the text stands, so that it cannot be moved to another one.
    pub fn seal(&self, plain: &[u8], belongs: &[u8]) -> Vec<u8> {
        let mut nonce = [0; NONCE_BYTES];
        crate::ids::random(&mut nonce);
        let mut sealed = vec![FORMAT, self.sealing.len() as u8];
        sealed.extend_from_slice(self.sealing.as_bytes());
        let aad = [&sealed[..], belongs].concat();
        sealed.extend_from_slice(&nonce);
        let cipher = &self.keys[&self.sealing];
        let text = cipher.encrypt(&XNonce::from(nonce), Payload { msg: plain, aad: &aad });
        sealed.extend(text.expect("only a text of 256 GiB is too long"));
        sealed
    }

    /// Opens what [`KeyRing::seal`] made, by any key of the ring.
    ///
    /// # Errors
    /// [`SealError`]; nothing of the text is given out then.
    pub fn open(&self, sealed: &[u8], belongs: &[u8]) -> std::result::Result<Vec<u8>, SealError> {
        let (header, id, rest) = split(sealed).ok_or(SealError::NotSealed)?;
        let (nonce, text) = rest.split_first_chunk::<NONCE_BYTES>().ok_or(SealError::NotSealed)?;
        let cipher = self.keys.get(id).ok_or_else(|| SealError::UnknownKey { id: id.to_owned() })?;
        let aad = [header, belongs].concat();
        cipher
            .decrypt(&XNonce::from(*nonce), Payload { msg: text, aad: &aad })
            .map_err(|_| SealError::Forged { id: id.to_owned() })
    }
}

/// The header of a sealed text, the id in it, and what follows.
fn split(sealed: &[u8]) -> Option<(&[u8], &str, &[u8])> {
    let (&[format, len], _) = sealed.split_first_chunk::<2>()?;
    let len = usize::from(len);
    if format != FORMAT || len == 0 || len > MAX_KEY_ID_BYTES || sealed.len() < 2 + len {
        return None;
    }
    let (header, rest) = sealed.split_at(2 + len);
    Some((header, std::str::from_utf8(&header[2..]).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(id: &str, byte: u8) -> KeyRing {
        KeyRing::new(id, [byte; 32]).expect("a good id")
    }

    #[test]
    fn a_ring_opens_what_any_of_its_keys_sealed_and_nothing_else() {
        let (old, new) = (ring("old", 1), ring("new", 2).and("old", [1; 32]).expect("another id"));
        let sealed = old.seal(b"secret", b"task 1");
        assert_eq!(new.open(&sealed, b"task 1").expect("rotation"), b"secret");
        assert_eq!(old.open(&new.seal(b"x", b""), b""), Err(SealError::UnknownKey { id: "new".into() }));
        assert_eq!(ring("old", 9).open(&sealed, b"task 1"), Err(SealError::Forged { id: "old".into() }));
        assert_eq!(new.open(&sealed, b"task 2"), Err(SealError::Forged { id: "old".into() }));
        assert!(!sealed.windows(6).any(|w| w == b"secret"));
    }

    #[test]
    fn any_changed_or_missing_byte_is_noticed() {
        let ring = ring("k", 3);
        let sealed = ring.seal(b"some text", b"here");
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(ring.open(&changed, b"here").is_err(), "byte {at}");
            assert!(ring.open(&sealed[..at], b"here").is_err(), "cut at {at}");
        }
        assert_eq!(ring.open(&ring.seal(b"", b""), b"").expect("empty"), b"");
    }

    #[test]
    fn two_seals_of_one_text_differ_and_keys_are_never_shown() {
        let ring = ring("k", 0xAB);
        assert_ne!(ring.seal(b"x", b""), ring.seal(b"x", b""));
        let shown = format!("{ring:?}");
        assert!(shown.contains("\"k\"") && !shown.contains("171") && !shown.to_lowercase().contains("ab"));
    }

    #[test]
    fn ids_are_checked() {
        for bad in ["", "a b", "\u{e9}", "123456789012345678901234567890123"] {
            assert!(KeyRing::new(bad, [0; 32]).is_err(), "{bad:?}");
        }
        assert!(ring("k", 0).and("k", [1; 32]).is_err());
    }
}
