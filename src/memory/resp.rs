//! The wire format: requests in, replies out.
//!
//! [`parse`] is a pure function over bytes, so that it can be fuzzed and tested without a connection.

use super::number::format_double;
use std::sync::Arc;

/// Bytes owned by the engine. A clone shares them.
pub(super) type Blob = Arc<[u8]>;

/// Largest argument accepted, as in Redis (`proto-max-bulk-len`).
const MAX_BULK: i64 = 512 * 1024 * 1024;
/// Most arguments of one command, as in Redis.
const MAX_ARGS: i64 = 1024 * 1024;
/// Longest header line (`*3`, `$17`) waited for. Sixty-four digits are far more than any number needs.
const MAX_HEADER: usize = 64;

/// The peer does not speak the protocol; its connection can not be used any more.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ProtocolError(pub(super) &'static str);

/// A complete request: its arguments, the command's name first, and how many bytes it took.
pub(super) type Request<'a> = (Vec<&'a [u8]>, usize);

/// Reads one request from the front of `input`; `None` when more bytes are needed.
///
/// An empty or null array is a request without arguments, to be skipped without a reply, as Redis does.
pub(super) fn parse(input: &[u8]) -> Result<Option<Request<'_>>, ProtocolError> {
    let Some(&first) = input.first() else {
        return Ok(None);
    };
    if first != b'*' {
        return Err(ProtocolError("expected '*'"));
    }
    let Some((count, mut at)) = header(input, 0)? else {
        return Ok(None);
    };
    if count > MAX_ARGS {
        return Err(ProtocolError("invalid multibulk length"));
    }
    if count <= 0 {
        return Ok(Some((Vec::new(), at)));
    }
    // The peer's number decides nothing about memory before its bytes are here.
    let mut args = Vec::with_capacity(count.min(64) as usize);
    for _ in 0..count {
        match input.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(_) => return Err(ProtocolError("expected '$'")),
        }
        let Some((length, start)) = header(input, at)? else {
            return Ok(None);
        };
        if !(0..=MAX_BULK).contains(&length) {
            return Err(ProtocolError("invalid bulk length"));
        }
        let end = start + length as usize;
        if input.len() < end + 2 {
            return Ok(None);
        }
        if &input[end..end + 2] != b"\r\n" {
            return Err(ProtocolError("bulk string not ended by CRLF"));
        }
        args.push(&input[start..end]);
        at = end + 2;
    }
    Ok(Some((args, at)))
}

/// The number of the header line at `at`, and where the next line begins.
fn header(input: &[u8], at: usize) -> Result<Option<(i64, usize)>, ProtocolError> {
    let line = &input[at + 1..];
    let window = &line[..line.len().min(MAX_HEADER)];
    let Some(end) = window.iter().position(|&b| b == b'\r') else {
        return if window.len() == MAX_HEADER {
            Err(ProtocolError("too big count string"))
        } else {
            Ok(None)
        };
    };
    match line.get(end + 1) {
        None => return Ok(None),
        Some(b'\n') => {}
        Some(_) => return Err(ProtocolError("expected LF after CR")),
    }
    let number = super::number::parse_int(&line[..end]).ok_or(ProtocolError("invalid length"))?;
    Ok(Some((number, at + 1 + end + 2)))
}

/// A reply before it is written in the connection's protocol version.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Reply {
    /// `+OK` and its like.
    Status(Blob),
    /// `-CODE text`, without the dash.
    Error(Blob),
    /// An integer.
    Int(i64),
    /// A string of bytes.
    Bulk(Blob),
    /// Text for people (INFO): a verbatim string in RESP3.
    Verbatim(String),
    /// No value.
    Nil,
    /// No array: differs from [`Reply::Nil`] in RESP2 only.
    NilArray,
    /// An array.
    Array(Vec<Reply>),
    /// A map; a flat array in RESP2.
    Map(Vec<(Reply, Reply)>),
    /// A floating point number; a string in RESP2.
    Double(f64),
    /// Members with scores: pairs in RESP3, flat in RESP2.
    Scored(Vec<(Blob, f64)>),
    /// Out-of-band data; an array in RESP2.
    Push(Vec<Reply>),
}

impl Reply {
    /// `+OK`.
    pub(super) fn ok() -> Self {
        Reply::status("OK")
    }

    /// A status line.
    pub(super) fn status(text: &str) -> Self {
        Reply::Status(Arc::from(text.as_bytes()))
    }

    /// A string.
    pub(super) fn text(text: impl AsRef<[u8]>) -> Self {
        Reply::Bulk(Arc::from(text.as_ref()))
    }

    /// A string, or no value.
    pub(super) fn maybe(value: Option<Blob>) -> Self {
        value.map_or(Reply::Nil, Reply::Bulk)
    }

    /// A count.
    pub(super) fn count(n: usize) -> Self {
        Reply::Int(n as i64)
    }

    /// An array of strings.
    pub(super) fn list(items: impl IntoIterator<Item = Blob>) -> Self {
        Reply::Array(items.into_iter().map(Reply::Bulk).collect())
    }

    /// Appends the reply to `out` as RESP3 or RESP2.
    pub(super) fn encode(&self, out: &mut Vec<u8>, resp3: bool) {
        match self {
            Reply::Status(text) => line(out, b'+', text),
            Reply::Error(text) => line(out, b'-', text),
            Reply::Int(n) => line(out, b':', n.to_string().as_bytes()),
            Reply::Bulk(bytes) => bulk(out, bytes),
            Reply::Verbatim(text) if resp3 => {
                line(out, b'=', (text.len() + 4).to_string().as_bytes());
                out.extend_from_slice(b"txt:");
                out.extend_from_slice(text.as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            Reply::Verbatim(text) => bulk(out, text.as_bytes()),
            Reply::Nil | Reply::NilArray if resp3 => out.extend_from_slice(b"_\r\n"),
            Reply::Nil => out.extend_from_slice(b"$-1\r\n"),
            Reply::NilArray => out.extend_from_slice(b"*-1\r\n"),
            Reply::Array(items) => array(out, b'*', items, resp3),
            Reply::Push(items) => array(out, if resp3 { b'>' } else { b'*' }, items, resp3),
            Reply::Map(pairs) => {
                let (kind, size) = if resp3 { (b'%', pairs.len()) } else { (b'*', pairs.len() * 2) };
                line(out, kind, size.to_string().as_bytes());
                for (key, value) in pairs {
                    key.encode(out, resp3);
                    value.encode(out, resp3);
                }
            }
            Reply::Double(value) => double(out, *value, resp3),
            Reply::Scored(pairs) => {
                let size = if resp3 { pairs.len() } else { pairs.len() * 2 };
                line(out, b'*', size.to_string().as_bytes());
                for (member, score) in pairs {
                    if resp3 {
                        out.extend_from_slice(b"*2\r\n");
                    }
                    bulk(out, member);
                    double(out, *score, resp3);
                }
            }
        }
    }
}

fn line(out: &mut Vec<u8>, kind: u8, text: &[u8]) {
    out.push(kind);
    // A line break inside would end the reply early.
    out.extend(text.iter().map(|&b| if b == b'\r' || b == b'\n' { b' ' } else { b }));
    out.extend_from_slice(b"\r\n");
}

fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    line(out, b'$', bytes.len().to_string().as_bytes());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn array(out: &mut Vec<u8>, kind: u8, items: &[Reply], resp3: bool) {
    line(out, kind, items.len().to_string().as_bytes());
    for item in items {
        item.encode(out, resp3);
    }
}

fn double(out: &mut Vec<u8>, value: f64, resp3: bool) {
    let text = format_double(value);
    if resp3 { line(out, b',', text.as_bytes()) } else { bulk(out, text.as_bytes()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_cut_anywhere_asks_for_more_and_never_fails() {
        let whole = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\n\0\r\n\xff\r\n";
        for cut in 0..whole.len() {
            assert_eq!(parse(&whole[..cut]), Ok(None), "cut at {cut}");
        }
        let args = vec![&b"SET"[..], b"k", b"\0\r\n\xff"];
        assert_eq!(parse(whole), Ok(Some((args, whole.len()))));
    }

    #[test]
    fn what_follows_a_request_is_left_alone() {
        assert_eq!(parse(b"*1\r\n$4\r\nPING\r\n*1\r\n$"), Ok(Some((vec![&b"PING"[..]], 14))));
    }

    #[test]
    fn malformed_requests_are_refused() {
        for bad in [
            &b"PING\r\n"[..],
            b"*x\r\n",
            b"*1048577\r\n",
            b"*1\r\n:1\r\n",
            b"*1\r\n$-1\r\n",
            b"*1\r\n$536870913\r\n",
            b"*1\r\n$1\rx",
            b"*1\r\n$1\r\nabc",
            b"*99999999999999999999\r\n",
            &[b'*'; 100],
        ] {
            assert!(parse(bad).is_err(), "{:?}", bad.escape_ascii().to_string());
        }
    }

    #[test]
    fn empty_arrays_are_skipped() {
        assert_eq!(parse(b"*0\r\n"), Ok(Some((vec![], 4))));
        assert_eq!(parse(b"*-1\r\n"), Ok(Some((vec![], 5))));
    }

    #[test]
    fn a_status_with_line_breaks_stays_one_line() {
        let mut out = Vec::new();
        Reply::Error(Arc::from(&b"ERR a\r\nb"[..])).encode(&mut out, true);
        assert_eq!(out, b"-ERR a  b\r\n");
    }

    #[test]
    fn each_protocol_version_has_its_own_shape() {
        let shape = |reply: Reply, resp3| {
            let mut out = Vec::new();
            reply.encode(&mut out, resp3);
            String::from_utf8_lossy(&out).into_owned()
        };
        let scored = Reply::Scored(vec![(Arc::from(&b"m"[..]), 1.5)]);
        assert_eq!(shape(scored.clone(), false), "*2\r\n$1\r\nm\r\n$3\r\n1.5\r\n");
        assert_eq!(shape(scored, true), "*1\r\n*2\r\n$1\r\nm\r\n,1.5\r\n");
        let map = Reply::Map(vec![(Reply::Int(1), Reply::Nil)]);
        assert_eq!(shape(map.clone(), false), "*2\r\n:1\r\n$-1\r\n");
        assert_eq!(shape(map, true), "%1\r\n:1\r\n_\r\n");
        assert_eq!(shape(Reply::NilArray, false), "*-1\r\n");
        assert_eq!(shape(Reply::Push(vec![Reply::Int(1)]), true), ">1\r\n:1\r\n");
        assert_eq!(shape(Reply::Verbatim("a".into()), true), "=5\r\ntxt:a\r\n");
    }
}
