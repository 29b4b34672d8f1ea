//! Random commands to the engine and to a real server; replies and state compared.

use super::support::{Pair, Wire, seeded};
use fastrand::Rng;

const ROUNDS: usize = 200;
const BATCH: usize = 150;

type Request = Vec<Vec<u8>>;

/// Arguments by kind: `k` a key, `f` a field or member, `v` a value, `i` an integer, `s` a score, `m` a range limit, `t` a time
/// far off.
const SHAPES: &[(&str, &str)] = &[
    ("s", "GET k"),
    ("s", "SET k v"),
    ("s", "SET k i NX"),
    ("s", "SET k v XX GET"),
    ("s", "SET k v PX 1000000"),
    ("s", "BITFIELD k SET u1 9 1 SET u1 9 0 SET u1 3 1"),
    ("s", "SET k v KEEPTTL"),
    ("s", "STRLEN k"),
    ("s", "INCR k"),
    ("l", "LLEN k"),
    ("l", "LRANGE k i i"),
    ("l", "LINDEX k i"),
    ("l", "LSET k i v"),
    ("l", "LPOP k"),
    ("l", "RPOP k i"),
    ("l", "LPUSH k v v"),
    ("l", "RPUSH k v v v"),
    ("l", "RPUSH k v"),
    ("l", "LTRIM k i i"),
    ("l", "LREM k i v"),
    ("l", "LMOVE k k LEFT RIGHT"),
    ("l", "LMOVE k k RIGHT LEFT"),
    ("h", "HGET k f"),
    ("h", "HSET k f v f v"),
    ("h", "HSETNX k f v"),
    ("h", "HDEL k f f"),
    ("h", "HLEN k"),
    ("h", "HMGET k f f f"),
    ("h", "HGETALL k"),
    ("h", "HEXISTS k f"),
    ("h", "HINCRBY k f i"),
    ("h", "HSCAN k 0 COUNT 3"),
    ("z", "ZADD k s f s f"),
    ("z", "ZADD k NX s f"),
    ("z", "ZADD k XX CH s f s f"),
    ("z", "ZADD k GT CH s f"),
    ("z", "ZADD k LT s f"),
    ("z", "ZREM k f f"),
    ("z", "ZCARD k"),
    ("z", "ZSCORE k f"),
    ("z", "ZCOUNT k m m"),
    ("z", "ZRANGE k i i WITHSCORES"),
    ("z", "ZRANGE k i i REV"),
    ("z", "ZRANGE k m m BYSCORE LIMIT i i"),
    ("z", "ZRANGE k m m BYSCORE REV WITHSCORES"),
    ("z", "ZRANGEBYSCORE k m m WITHSCORES LIMIT i i"),
    ("z", "ZREMRANGEBYSCORE k m m"),
    ("", "DEL k"),
    ("", "EXISTS k k"),
    ("", "TYPE k"),
    ("", "TTL k"),
    ("", "PEXPIRE k 1000000"),
    ("", "PEXPIREAT k 1000"),
    ("", "PEXPIREAT k t GT"),
    ("", "PEXPIREAT k t LT"),
    ("", "PEXPIREAT k t NX"),
    ("", "PEXPIREAT k t XX"),
    ("", "PERSIST k"),
];

fn pick<'a>(rng: &mut Rng, from: &[&'a str]) -> &'a str {
    from[rng.usize(..from.len())]
}

fn argument(rng: &mut Rng, kind: &str, shape: &str) -> Vec<u8> {
    let text = match shape {
        "k" => {
            let kind =
                if kind.is_empty() || rng.u8(..12) == 0 { pick(rng, &["s", "l", "h", "z"]) } else { kind };
            format!("{kind}{}", rng.u8(..3))
        }
        "f" => pick(rng, &["a", "b", "c", "dd", "e\0", "", "10", "9"]).to_owned(),
        "v" => {
            let length = if rng.u8(..10) == 0 { 60 } else { 3 };
            return (0..rng.usize(..=length))
                .map(|_| pick(rng, &["x", "\0", "1", "\r\n"]).as_bytes()[0] | rng.u8(..2))
                .collect();
        }
        "i" => pick(rng, &["0", "1", "2", "3", "-1", "-2", "-3", "100", "-100", "x"]).to_owned(),
        "s" => {
            pick(rng, &["0", "-0", "1", "2", "2.5", "0.1", "-7", "1e20", "inf", "-inf", "1733000000000", "x"])
                .to_owned()
        }
        "m" => pick(
            rng,
            &["0", "1", "(1", "(2.5", "2.5", "inf", "-inf", "(inf", "(-inf", "0.1", "1733000000000", "x"],
        )
        .to_owned(),
        "t" => pick(rng, &["4000000000000", "5000000000000", "6000000000000"]).to_owned(),
        word => word.to_owned(),
    };
    text.into_bytes()
}

fn request(rng: &mut Rng) -> Request {
    let (kind, shape) = SHAPES[rng.usize(..SHAPES.len())];
    shape.split(' ').map(|word| argument(rng, kind, word)).collect()
}

/// Two clocks are read at two times, so what is left of a time to live may differ by a little.
fn agree(request: &Request, ours: &Wire, theirs: &Wire) -> bool {
    match (ours, theirs) {
        (Wire::Line(':', _), Wire::Line(':', _)) if request[0] == b"TTL" || request[0] == b"PTTL" => {
            let (ours, theirs) = (ours.int(), theirs.int());
            ours == theirs || (ours > 0 && theirs > 0 && (ours - theirs).abs() <= 5000)
        }
        _ => ours == theirs,
    }
}

fn show(request: &Request) -> String {
    request.iter().map(|arg| format!("\"{}\"", arg.escape_ascii())).collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn random_commands_give_the_same_replies_and_leave_the_same_state() {
    let Some(mut pair) = Pair::start(3).await else { return };
    let (seed, mut rng) = seeded();
    for _ in 0..ROUNDS {
        let mut requests: Vec<Request> = (0..BATCH).map(|_| request(&mut rng)).collect();
        for key in 0..12 {
            let (kind, n) = (["s", "l", "h", "z"][key / 3], key % 3);
            for dump in
                ["TYPE k", "PTTL k", "GET k", "LRANGE k 0 -1", "HGETALL k", "ZRANGE k 0 -1 WITHSCORES"]
            {
                requests.push(dump.replace('k', &format!("{kind}{n}")).split(' ').map(Into::into).collect());
            }
        }
        let theirs = pair.theirs.pipeline(&requests).await;
        let ours = pair.ours.pipeline(&requests).await;
        for (at, request) in requests.iter().enumerate() {
            assert!(
                agree(request, &ours[at], &theirs[at]),
                "seed {seed}: {}\n ours   {:?}\n theirs {:?}",
                show(request),
                ours[at],
                theirs[at]
            );
        }
    }
}
