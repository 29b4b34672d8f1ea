//! Bad and odd inputs, table by table: each a typed error before anything is written, or handled exactly.

use std::collections::HashSet;
use std::time::Duration;

use mcp_courier::{Builder, Courier, Error, MessageId, Notification, Push, PushStatus, SessionId, SinkError};

use crate::support::fixture::{Fixture, Recorder, push, serve, session, wait_pending};
use crate::support::wait::wait_until;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// What kind of error is expected, and of what.
#[derive(Clone, Copy)]
enum Expect {
    Invalid(&'static str),
    TooLarge(&'static str),
}

fn assert_error(input: &str, e: &Error, expect: Expect) {
    let fits = match (e, expect) {
        (Error::Invalid { what, why }, Expect::Invalid(expected)) => *what == expected && !why.is_empty(),
        (Error::TooLarge { what, actual, limit }, Expect::TooLarge(expected)) => {
            *what == expected && actual > limit
        }
        _ => false,
    };
    assert!(fits, "{input}: {e:?}");
    assert!(!e.is_retryable() && !e.is_ambiguous(), "{input}: repeating can not help");
}

#[test]
fn ids_of_no_bytes_or_too_many_are_refused() {
    let long = |n: usize| "x".repeat(n);
    for (id, expect) in [
        (String::new(), Expect::Invalid("session id")),
        (long(1025), Expect::TooLarge("session id")),
        (long(4096), Expect::TooLarge("session id")),
        (long(1 << 20), Expect::TooLarge("session id")),
        ("é".repeat(513), Expect::TooLarge("session id")),
    ] {
        assert_error("new", &SessionId::new(&id).expect_err("refused"), expect);
        assert_error("parse", &id.parse::<SessionId>().expect_err("refused"), expect);
        assert_error("convert", &SessionId::try_from(id).expect_err("refused"), expect);
    }
    for (id, expect) in [
        (String::new(), Expect::Invalid("message id")),
        (long(257), Expect::TooLarge("message id")),
        ("é".repeat(129), Expect::TooLarge("message id")),
    ] {
        assert_error("new", &MessageId::new(&id).expect_err("refused"), expect);
    }
    assert_eq!(SessionId::new(long(1024)).expect("at the limit").as_str().len(), 1024);
    assert_eq!(MessageId::new(long(256)).expect("at the limit").as_str().len(), 256);
}

/// Ids that have broken key schemes: each works, and none meets another, as session and as message.
#[tokio::test]
async fn f34_hostile_ids_work_and_never_meet() {
    let t = Fixture::new("f34").await;
    let courier = t.courier().await;
    let mut ids: Vec<String> = [
        "{}",
        "}x",
        "{",
        "}",
        "a}b",
        "{{x}}",
        "{0}",
        "a",
        "b",
        "a:b",
        "a:b:c",
        "b:c",
        "a:lease",
        ":",
        "::",
        "q:a",
        "s",
        "w",
        "n",
        "dead:a",
        " ",
        "a ",
        " a",
        "a b",
        "\n",
        "a\nb",
        "\r\n",
        "\t",
        "\0",
        "a\0",
        "a\0b",
        "*",
        "?",
        "[a]",
        "a*",
        "\\",
        "\\*",
        "\"",
        "'",
        "%",
        "%%",
        "%41",
        "A",
        "%7B%7D",
        "%257B",
        "%3A",
        "a%3Ab",
        "e\u{301}",
        "\u{e9}",
        "E\u{301}",
        "🦀",
        "\u{202e}abc",
        "\u{feff}a",
        ".",
        "..",
        "../a",
        "-1",
        "0",
        "?a",
        "!1",
        "$(id)",
    ]
    .map(str::to_owned)
    .to_vec();
    ids.push("x".repeat(1024));
    ids.push("x".repeat(1023));
    ids.push("🦀".repeat(256));
    ids.push("{".repeat(1024));
    let mut sinks = Vec::new();
    for id in &ids {
        let (s, sink) = (session(id), Recorder::new());
        courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
        sinks.push((s, sink));
    }
    let mut stored = HashSet::new();
    for (s, _) in &sinks {
        // Every message id in every session: the windows of idempotence must not meet either.
        for id in ids.iter().filter(|id| id.len() <= 256) {
            let pushed = courier.push(push(s, s.as_str()).id(MessageId::new(id).expect("valid"))).await;
            let pushed = pushed.expect("queued");
            assert_eq!((pushed.status, pushed.id.as_str()), (PushStatus::Queued, &**id), "{s:?}");
        }
        stored.insert(s.as_str());
    }
    let messages = ids.iter().filter(|id| id.len() <= 256).count();
    for (s, sink) in &sinks {
        sink.wait_for(messages).await;
        wait_pending(&courier, s, 0).await;
        assert_eq!(sink.seen().len(), messages);
        assert!(sink.seen().iter().all(|d| d.session == *s && d.body() == s.as_str().as_bytes()), "{s:?}");
        let seen: Vec<_> = sink.seen().iter().map(|d| d.id.as_str().to_owned()).collect();
        assert_eq!(seen, ids.iter().filter(|id| id.len() <= 256).cloned().collect::<Vec<_>>());
        assert_eq!(courier.stats(s).await.expect("stats").session, s.as_str());
    }
    // Every key of ours lies in the partition's one slot.
    for (key, _) in t.keys().await {
        assert!(!key.contains(['{', '}', '*', '\n', '\0', ' ']), "{key:?}");
    }
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// What a push is given: refused by name, and nothing is written; at the limits, taken.
#[tokio::test]
async fn bad_values_of_a_push_are_refused_by_name_before_anything_is_written() {
    let t = Fixture::new("inputs_push").await;
    let courier = t.connect(t.builder().max_body_bytes(1000)).await;
    let s = session("s");
    let p = || push(&s, "x");
    let bad: Vec<(&str, Push, Expect)> = vec![
        ("ttl zero", p().ttl(Duration::ZERO), Expect::Invalid("ttl")),
        ("ttl beyond a year", p().ttl(YEAR + Duration::from_millis(1)), Expect::Invalid("ttl")),
        ("ttl overflow", p().ttl(Duration::MAX), Expect::Invalid("ttl")),
        ("ttl of i64::MAX ms", p().ttl(Duration::from_millis(i64::MAX as u64)), Expect::Invalid("ttl")),
        (
            "window beyond a year",
            p().dedupe(YEAR + Duration::from_nanos(1)),
            Expect::Invalid("dedupe window"),
        ),
        ("window overflow", p().dedupe(Duration::MAX), Expect::Invalid("dedupe window")),
        ("no room at all", p().max_pending(0), Expect::Invalid("max pending")),
        ("empty key", p().coalesce(""), Expect::Invalid("coalescing key")),
        ("long key", p().coalesce("x".repeat(257)), Expect::TooLarge("coalescing key")),
        ("long key of wide letters", p().coalesce("é".repeat(129)), Expect::TooLarge("coalescing key")),
        ("long trace", p().trace("x".repeat(513)), Expect::TooLarge("trace context")),
        ("large body", Push::new(&s, vec![0; 1001]), Expect::TooLarge("body")),
    ];
    for (input, message, expect) in bad {
        assert_error(input, &courier.push(message).await.expect_err(input), expect);
    }
    assert_eq!(t.keys().await, [], "nothing was written");

    let good: Vec<(&str, Push)> = vec![
        ("a nanosecond counts as a millisecond", p().ttl(Duration::from_nanos(1))),
        ("a year", p().ttl(YEAR)),
        ("a window of a nanosecond", p().dedupe(Duration::from_nanos(1))),
        ("no window", p().dedupe(Duration::ZERO)),
        ("room for all there are", p().max_pending(u64::MAX)),
        ("a key at its limit", p().coalesce("x".repeat(256))),
        ("a key of odd bytes", p().coalesce("\0\n {}:*")),
        ("a trace at its limit", p().trace("x".repeat(512))),
        ("a body at its limit", Push::new(&s, vec![0; 1000])),
        ("an empty body", Push::new(&s, vec![])),
    ];
    for (input, message) in good {
        assert_eq!(courier.push(message).await.expect(input).status, PushStatus::Queued, "{input}");
    }
    courier.subscribers().ensure_running(&s, Recorder::new()).await.expect("claimed");
    wait_pending(&courier, &s, 0).await;
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// What a courier is set to: refused by name at connect, before a connection is opened.
#[tokio::test]
async fn bad_settings_are_refused_by_name() {
    const ZERO: Duration = Duration::ZERO;
    let b = Courier::builder;
    let long = YEAR + Duration::from_millis(1);
    let bad: Vec<(Builder, &str)> = vec![
        (b().prefix(""), "prefix"),
        (b().prefix("a{b"), "prefix"),
        (b().prefix("a}b"), "prefix"),
        (b().prefix("a*"), "prefix"),
        (b().prefix("a b"), "prefix"),
        (b().prefix("a\nb"), "prefix"),
        (b().prefix("a\0"), "prefix"),
        (b().prefix("é"), "prefix"),
        (b().prefix("x".repeat(129)), "prefix"),
        (b().ttl(ZERO), "ttl"),
        (b().ttl(long), "ttl"),
        (b().dedupe(Duration::MAX), "dedupe window"),
        (b().backoff(ZERO), "backoff"),
        (b().backoff_cap(ZERO), "backoff cap"),
        (b().dead_ttl(ZERO), "dead letter ttl"),
        (b().dead_ttl(long), "dead letter ttl"),
        (b().lease(ZERO), "lease"),
        (b().lease(Duration::MAX), "lease"),
        (b().heartbeat(ZERO), "heartbeat"),
        (b().heartbeat(Duration::MAX), "heartbeat"),
        (b().heartbeat(Duration::from_secs(4)), "heartbeat"),
        (b().lease(Duration::from_secs(2)), "heartbeat"),
        (b().look_again(ZERO), "look again"),
        (b().node_grace(ZERO), "node grace"),
        (b().connect_timeout(ZERO), "connect timeout"),
        (b().call_timeout(ZERO), "call timeout"),
        (b().deadline(ZERO), "deadline"),
        (b().max_attempts(0), "max attempts"),
        (b().max_pending(0), "max pending"),
        (b().max_pending(u64::MAX), "max pending"),
        (b().max_body_bytes(0), "max body bytes"),
        (b().max_body_bytes(usize::MAX), "max body bytes"),
        (b().batch(0), "batch"),
        (b().batch(u32::MAX), "batch"),
        (b().batch_bytes(0), "batch bytes"),
        (b().batch_bytes(usize::MAX), "batch bytes"),
        (b().handoff_bytes(usize::MAX), "handoff bytes"),
        (b().dead_cap(0), "dead letter limit"),
        (b().dead_cap(u32::MAX), "dead letter limit"),
    ];
    for (builder, expected) in bad {
        let e = builder.clone().connect("redis://127.0.0.1:1").await.expect_err(expected);
        match &e {
            Error::Invalid { what, why } => assert_eq!((*what, why.is_empty()), (expected, false), "{e}"),
            other => panic!("{builder:?}: {other:?}"),
        }
    }
}

/// Where a courier connects to: a wrong URL is an error that says what is wrong and shows no password.
#[tokio::test]
async fn wrong_urls_are_refused_without_showing_a_password() {
    for url in [
        "",
        " ",
        "localhost",
        "localhost:6379",
        "://",
        "redis:",
        "redis:/",
        "redis://",
        "redis:///0",
        "redis://:6379",
        "redis://u:s3cret@",
        "redis://u:s3cret@h:port",
        "redis://u:s3cret@h:99999",
        "redis://u:s3cret@h:-1",
        "redis://u:s3cret@h/zero",
        "redis://u:s3cret@h/-1",
        "redis://u:s3cret@h/1/2",
        "redis://u:s3cret@h/99999999999999999999",
        "redis://u:s3cret@h/0?retry=1",
        "redis://u:s3cret@h/0#insecure",
        "redis://u:s3cret@[::1",
        "redis://u:s3cret@h h",
        "http://u:s3cret@localhost",
        "REDIS://u:s3cret@h:port",
        "redis+sentinel://u:s3cret@h/m/zero",
        "redis+sentinel://u:s3cret@h,i",
        "redis+sentinel://u:s3cret@h:port/m",
        "redis+sentinel://h/m?sentinel_pass=s3cret&color=red",
        "redis+cluster://u:s3cret@h1,h2/1",
        "redis+cluster://u:s3cret@h1:port,h2",
        "redis+unix://?pass=s3cret&color=red",
        "memory://a/b",
        "memory://a?b",
        "memory://u:s3cret@a",
    ] {
        let e = Courier::connect(url).await.expect_err(url);
        assert!(matches!(&e, Error::Invalid { what: "url", .. }), "{url:?}: {e:?}");
        let shown = format!("{e} {e:?}");
        assert!(!shown.contains("s3cret"), "{url:?}: {shown}");
        assert!(!e.is_retryable(), "{url:?}");
    }
    for url in ["redis://u:s3cret@127.0.0.1:1", "redis+unix:///nowhere/at/all.sock?pass=s3cret"] {
        let e = Courier::connect(url).await.expect_err(url);
        assert!(matches!(&e, Error::Unreachable { op: "connect", .. }), "{url:?}: {e:?}");
        assert!(e.is_retryable() && !format!("{e} {e:?}").contains("s3cret"), "{url:?}: {e:?}");
    }
}

/// What is no notification is refused where it is made, and where it is read.
#[tokio::test]
async fn what_is_no_notification_is_refused_at_both_ends() {
    let t = Fixture::new("inputs_json").await;
    let courier = t.courier().await;
    let s = session("s");
    let bad: Vec<&[u8]> = vec![
        b"",
        b" ",
        b"null",
        b"true",
        b"1",
        b"\"text\"",
        b"[]",
        b"[\"x\"]",
        b"[\"x\",{}]",
        b"{}",
        b"not json",
        b"{\"method\":",
        b"{\"method\":1}",
        b"{\"method\":null}",
        b"{\"Method\":\"x\"}",
        b"{\"method\":\"x\",\"params\":[]}",
        b"{\"method\":\"x\",\"params\":1}",
        b"{\"method\":\"x\"} trailing",
        b"{\"method\":\"x\"}{\"method\":\"y\"}",
        b"\xff\xfe",
        b"{\"method\":\"\xff\"}",
        b"\xef\xbb\xbf{\"method\":\"x\"}",
        b"{\"method\":\"\x01\"}",
    ];
    for text in &bad {
        let e = Notification::from_json(text).expect_err("refused");
        assert_error(&String::from_utf8_lossy(text), &e, Expect::Invalid("notification"));
        courier.push(Push::new(&s, *text)).await.expect("the queue takes any bytes");
    }
    let deep = format!("{{\"method\":\"x\",\"params\":{{\"a\":{}{}}}}}", "[".repeat(1200), "]".repeat(1200));
    assert!(Notification::from_json(deep.as_bytes()).is_err(), "deeper than the parser goes, and no crash");
    let e = courier.push_notification(&s, &Notification::new("")).await.expect_err("refused");
    assert_error("empty method", &e, Expect::Invalid("notification method"));

    // A sink that expects notifications rejects them, one by one, and none stops the next.
    let sink = Recorder::answering(|d| match d.notification() {
        Ok(_) => Ok(()),
        Err(e @ Error::NotANotification { .. }) => Err(SinkError::rejected(e)),
        Err(e) => panic!("{e:?}"),
    });
    courier.push_notification(&s, &Notification::new("x")).await.expect("queued");
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    sink.wait_for(bad.len() + 1).await;
    wait_pending(&courier, &s, 0).await;
    let (total, letters) = courier.dead_letters(&s).list(0, 100).await.expect("listed");
    assert_eq!(total as usize, bad.len());
    assert!(letters.iter().zip(&bad).all(|(letter, text)| letter.body == *text));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

fn is_wrong_type(e: &Error) -> bool {
    matches!(e, Error::Refused { code, .. } if code == "WRONGTYPE")
        && e.to_string().contains("another prefix")
}

/// A foreign key where one of ours should be: a push is done whole or not at all, and works again when it is gone.
#[tokio::test]
async fn a_push_onto_a_foreign_key_is_all_or_nothing() {
    for key in ["q:s", "s", "w"] {
        let t = Fixture::new(&format!("inputs_foreign_{}", &key[..1])).await;
        let courier = t.courier().await;
        let s = session("s");
        let foreign = t.key(key, "");
        let _: String = t.ask(&format!("SET {foreign} foreign")).await;
        let message = || push(&s, "x").id(MessageId::new("m").expect("valid"));
        for _ in 0..2 {
            let e = courier.push(message()).await.expect_err("refused");
            assert!(is_wrong_type(&e), "{key}: {e}");
            assert_eq!(t.keys().await, [(key.to_owned(), -1)], "{key}: nothing was written");
        }
        let e = courier.stats(&s).await;
        assert!(key == "w" || e.as_ref().is_err_and(is_wrong_type), "{key}: {e:?}");
        let kept: String = t.ask(&format!("GET {foreign}")).await;
        assert_eq!(kept, "foreign");

        let _: u64 = t.ask(&format!("DEL {foreign}")).await;
        assert_eq!(courier.push(message()).await.expect("queued").status, PushStatus::Queued);
        let sink = Recorder::new();
        courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
        assert_eq!(sink.wait_for(1).await, ["x"]);
        wait_pending(&courier, &s, 0).await;
        courier.shutdown(Duration::from_secs(5)).await;
        t.finish().await;
    }
}

/// Whatever stands where a message id is remembered, the id counts as known: nothing is queued or overwritten.
#[tokio::test]
async fn a_foreign_key_in_the_place_of_a_known_id_makes_a_duplicate_and_is_left_alone() {
    let t = Fixture::new("inputs_foreign_d").await;
    let courier = t.courier().await;
    let s = session("s");
    let foreign = t.key("d", "s:m");
    let _: u64 = t.ask(&format!("RPUSH {foreign} foreign")).await;
    let pushed = courier.push(push(&s, "x").id(MessageId::new("m").expect("valid"))).await.expect("known");
    assert_eq!((pushed.status, pushed.pending), (PushStatus::Duplicate, 0));
    assert_eq!(t.keys().await, [("d:s:m".to_owned(), -1)]);
    let _: u64 = t.ask(&format!("DEL {foreign}")).await;
    t.finish().await;
}

/// An index that belongs to somebody else is an error at connect or at the first subscription, by name.
#[tokio::test]
async fn a_foreign_index_is_an_error_at_the_start() {
    for key in ["s", "w", "n"] {
        let t = Fixture::new(&format!("inputs_start_{key}")).await;
        let foreign = t.key(key, "");
        let _: String = t.ask(&format!("SET {foreign} foreign")).await;
        let e = t.builder().connect(t.server.url()).await.expect_err("refused");
        assert!(is_wrong_type(&e), "{key}: {e}");
        let _: u64 = t.ask(&format!("DEL {foreign}")).await;

        let courier = t.connect(t.builder().deadline(Duration::from_secs(1))).await;
        let _: String = t.ask(&format!("SET {foreign} foreign")).await;
        if key != "w" {
            let (registry, s) = (courier.subscribers(), session("s"));
            // The heartbeat or the claim says so.
            let e = registry.ensure_running(&s, Recorder::new()).await.expect_err("refused");
            assert!(is_wrong_type(&e) || matches!(e, Error::Timeout { .. }), "{key}: {e}");
            assert_eq!(registry.count(), 0, "{key}");
        }
        let _: u64 = t.ask(&format!("DEL {foreign}")).await;
        let sink = Recorder::new();
        courier.push(push(&session("s"), "x")).await.expect("queued");
        courier.subscribers().ensure_running(&session("s"), sink.clone()).await.expect("claimed");
        sink.wait_for(1).await;
        wait_pending(&courier, &session("s"), 0).await;
        courier.shutdown(Duration::from_secs(5)).await;
        t.finish().await;
    }
}

/// A foreign key in the place of one session's list or dead letters stops that session, and no other; when it is gone,
/// the session goes on without anybody's help.
#[tokio::test]
async fn a_foreign_key_stops_its_own_session_only() {
    let t = Fixture::new("inputs_one_session").await;
    let courier = t.courier().await;
    let (bad, poisoned) = (session("bad"), session("poisoned"));
    let (bad_sink, good_sink) = (Recorder::new(), Recorder::new());
    let bad_loop = serve(&courier, &bad, bad_sink.clone());
    let poisoned_sink = Recorder::answering(|d| match d.body() {
        b"poison" => Err(SinkError::rejected("no")),
        _ => Ok(()),
    });
    let poisoned_loop = serve(&courier, &poisoned, poisoned_sink.clone());
    let good: Vec<_> = (0..10).map(|n| session(&format!("good{n}"))).collect();
    for s in &good {
        courier.subscribers().ensure_running(s, good_sink.clone()).await.expect("claimed");
    }
    courier.push(push(&bad, "before")).await.expect("queued");
    bad_sink.wait_for(1).await;
    wait_pending(&courier, &bad, 0).await;

    let (list, dead) = (t.key("q", "bad"), t.key("dead", "poisoned"));
    let _: String = t.ask(&format!("SET {list} foreign")).await;
    let _: String = t.ask(&format!("SET {dead} foreign")).await;
    courier.push(push(&poisoned, "poison")).await.expect("queued");
    courier.push(push(&poisoned, "after")).await.expect("queued");
    let node = t.token("bad").await.expect("an owner");
    let inbox = format!("{}:{{0}}:c:{}", t.prefix, node.split(':').next().expect("a node"));
    for n in 1..=50 {
        let _: u64 = t.ask(&format!("{} {inbox} bad", t.publish().0)).await;
        for s in &good {
            courier.push(push(s, "x")).await.expect("queued");
        }
        good_sink.wait_for(n * good.len()).await;
    }
    assert_eq!(poisoned_sink.bodies(), ["poison"], "neither lost nor overtaken");
    let pending: u64 = t.ask(&format!("LLEN {}", t.key("q", "poisoned"))).await;
    assert_eq!(pending, 2);

    for foreign in [list, dead] {
        let kept: String = t.ask(&format!("GET {foreign}")).await;
        assert_eq!(kept, "foreign");
        let _: u64 = t.ask(&format!("DEL {foreign}")).await;
    }
    courier.push(push(&bad, "after")).await.expect("queued");
    assert_eq!(bad_sink.wait_for(2).await, ["before", "after"]);
    assert_eq!(poisoned_sink.wait_for(2).await, ["poison", "after"]);
    wait_until("the poison is a dead letter", Duration::from_secs(5), || async {
        let stats = courier.stats(&poisoned).await.expect("stats");
        if (stats.pending, stats.dead) == (0, 1) { Ok(()) } else { Err(format!("{stats:?}")) }
    })
    .await;
    bad_loop.stop().await;
    poisoned_loop.stop().await;
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Dead letters that another program put there are shown as they are, and can be purged.
#[tokio::test]
async fn foreign_dead_letters_are_shown_as_they_are() {
    let t = Fixture::new("inputs_dead").await;
    let courier = t.courier().await;
    let s = session("s");
    let foreign: [&[u8]; 6] = [b"", b"garbage", b"1 2\n", b"1 1 99\nshort", b"2 1 0\n", b"1 -1 0\n"];
    for entry in foreign {
        let mut cmd = redis::cmd("RPUSH");
        let _: u64 = t.send(cmd.arg(t.key("dead", "s")).arg(entry)).await;
    }
    let dead = courier.dead_letters(&s);
    let (total, letters) = dead.list(0, 10).await.expect("listed");
    assert_eq!(total, 6);
    for (letter, entry) in letters.iter().zip(foreign) {
        assert_eq!((&*letter.reason, &letter.body[..]), ("format", entry));
    }
    assert_eq!(dead.requeue(None).await, Ok(0));
    assert_eq!(courier.stats(&s).await.expect("stats").dead, 6);
    assert_eq!(dead.purge(None).await, Ok(6));
    t.finish().await;
}

/// A record made by hand with numbers that no clock shows: every look at its session still gets an answer.
#[tokio::test]
async fn a_record_with_absurd_numbers_breaks_no_reply() {
    let t = Fixture::new("absurd").await;
    let courier = t.courier().await;
    let (s, nines) = (session("s"), "9".repeat(30));
    let record = format!("1 {nines} {nines} 0 {nines} 1 0 0 0 0\na");
    let _: u64 = t.send(redis::cmd("RPUSH").arg(t.key("q", "s")).arg(record)).await;
    courier.push(push(&s, "after")).await.expect("queued");
    courier.subscribers().ensure_running(&s, Recorder::new()).await.expect("claimed");
    let looked = courier.metrics().heartbeats;
    wait_until("some heartbeats", Duration::from_secs(10), || async {
        let heard = courier.metrics().heartbeats;
        if heard > looked + 2 { Ok(()) } else { Err(heard.to_string()) }
    })
    .await;
    let stats = courier.stats(&s).await.expect("an answer");
    assert_eq!((stats.pending, stats.oldest_age_ms), (2, 0));
    assert!(stats.head_wait_ms > 0);
    courier.shutdown(Duration::from_secs(5)).await;
    let _: u64 = t.ask(&format!("DEL {}", t.key("q", "s"))).await;
    let _: u64 = t.ask(&format!("ZREM {} s", t.key("w", ""))).await;
    t.finish().await;
}
