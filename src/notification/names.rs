//! Which names MCP and JSON-RPC allow.

use crate::{Error, Result};

/// Most bytes of a method.
const MAX_METHOD_BYTES: usize = 256;

/// What no receiver could read or log: nothing, control characters, no end.
pub(super) fn check_method(method: &str) -> Result<()> {
    const WHAT: &str = "notification method";
    if method.is_empty() {
        return Err(Error::invalid(WHAT, "is empty; it needs a name like notifications/progress"));
    }
    if method.len() > MAX_METHOD_BYTES {
        return Err(Error::TooLarge { what: WHAT, actual: method.len(), limit: MAX_METHOD_BYTES });
    }
    if method.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(Error::invalid(WHAT, "holds white space or a control character"));
    }
    Ok(())
}

/// A name in `_meta`: an optional prefix of labels with dots between them and a slash behind, then a name. JSON-RPC
/// itself would take any text; the MCP specification does not.
pub(super) fn check_meta_name(name: &str) -> Result<()> {
    let (prefix, rest) = match name.split_once('/') {
        Some((prefix, rest)) => (Some(prefix), rest),
        None => (None, name),
    };
    let labels = prefix.is_none_or(|prefix| prefix.split('.').all(is_label));
    if labels && is_name(rest) {
        return Ok(());
    }
    Err(Error::invalid("_meta name", format!("{name:?} is none; write name, or example.com/name")))
}

/// Begins with a letter, ends with a letter or digit, hyphens between.
fn is_label(label: &str) -> bool {
    let bytes = label.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
}

/// Begins and ends with a letter or digit; may be empty behind a prefix, which the specification allows.
fn is_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    bytes.first().is_none_or(u8::is_ascii_alphanumeric)
        && bytes.last().is_none_or(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_specification_pass_and_others_do_not() {
        for good in [
            "progressToken",
            "io.modelcontextprotocol/related-task",
            "com.example/",
            "a",
            "a-b.c/d_e.f",
            "traceparent",
        ] {
            check_meta_name(good).unwrap_or_else(|e| panic!("{good}: {e}"));
        }
        for bad in ["a b", "1com.example/x", "com..example/x", "com-/x", "-x", "x-", "a/b/c", "/x", "ä"] {
            assert!(check_meta_name(bad).is_err(), "{bad}");
        }
        for good in ["notifications/progress", "x", "rpc.discover", "ä"] {
            check_method(good).unwrap_or_else(|e| panic!("{good}: {e}"));
        }
        for bad in ["", "a b", "a\nb", "a\0", &"x".repeat(257)] {
            assert!(check_method(bad).is_err(), "{bad:?}");
        }
    }
}
