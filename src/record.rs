//! The stored record, format 1, as `docs/protocol.md` writes it down. Built by `lua/push.lua` alone; read here.

use bytes::Bytes;

use crate::MessageId;

/// Longest first line of a record that is understood, its newline included; `lua/lib/record.lua` has the same.
const MAX_HEAD: usize = 160;

/// A record as an owner received it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) id: MessageId,
    /// The record up to the end of its id: what an ack must repeat.
    pub(crate) receipt: Bytes,
    pub(crate) enqueued_ms: u64,
    pub(crate) expires_ms: u64,
    /// Failed attempts so far.
    pub(crate) attempts: u32,
    pub(crate) coalesce: Bytes,
    pub(crate) trace: Bytes,
    pub(crate) first_error: Bytes,
    pub(crate) last_error: Bytes,
    pub(crate) body: Bytes,
}

impl Record {
    /// `None` when the format is not understood; never panics, whatever the bytes.
    pub(crate) fn parse(bytes: &Bytes) -> Option<Self> {
        let head = bytes.iter().take(MAX_HEAD).position(|&b| b == b'\n')?;
        let line = std::str::from_utf8(&bytes[..head]).ok()?;
        let mut numbers = line.split(' ').map(|n| {
            // A number too large to be true saturates: the scripts accept it, so must we.
            (!n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
                .then(|| n.parse::<u64>().unwrap_or(u64::MAX))
        });
        let mut next = || numbers.next().flatten();
        // As it is written, and not its value: the scripts do not take `01` for `1`.
        if next()? != 1 || !line.starts_with("1 ") {
            return None;
        }
        let (enqueued_ms, expires_ms, attempts, _not_before_ms) = (next()?, next()?, next()?, next()?);
        let lengths = [next()?, next()?, next()?, next()?, next()?];
        if numbers.next().is_some() {
            return None;
        }
        let mut at = head + 1;
        let mut take = |length: u64| -> Option<Bytes> {
            let end = at.checked_add(usize::try_from(length).ok()?)?;
            let part = (end <= bytes.len()).then(|| bytes.slice(at..end))?;
            at = end;
            Some(part)
        };
        let [id, coalesce, trace, first, last] = lengths;
        let raw_id = take(id)?;
        let after_id = head + 1 + raw_id.len();
        let (coalesce, trace) = (take(coalesce)?, take(trace)?);
        let (first_error, last_error) = (take(first)?, take(last)?);
        Some(Self {
            id: MessageId::stored(&raw_id),
            receipt: bytes.slice(..after_id),
            enqueued_ms,
            expires_ms,
            attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
            coalesce,
            trace,
            first_error,
            last_error,
            body: bytes.slice(at..),
        })
    }
}

/// A dead letter as stored: when and why, and the record with its bytes intact.
pub(crate) struct DeadEntry {
    pub(crate) died_ms: u64,
    pub(crate) reason: String,
    pub(crate) record: Bytes,
}

impl DeadEntry {
    pub(crate) fn parse(bytes: &Bytes) -> Option<Self> {
        let head = bytes.iter().take(64).position(|&b| b == b'\n')?;
        let mut words = std::str::from_utf8(&bytes[..head]).ok()?.split(' ');
        if words.next()? != "1" {
            return None;
        }
        let died_ms = words.next()?.parse().ok()?;
        let reason: usize = words.next()?.parse().ok()?;
        let at = head + 1;
        let end = at.checked_add(reason).filter(|&end| end <= bytes.len())?;
        Some(Self {
            died_ms,
            reason: String::from_utf8_lossy(&bytes[at..end]).into_owned(),
            record: bytes.slice(end..),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Option<Record> {
        Record::parse(&Bytes::copy_from_slice(bytes))
    }

    #[test]
    fn a_record_is_taken_apart_by_its_counts_alone() {
        let r = parse(b"1 10 20 2 0 3 1 2 4 5\na\nbKTTonce twicebo\ndy").expect("format 1");
        assert_eq!((r.id.as_str(), &r.receipt[..]), ("a\nb", &b"1 10 20 2 0 3 1 2 4 5\na\nb"[..]));
        assert_eq!((&r.coalesce[..], &r.trace[..]), (&b"K"[..], &b"TT"[..]));
        assert_eq!((&r.first_error[..], &r.last_error[..]), (&b"once"[..], &b" twic"[..]));
        assert_eq!(&r.body[..], b"ebo\ndy");
        assert_eq!((r.enqueued_ms, r.expires_ms, r.attempts), (10, 20, 2));
    }

    #[test]
    fn what_is_not_format_1_is_not_understood() {
        for bytes in [
            &b""[..],
            b"\n",
            b"2 1 1 0 0 0 0 0 0 0\n",
            b"01 1 1 0 0 0 0 0 0 0\n",
            b"1 1 1 0 0 9 0 0 0 0\nshort",
            b"1 1 1 0 0 0 0 0 0\n",
            b"1 1 1 0 0 0 0 0 0 0 0\n",
            b"1 -1 1 0 0 0 0 0 0 0\n",
            b"1 1 1 0 0 18446744073709551615 1 0 0 0\nx",
            b"[\"a\"]",
        ] {
            assert!(parse(bytes).is_none(), "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}
