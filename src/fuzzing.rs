//! What fuzzers call: the readers of bytes that come from outside. Each function panics when a promise of its reader is
//! broken. The targets are in `fuzz/`; the tests here run ten thousand malformed inputs through each, always.

use bytes::Bytes;

use crate::connection::{Endpoint, Tls};
use crate::record::{DeadEntry, Record};

/// Never shown, wherever it stands in a URL.
pub const SECRET: &str = "s3cr3tw0rd";

/// The readers of records and dead letters: any bytes, no panic, and nothing that is not in the input.
pub fn record(bytes: &[u8]) {
    let whole = Bytes::copy_from_slice(bytes);
    if let Some(record) = Record::parse(&whole) {
        let counted = [&record.coalesce, &record.trace, &record.first_error, &record.last_error];
        let len: usize = counted.iter().map(|part| part.len()).sum::<usize>() + record.body.len();
        assert!(len < bytes.len(), "more came out than went in");
        assert!(bytes.ends_with(&record.body));
    }
    if let Some(entry) = DeadEntry::parse(&whole) {
        assert!(bytes.ends_with(&entry.record));
        let _ = Record::parse(&entry.record);
    }
}

/// The reader of URLs: an address or an error, and neither shows the secret.
pub fn url(text: &str) {
    let shown = match Endpoint::parse(text, &Tls::new()) {
        Ok(endpoint) => format!("{endpoint:?} {}", endpoint.address),
        Err(e) => format!("{e} {e:?}"),
    };
    let once = text.matches(SECRET).count() == 1;
    let as_password = once && text.contains(&format!(":{SECRET}@")) && text.contains("://");
    assert!(!as_password || !shown.contains(SECRET), "{shown}");
}

/// The reader of requests of the engine in memory: whole requests only, each within the bytes that it took.
#[cfg(feature = "memory")]
pub fn requests(bytes: &[u8]) {
    crate::memory::read_requests_of(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    const INPUTS: usize = 10_000;

    fn rng() -> Rng {
        let seed =
            std::env::var("TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
        println!("TEST_SEED={seed}");
        Rng::with_seed(seed)
    }

    /// One of the seeds, broken in one to four places.
    fn broken(rng: &mut Rng, seeds: &[&[u8]]) -> Vec<u8> {
        const NUMBERS: [&str; 8] = [
            "0",
            "-1",
            "00",
            "1e9",
            "9223372036854775808",
            "18446744073709551616",
            "99999999999999999999999",
            " ",
        ];
        let mut bytes = seeds[rng.usize(..seeds.len())].to_vec();
        for _ in 0..rng.usize(1..=4) {
            let at = rng.usize(..=bytes.len());
            let end = rng.usize(at..=bytes.len().min(at + 12));
            match rng.u8(..6) {
                0 => bytes.truncate(at),
                1 => drop(bytes.drain(at..end)),
                2 => bytes.insert(at, rng.u8(..)),
                3 => bytes.extend_from_within(at..end),
                4 if at < bytes.len() => bytes[at] = rng.u8(..),
                _ => {
                    let digits = bytes.iter().skip(at).position(u8::is_ascii_digit).map_or(at, |n| at + n);
                    let end = (digits + 1).min(bytes.len());
                    let number = NUMBERS[rng.usize(..NUMBERS.len())].bytes();
                    drop(bytes.splice(digits.min(end)..end, number));
                }
            }
        }
        bytes
    }

    const RECORDS: [&[u8]; 4] = [
        b"1 1700000000000 1700000300000 0 0 8 0 0 0 0\norder-42{\"method\":\"x\"}",
        b"1 1700000000000 1700000300000 2 1700000000200 2 3 4 5 6\nidkeytraceerror1error22body\n\0\xff",
        b"1 1 1 0 0 0 0 0 0 0\n",
        b"1 1700000000000 8\nattempts1 10 20 3 0 1 0 0 1 1\niaabody",
    ];

    #[test]
    fn ten_thousand_malformed_records_neither_panic_nor_come_out_larger() {
        let mut rng = rng();
        for _ in 0..INPUTS {
            record(&broken(&mut rng, &RECORDS));
        }
    }

    #[test]
    fn ten_thousand_malformed_urls_neither_panic_nor_show_a_password() {
        let mut rng = rng();
        let seeds: [&[u8]; 11] = [
            b"redis://user:s3cr3tw0rd@localhost:6379/0",
            b"rediss://:s3cr3tw0rd@[::1]:6379/2?x=1#insecure",
            b"redis+unix:///run/redis.sock?db=1&user=u&pass=s3cr3tw0rd",
            b"memory://name",
            b"memory://",
            b"redis+sentinel://u:s3cr3tw0rd@h1:26379,h2/name/0",
            b"redis+sentinel://u:s3cr3tw0rd@h1,[::1]:26379/name?sentinel_user=v&sentinel_pass=x",
            b"redis+cluster://u:s3cr3tw0rd@h1:6379,h2",
            b"rediss+cluster://:s3cr3tw0rd@[::1],h2/0",
            b"valkey://localhost",
            b"unix:///x",
        ];
        for _ in 0..INPUTS {
            url(&String::from_utf8_lossy(&broken(&mut rng, &seeds)));
        }
    }

    #[cfg(feature = "memory")]
    #[test]
    fn ten_thousand_malformed_requests_neither_panic_nor_run_over() {
        let mut rng = rng();
        let seeds: [&[u8]; 4] = [
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\n\0\r\n\xff\r\n*1\r\n$4\r\nPING\r\n",
            b"*0\r\n*-1\r\n*1\r\n$0\r\n\r\n",
            b"*2\r\n$4\r\nECHO\r\n$11\r\n*1\r\n$4\r\nPING\r\n",
            b"*1048576\r\n$536870912\r\nx",
        ];
        for _ in 0..INPUTS {
            requests(&broken(&mut rng, &seeds));
        }
    }

    /// What the library understands as a record the scripts understand, and the other way round, with the same receipt
    /// and the same body: or one of them would deliver what the other can never ack.
    #[cfg(feature = "memory")]
    #[tokio::test]
    async fn ten_thousand_malformed_records_are_read_alike_by_the_library_and_the_scripts() {
        use crate::memory::tests::support::{Raw, Wire};
        let mut rng = rng();
        let mut engine = Raw::new(crate::memory::Memory::private().connect());
        let script = concat!(
            include_str!("../lua/lib/record.lua"),
            "local out = {}
             for i, r in ipairs(ARGV) do
               local f = record_parse(r)
               local body = f and f.head + f.id_len + f.coalesce_len + f.trace_len + f.first_len + f.last_len
               out[i] = f and { string.sub(r, 1, f.head + f.id_len), string.sub(r, body + 1) } or 0
             end
             return out"
        );
        for _ in 0..INPUTS / 100 {
            let records: Vec<Vec<u8>> = (0..100).map(|_| broken(&mut rng, &RECORDS)).collect();
            let mut request = vec![b"EVAL".to_vec(), script.into(), b"0".to_vec()];
            request.extend(records.iter().cloned());
            let reply = engine.call(&request).await;
            for (record, theirs) in records.into_iter().zip(reply.items()) {
                let shown = record.escape_ascii().to_string();
                let ours = Record::parse(&Bytes::from(record));
                match (ours, theirs) {
                    (None, Wire::Line(..)) => {}
                    (Some(r), Wire::Group(_, parts)) => {
                        assert_eq!(
                            (&r.receipt[..], &r.body[..]),
                            (parts[0].bytes(), parts[1].bytes()),
                            "{shown}"
                        );
                    }
                    (ours, theirs) => panic!("{shown}\n  library {ours:?}\n  script  {theirs:?}"),
                }
            }
        }
    }
}
