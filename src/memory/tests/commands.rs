//! Plain commands, in both protocol versions, against a real server; and what only the engine has.

use super::support::{Pair, Raw, Wire};
use crate::memory::{Memory, NAMED, open};

/// One command a line, compared one after the other. `\0` is a NUL.
const CASES: &str = r#"
PING
PING hello
PING a b
ECHO x
ECHO
SELECT 0
SELECT 99
SELECT x
NOSUCHCOMMAND
NOSUCHCOMMAND a b c
GET
GET a b
GET missing
SET s v
GET s
SET s 1 NX
SET s 2 XX GET
SET s 3 GET
SET new 1 XX
SET new 1 NX PX 100000
TTL new
SET new 2 KEEPTTL
TTL new
SET new 3
TTL new
SET s v EX 0
SET s v PX -1
SET s v PX x
SET s v EX 9223372036854775807
SET s v PXAT 9223372036854775807
SET s v PX 9223372036854775807
SET s v EX
SET s v NX XX
SET s v EX 1 PX 1
SET s v EX 1 KEEPTTL
SET s v BOGUS
SET gone v PXAT 1
GET gone
EXISTS gone s s missing
TYPE s
TYPE missing
STRLEN s
STRLEN missing
INCR n
INCR n
SET n abc
INCR n
SET n 9223372036854775807
INCR n
SET n 01
INCR n
LPUSH s x
HSET s f v
ZADD s 1 m
LLEN s
HGET s f
ZSCORE s m
RPUSH l a b c a b c
LPUSH l z
GET l
SET l x NX GET
SET l2 x GET
LLEN l
LLEN missing
LRANGE l 0 -1
LRANGE l -2 100
LRANGE l 5 1
LRANGE l x 1
LRANGE s x 1
LRANGE missing 0 -1
LINDEX l 0
LINDEX l -1
LINDEX l 100
LINDEX l x
LINDEX missing x
LSET l 0 y
LSET l -1 w
LSET l 100 w
LSET l x w
LSET missing 0 w
LREM l 1 a
LREM l -1 b
LREM l 0 c
LREM l 0 nothing
LREM missing 0 x
LREM l -9223372036854775808 y
LRANGE l 0 -1
LPOP l 0
LPOP l 2
LPOP l -1
LPOP l x
LPOP l 1 2
LPOP missing
LPOP missing 3
LPOP missing 0
RPOP l
RPOP l 100
EXISTS l
RPUSH l 1 2 3 4 5 6
LTRIM l 1 -2
LRANGE l 0 -1
LTRIM l x 1
LTRIM missing 0 1
LMOVE l m LEFT RIGHT
LMOVE l m RIGHT LEFT
LMOVE l l LEFT RIGHT
LMOVE l s LEFT RIGHT
LMOVE missing s LEFT RIGHT
LMOVE missing m LEFT RIGHT
LMOVE l m UP DOWN
LRANGE l 0 -1
LRANGE m 0 -1
LTRIM l 5 9
EXISTS l
RPUSH one x
LMOVE one one LEFT LEFT
LMOVE one two LEFT LEFT
EXISTS one two
HSET h a 1 b 2
HSET h a 3 c 4
HSET h a
HSET h a 1 b
HSETNX h a 9
HSETNX h d 9
HGET h a
HGET h nothing
HMGET h a nothing b
HMGET missing a b
HMGET s a
BITFIELD bits SET u1 0 1 SET u1 7 1 SET u1 0 0
BITFIELD bits SET u1 0 1 SET u1 70000 1
BITFIELD bits SET u1 7 3
GET bits
BITFIELD bits SET u1 -1 1
BITFIELD bits SET u1 0 x
BITFIELD h SET u1 0 1
BITFIELD fresh SET u1 5 0
STRLEN fresh
DEL bits fresh
HLEN h
HEXISTS h a
HEXISTS h nothing
HGETALL h
HGETALL missing
HINCRBY h n 5
HINCRBY h n -7
HINCRBY h n x
HSET h t abc
HINCRBY h t 1
HINCRBY h n 9223372036854775807
HINCRBY h n 9223372036854775807
HSCAN h 0
HSCAN h 0 COUNT 1
HSCAN h 0 MATCH [ab]
HSCAN h 0 COUNT 0
HSCAN h 0 COUNT x
HSCAN h 0 BOGUS
HSCAN h x
HSCAN missing 0
HSCAN s 0
HDEL h a b nothing
HDEL h n c d t
EXISTS h
HDEL missing a
ZADD z 1 a 2 b 3 c
ZADD z CH 2 a 2 b 4 d
ZADD z NX 9 a 9 e
ZADD z XX 8 a 8 f
ZADD z GT 1 a 9 b
ZADD z LT CH 1 a 10 b
ZADD z XX CH 5 nothing
ZADD z NX XX 1 a
ZADD z NX GT 1 a
ZADD z GT LT 1 a
ZADD z 1
ZADD z x a
ZADD z nan a
ZADD z 1 a 2
ZADD z 1 a x b
ZSCORE z a
ZSCORE z nothing
ZSCORE missing a
ZADD q -inf low +inf high 0.1 tenth 1e20 big -0 zero 1.5e-7 small 3.25 plain
ZRANGE q 0 -1 WITHSCORES
ZSCORE q tenth
ZCARD q
ZCARD missing
ZRANGE q 0 1
ZRANGE q -2 -1
ZRANGE q 0 -1 REV
ZRANGE q 0 -1 REV WITHSCORES
ZRANGE q 5 1
ZRANGE q x 1
ZRANGE q 0 1 LIMIT 0 1
ZRANGE q -inf +inf BYSCORE
ZRANGE q +inf -inf BYSCORE REV LIMIT 1 2
ZRANGE q (0 (4 BYSCORE WITHSCORES
ZRANGE q 0 4 BYSCORE LIMIT 1 1
ZRANGE q 0 4 BYSCORE LIMIT 0 -1
ZRANGE q 0 4 BYSCORE LIMIT -1 5
ZRANGE q 0 4 BYSCORE LIMIT 0 0
ZRANGE q 0 4 BYSCORE LIMIT 0
ZRANGE q 0 4 BYSCORE LIMIT x 1
ZRANGE q a b BYSCORE
ZRANGE q 0 1 BOGUS
ZRANGEBYSCORE q -inf inf
ZRANGEBYSCORE q -inf inf WITHSCORES LIMIT 1 2
ZRANGEBYSCORE q (-inf (inf
ZRANGEBYSCORE q 1 0
ZRANGEBYSCORE q x 0
ZRANGEBYSCORE q ( 0
ZRANGEBYSCORE q 0 1 REV
ZRANGEBYSCORE missing 0 1
ZCOUNT q 0 (3.25
ZCOUNT q x 1
ZCOUNT missing 0 1
ZREMRANGEBYSCORE q (0 1
ZREMRANGEBYSCORE missing 0 1
ZREMRANGEBYSCORE q x 1
ZREM q low nothing
ZRANGE q 0 -1 WITHSCORES
ZREMRANGEBYSCORE q -inf +inf
EXISTS q
ZADD q XX 1 a
EXISTS q
ZADD tie 1 b 1 a 1 ab 1 B
ZRANGE tie 0 -1
PEXPIRE missing 100
PTTL missing
TTL missing
PTTL z
PEXPIRE z 100000
TTL z
EXPIRE z 200
TTL z
EXPIRE z 100 GT
EXPIRE z 300 GT
EXPIRE z 100 LT
EXPIRE z 100 NX
EXPIRE z 500 XX
EXPIRE z 500 NX XX
EXPIRE z 500 GT LT
EXPIRE z 500 BOGUS
EXPIRE z x
EXPIRE z 9223372036854775807
PEXPIRE z 9223372036854775807
PERSIST z
PERSIST z
PERSIST missing
EXPIRE z 100 GT
EXPIRE z 100 XX
EXPIRE z 100 LT
PEXPIREAT z 5000000000000
PEXPIRETIME z
PEXPIRETIME missing
PEXPIRETIME past
PEXPIREAT z 1
EXISTS z
RPUSH past x
PEXPIRE past 0
EXISTS past
RPUSH past x
PEXPIRE past -5
EXISTS past
RPUSH keep x
PEXPIRE keep 100000
RPUSH keep y
TTL keep
LPOP keep 5
RPUSH keep z
TTL keep
DEL s missing n
UNLINK m
CONFIG GET maxmemory-policy
CONFIG GET appendonly
CONFIG GET save
CONFIG GET nosuch
CONFIG
CONFIG NOSUCH
PUBLISH nobody hello
PUBSUB NUMSUB a b
PUBSUB NUMSUB
PUBSUB
PUBSUB NOSUCH
DBSIZE
SCAN 0 COUNT 1000 MATCH nothing*
SCAN x
SCAN 0 COUNT 0
SCAN 0 BOGUS
EVAL
EVAL x
EVAL x 0 0 0
EVAL return 1
EVAL return 0
EVALSHA ffffffffffffffffffffffffffffffffffffffff 0
EVALSHA short 0
SCRIPT LOAD return
SCRIPT EXISTS 63143b6f8007b98c53ca2149822777b3566f9241 ffffffffffffffffffffffffffffffffffffffff
SCRIPT EXISTS
SCRIPT LOAD (((
SCRIPT NOSUCH
SCRIPT
EVALSHA 63143b6f8007b98c53ca2149822777b3566f9241 0
EVALSHA 63143B6F8007B98C53CA2149822777B3566F9241 0
SCRIPT FLUSH
EVALSHA 63143b6f8007b98c53ca2149822777b3566f9241 0
CLIENT SETNAME me
CLIENT GETNAME
CLIENT KILL TYPE pubsub
CLIENT KILL TYPE bogus
CLIENT NOSUCH
CLIENT
HELLO 4
HELLO x
HELLO 3 BOGUS
UNSUBSCRIBE nothing
UNSUBSCRIBE
SUBSCRIBE
FLUSHALL BOGUS
FLUSHALL
DBSIZE
"#;

async fn compare(resp: u8) {
    let Some(mut pair) = Pair::start(resp).await else { return };
    let mut different = Vec::new();
    for case in CASES.lines().filter(|line| !line.is_empty()) {
        different.extend(pair.differ(&case.split(' ').collect::<Vec<_>>()).await);
    }
    assert!(different.is_empty(), "{}", different.concat());
}

#[tokio::test]
async fn plain_commands_answer_as_the_server_does_in_resp2() {
    compare(2).await;
}

#[tokio::test]
async fn plain_commands_answer_as_the_server_does_in_resp3() {
    compare(3).await;
}

#[tokio::test]
async fn bytes_of_all_kinds_survive_as_key_field_and_value() {
    let mut raw = Raw::new(Memory::private().connect());
    let all: Vec<u8> = (0..=255).collect();
    for bytes in [&all[..], b"", b"\r\n", b"\0", b"\xff\xfe"] {
        raw.call(&[&b"SET"[..], bytes, bytes]).await;
        assert_eq!(raw.call(&[&b"GET"[..], bytes]).await, Wire::Bulk(bytes.to_vec()));
        raw.call(&[&b"DEL"[..], bytes]).await;
        raw.call(&[&b"HSET"[..], bytes, bytes, bytes]).await;
        assert_eq!(raw.call(&[&b"HGETALL"[..], bytes]).await.items()[1], Wire::Bulk(bytes.to_vec()));
        raw.call(&[&b"DEL"[..], bytes]).await;
    }
    assert_eq!(raw.words("DBSIZE").await.int(), 0);
}

#[tokio::test]
async fn a_key_is_gone_when_its_time_has_come_though_nobody_looked() {
    let mut raw = Raw::new(Memory::private().connect());
    for n in 0..5 {
        raw.words(&format!("SET k{n} v PX 20")).await;
    }
    raw.words("SET stays v").await;
    tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    assert_eq!(raw.words("DBSIZE").await.int(), 1);
    assert_eq!(raw.words("GET k1").await, Wire::Null);
    assert_eq!(raw.words("SET k1 v NX").await, Wire::Line('+', "OK".into()));
    assert_eq!(raw.words("PTTL k1").await.int(), -1);
}

#[tokio::test]
async fn a_scan_of_keys_and_fields_is_complete_though_it_goes_in_steps() {
    let mut raw = Raw::new(Memory::private().connect());
    for n in 0..2000 {
        raw.words(&format!("HSET big f{n} {n}")).await;
        raw.words(&format!("SET s{n} v")).await;
    }
    for (head, tail, width) in [("SCAN", "COUNT 7 MATCH s* TYPE string", 1), ("HSCAN big", "COUNT 7", 2)] {
        let (mut cursor, mut seen, mut steps) = ("0".to_owned(), Vec::new(), 0);
        loop {
            let reply = raw.words(&format!("{head} {cursor} {tail}")).await;
            cursor = String::from_utf8(reply.items()[0].bytes().to_vec()).unwrap();
            seen.extend(reply.items()[1].items().chunks(width).map(|pair| pair[0].bytes().to_vec()));
            steps += 1;
            if cursor == "0" {
                break;
            }
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 2000);
        assert!(steps > 200, "{steps}");
    }
}

#[tokio::test]
async fn a_name_is_one_engine_while_somebody_holds_it() {
    let mut first = Raw::new(open("tests-shared"));
    first.words("SET k v").await;
    let mut second = Raw::new(open("tests-shared"));
    assert_eq!(second.words("GET k").await, Wire::Bulk(b"v".to_vec()));
    assert_eq!(Raw::new(open("tests-other")).words("GET k").await, Wire::Null);
    assert_eq!(Raw::new(open("")).words("GET k").await, Wire::Null);
    drop((first, second));
    let freed = || NAMED.lock().unwrap().get("tests-shared").is_none_or(|engine| engine.strong_count() == 0);
    for _ in 0..1000 {
        if freed() {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(freed());
    assert_eq!(Raw::new(open("tests-shared")).words("GET k").await, Wire::Null);
}

#[tokio::test]
async fn a_connection_that_breaks_the_protocol_ends_and_no_other() {
    let memory = Memory::private();
    let (mut good, mut bad) = (Raw::new(memory.connect()), Raw::new(memory.connect()));
    bad.send_bytes(b"*1\r\n$4\r\nPING\r\n*1\r\n:3\r\n").await;
    assert_eq!(bad.read().await, Wire::Line('+', "PONG".into()));
    assert_eq!(bad.read().await, Wire::Error("ERR".into()));
    assert!(bad.ended().await);
    assert_eq!(good.words("PING").await, Wire::Line('+', "PONG".into()));
}

#[tokio::test]
async fn quit_answers_what_was_asked_before_it_ends() {
    let mut raw = Raw::new(Memory::private().connect());
    raw.send_bytes(b"*0\r\n*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nQUIT\r\n*1\r\n$4\r\nPING\r\n").await;
    assert_eq!(raw.read().await, Wire::Line('+', "PONG".into()));
    assert_eq!(raw.read().await, Wire::Line('+', "OK".into()));
    assert!(raw.ended().await);
}

#[tokio::test]
async fn a_client_may_send_megabytes_before_it_reads() {
    let mut raw = Raw::new(Memory::private().connect());
    let value = vec![b'x'; 1 << 20];
    let set = vec![b"SET".to_vec(), b"k".to_vec(), value.clone()];
    let get = vec![b"GET".to_vec(), b"k".to_vec()];
    let mut requests = vec![set];
    requests.extend(std::iter::repeat_n(get, 8));
    requests.extend(std::iter::repeat_n(vec![b"ECHO".to_vec(), value.clone()], 8));
    let sending = async { raw.pipeline(&requests).await };
    let replies = tokio::time::timeout(std::time::Duration::from_secs(30), sending).await.unwrap();
    assert!(replies[1..].iter().all(|reply| *reply == Wire::Bulk(value.clone())));
}

#[tokio::test]
async fn kill_cuts_the_connections_of_its_type_only() {
    let memory = Memory::private();
    let (mut me, mut other, mut listener) =
        (Raw::new(memory.connect()), Raw::new(memory.connect()), Raw::new(memory.connect()));
    listener.words("SUBSCRIBE c").await;
    other.words("PING").await;
    assert_eq!(me.words("CLIENT KILL TYPE pubsub").await.int(), 1);
    assert!(listener.ended().await);
    assert_eq!(other.words("PING").await, Wire::Line('+', "PONG".into()));
    assert_eq!(me.words("CLIENT KILL TYPE normal").await.int(), 1);
    assert!(other.ended().await);
    assert_eq!(me.words("PUBLISH c x").await.int(), 0);
}

#[tokio::test]
async fn a_subscriber_in_resp2_may_only_subscribe_and_ping() {
    let Some(mut pair) = Pair::start(2).await else { return };
    for case in [
        "SUBSCRIBE a",
        "SUBSCRIBE a",
        "SUBSCRIBE b",
        "GET k",
        "PING",
        "PING x",
        "UNSUBSCRIBE a",
        "UNSUBSCRIBE b",
        "GET k",
    ] {
        assert_eq!(pair.differ(&case.split(' ').collect::<Vec<_>>()).await, None);
    }
}

#[tokio::test]
async fn time_stands_still_within_a_script() {
    let mut raw = Raw::new(Memory::private().connect());
    let script = "local a=redis.call('TIME') for i=1,300000 do end local b=redis.call('TIME') return a[1]==b[1] and a[2]==b[2]";
    assert_eq!(raw.call(&["EVAL", script, "0"]).await.int(), 1);
}
