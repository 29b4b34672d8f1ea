//! Several doorbells of one call in one message: each behind its length.

/// Calls `ring` for each doorbell of a message, in order. What is malformed, and what follows it, is passed over: the
/// sweep finds what it was about.
pub(super) fn each<'a>(mut message: &'a [u8], mut ring: impl FnMut(&'a [u8])) {
    if !message.starts_with(b"&") {
        return ring(message);
    }
    while let Some((one, rest)) = message.strip_prefix(b"&").and_then(first) {
        ring(one);
        message = rest;
    }
}

/// `<length> <bytes><rest>`: the bytes, and the rest.
fn first(frame: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = frame.iter().position(|&b| b == b' ')?;
    let length: usize = std::str::from_utf8(&frame[..space]).ok()?.parse().ok()?;
    frame[space + 1..].split_at_checked(length)
}

#[cfg(test)]
mod tests {
    fn heard(message: &[u8]) -> Vec<String> {
        let mut heard = Vec::new();
        super::each(message, |one| heard.push(String::from_utf8_lossy(one).into_owned()));
        heard
    }

    #[test]
    fn one_travels_bare_and_several_behind_their_lengths() {
        assert_eq!(heard(b"s 1 record & more"), ["s 1 record & more"]);
        assert_eq!(heard(b"&5 s &1 &1 t&0 "), ["s &1 ", "t", ""]);
    }

    #[test]
    fn malformed_ones_end_the_message_without_a_panic() {
        for bad in ["&", "& ", "&x y", "&-1 y", "&9 short", "&99999999999999999999 y", "&1", "&1 ab", "&1 a&"]
        {
            assert!(heard(bad.as_bytes()).len() <= 1, "{bad}");
        }
        assert_eq!(heard(b"&1 ab&1 c"), ["a"]);
    }
}
