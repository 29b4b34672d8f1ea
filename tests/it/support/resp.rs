//! Just enough RESP to write a command and to find where a frame ends.

/// A command as clients send it.
pub fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len());
    for word in words {
        bytes.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    bytes.into_bytes()
}

/// The length of the first frame, `None` while it is not complete, `Some(0)` when these bytes are not RESP.
pub fn frame_len(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    // Frames still to come; an aggregate adds its members. No recursion: depth is the sender's to choose.
    let mut open: u64 = 1;
    while open > 0 {
        let kind = *bytes.get(at)?;
        let line = at + 1 + bytes[at + 1..].windows(2).position(|w| w == b"\r\n")?;
        let count = || std::str::from_utf8(&bytes[at + 1..line]).ok()?.parse::<i64>().ok();
        open -= 1;
        let after = line + 2;
        at = match kind {
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => after,
            b'$' | b'!' | b'=' => match count() {
                Some(n @ 0..) => after + usize::try_from(n).ok()? + 2,
                Some(_) => after,
                None => return Some(0),
            },
            b'*' | b'~' | b'>' | b'%' | b'|' => match count() {
                Some(n) => {
                    let members = u64::try_from(n).unwrap_or(0);
                    open += if matches!(kind, b'%' | b'|') { members * 2 } else { members };
                    after
                }
                None => return Some(0),
            },
            _ => return Some(0),
        };
        if at > bytes.len() {
            return None;
        }
    }
    Some(at)
}
