//! Names of tasks and of those who own them.

use std::sync::Arc;

use crate::{Error, Result};

const MAX_SCOPE_BYTES: usize = 512;
/// Longest id that is looked up. Ours have 32.
pub(super) const MAX_ID_BYTES: usize = 128;
const MAX_GROUP_BYTES: usize = 64;

/// Names a task. Made by the server: 160 random bits as 32 letters and digits, which fit into a header as they are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(Arc<str>);

impl TaskId {
    /// Base32 (RFC 4648, lower case): no character that a header or a URL would have to encode.
    pub(super) fn mint() -> Self {
        const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
        let mut random = [0_u8; 32];
        crate::ids::random(&mut random);
        Self(
            random.iter().map(|byte| char::from(ALPHABET[usize::from(byte & 31)])).collect::<String>().into(),
        )
    }

    pub(super) fn known(id: &str) -> Self {
        Self(id.into())
    }

    /// As it goes over the wire.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for TaskId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for TaskId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who owns a task: the identity of the caller that made it, as the server verified it. It is part of every look-up:
/// another scope's task is not found, just as one that never was.
///
/// Callers without an identity share the anonymous scope. There the id alone protects a task, and it cannot be guessed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope(Arc<str>);

impl Scope {
    /// Callers without an identity.
    pub fn anonymous() -> Self {
        Self("".into())
    }

    /// A verified identity, as in `client|subject`: any text of 1 to 512 bytes, compared byte by byte. Never take it from
    /// an argument of the caller's.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty or a longer one.
    pub fn named(identity: impl AsRef<str>) -> Result<Self> {
        let identity = identity.as_ref();
        if identity.is_empty() || identity.len() > MAX_SCOPE_BYTES {
            return Err(Error::invalid("scope", "use 1 to 512 bytes; `Scope::anonymous` is for no identity"));
        }
        Ok(Self(identity.into()))
    }

    pub(super) fn known(stored: &str) -> Self {
        Self(stored.into())
    }

    /// No identity.
    pub fn is_anonymous(&self) -> bool {
        self.0.is_empty()
    }

    /// The identity; empty for the anonymous scope.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

pub(super) fn check_group(group: &str) -> Result<()> {
    if group.is_empty() || group.len() > MAX_GROUP_BYTES {
        return Err(Error::invalid("task group", "use 1 to 64 bytes"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_visible_ascii_and_do_not_repeat() {
        let ids: std::collections::HashSet<TaskId> = (0..10_000).map(|_| TaskId::mint()).collect();
        assert_eq!(ids.len(), 10_000);
        assert!(
            ids.iter().all(|id| id.as_str().len() == 32 && id.as_str().bytes().all(|b| b.is_ascii_graphic()))
        );
        // Every character is one of 32 equally likely ones.
        let mut counts = std::collections::BTreeMap::<char, usize>::new();
        ids.iter().flat_map(|id| id.as_str().chars()).for_each(|c| *counts.entry(c).or_default() += 1);
        assert_eq!(counts.len(), 32);
        assert!(counts.values().all(|n| (9_000..11_000).contains(n)), "{counts:?}");
    }

    #[test]
    fn a_scope_is_a_name_or_none() {
        assert!(Scope::named("").is_err() && Scope::named("x".repeat(513)).is_err());
        assert_ne!(Scope::named("anonymous").expect("a name"), Scope::anonymous());
    }
}
