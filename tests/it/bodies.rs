//! Bodies are opaque bytes at every hop; their size is limited and one large one holds up nobody for long.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mcp_courier::{Error, MessageId, Push, SinkError};

use crate::lua;
use crate::support::fixture::{Fixture, Recorder, push, session, wait_pending};
use crate::support::wait::wait_until;

/// What JSON tools, Lua and text handling are known to spoil, by name.
fn hostile() -> Vec<(&'static str, Vec<u8>)> {
    let nested = |open: &str, close: &str| (open.repeat(1200) + &close.repeat(1200)).into_bytes();
    vec![
        ("empty-array", b"[]".to_vec()),
        ("empty-object", b"{}".to_vec()),
        ("empty-both", br#"{"a":[],"b":{},"c":[[]]}"#.to_vec()),
        (
            "beyond-2-53",
            b"[9007199254740993,-9007199254740993,18446744073709551616,123456789012345678]".to_vec(),
        ),
        ("negative-zero", b"-0.0".to_vec()),
        ("beyond-double", b"[1e400,-1e400,1e-400]".to_vec()),
        ("same-member-twice", br#"{"a":1,"a":2,"b":3,"a":4}"#.to_vec()),
        ("spaces", b" { \"b\" : 1 ,\r\n\t\"a\" : 2 } \n".to_vec()),
        ("nested-arrays", nested("[", "]")),
        ("nested-objects", nested("{\"a\":", "}")),
        ("text", "Grüße, 世界 🦀 e\u{301} \u{feff}\u{2028}".as_bytes().to_vec()),
        ("escapes", br#""\u0000\ud83e\udd80\/\"""#.to_vec()),
        ("nul", b"\0a\0\0b\0".to_vec()),
        ("invalid-utf8", b"\xff\xfe\xc0\x80\xed\xa0\x80\xf5".to_vec()),
        ("every-byte", (0..=255).collect()),
        ("line-breaks", b"\r\n\n\r$5\r\nhello\r\n*1\r\n".to_vec()),
        ("like-a-record", b"1 1 1 0 0 1 0 0 0 0\nabody".to_vec()),
        ("like-a-dead-letter", b"1 1 8\nattempts".to_vec()),
        ("percent", b"%s%d%%1$s%n".to_vec()),
        ("empty", Vec::new()),
        ("a-mebibyte", (0..1_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect()),
    ]
}

/// Pushed, delivered, failed twice with a pause, dead, read, put back, dead again, put back, delivered: the same bytes
/// each time, in the sink, in the dead letters and in Redis.
#[tokio::test]
async fn f01_a_body_keeps_its_bytes_at_every_hop() {
    let t = Fixture::new("f01").await;
    let courier = t.connect(t.builder().backoff(Duration::from_millis(1))).await;
    let sinks: HashMap<_, _> = hostile()
        .into_iter()
        .map(|(name, body)| {
            // Two lives end in the dead letters; the third one succeeds.
            let calls = AtomicUsize::new(0);
            let sink = Recorder::answering(move |d| match calls.fetch_add(1, Ordering::Relaxed) {
                0..6 => Err(SinkError::retry(format!("failure {}", d.attempt))),
                _ => Ok(()),
            });
            (name, (session(name), body, sink))
        })
        .collect();
    for (s, body, sink) in sinks.values() {
        courier
            .push(Push::new(s, body.clone()).id(MessageId::new("m").expect("valid")))
            .await
            .expect("queued");
        courier.subscribers().ensure_running(s, sink.clone()).await.expect("claimed");
    }
    for round in 1..=2 {
        for (name, (s, body, sink)) in &sinks {
            sink.wait_for(round * 3).await;
            let dead = courier.dead_letters(s);
            let letter = wait_until(&format!("{name} is dead"), Duration::from_secs(10), || async {
                let (_, mut letters) = dead.list(0, 10).await.expect("listed");
                letters.pop().ok_or_else(|| "not yet".to_owned())
            })
            .await;
            assert!(letter.body == *body, "{name}: the dead letter has other bytes");
            assert_eq!((letter.attempts, &*letter.last_error), (3, "failure 3"));
            let mut stored = redis::cmd("LINDEX");
            let stored: Vec<u8> = t.send(stored.arg(t.key("dead", name)).arg(0)).await;
            assert!(stored.ends_with(body), "{name}: stored with other bytes");
            assert_eq!(dead.requeue(None).await, Ok(1));
        }
    }
    for (name, (_, body, sink)) in &sinks {
        sink.wait_for(7).await;
        assert!(sink.seen().iter().all(|d| d.body() == body), "{name}: delivered with other bytes");
        assert_eq!(sink.seen().iter().map(|d| d.attempt).collect::<Vec<_>>(), [1, 2, 3, 1, 2, 3, 1]);
    }
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The same bodies in one queue, batch by batch, with all the other fields of a record filled with bytes of their own.
#[tokio::test]
async fn bodies_stay_apart_from_each_other_and_from_the_rest_of_their_record() {
    let t = Fixture::new("bodies_apart").await;
    let courier = t.courier().await;
    let s = session("s");
    for (n, (name, body)) in hostile().into_iter().enumerate() {
        let message = Push::new(&s, body).id(MessageId::new(format!("{name}\n{n}")).expect("valid"));
        courier
            .push(message.trace(format!("trace\0{n}\n")).coalesce(format!("key {n}\n1 ")))
            .await
            .expect("queued");
    }
    let sink =
        Recorder::answering(|d| if d.attempt == 1 { Err(SinkError::retry("a\nb\0c")) } else { Ok(()) });
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    let hostile = hostile();
    sink.wait_for(2 * hostile.len()).await;
    for (n, pair) in sink.seen().chunks(2).enumerate() {
        let (name, body) = &hostile[n];
        for d in pair {
            assert!(d.body() == body, "{name}");
            assert_eq!(d.id.as_str(), format!("{name}\n{n}"));
            assert_eq!(d.trace(), format!("trace\0{n}\n").as_bytes());
            assert_eq!(d.coalesce_key(), format!("key {n}\n1 ").as_bytes());
        }
    }
    wait_pending(&courier, &s, 0).await;
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Up to the limit intact; beyond it an error that names both sizes, before anything is sent.
#[tokio::test]
async fn f51_sizes_up_to_the_limit_arrive_and_larger_ones_are_refused_by_size() {
    let t = Fixture::new("f51_sizes").await;
    let limit = 1 << 20;
    let courier = t.connect(t.builder().max_body_bytes(limit)).await;
    let s = session("s");
    for size in [limit + 1, 64 << 20] {
        let refused = courier.push(Push::new(&s, vec![0; size])).await.expect_err("too large");
        assert_eq!(refused, Error::TooLarge { what: "body", actual: size, limit });
        assert!(!refused.is_retryable());
    }
    assert_eq!(t.keys().await, [], "nothing was written");
    assert_eq!(courier.metrics().refused_size, 2);

    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    let sizes = [0, 1, limit - 1, limit];
    for size in sizes {
        courier.push(Push::new(&s, vec![b'x'; size])).await.expect("queued");
    }
    sink.wait_for(sizes.len()).await;
    assert!(sink.seen().iter().zip(sizes).all(|(d, size)| d.body().len() == size));
    wait_pending(&courier, &s, 0).await;
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A fetch is bounded in bytes: what is large goes alone, and the small ones around it are at most a batch away.
#[tokio::test]
async fn f51_a_batch_is_capped_by_bytes_and_a_large_message_travels_alone() {
    let t = Fixture::new("f51_batch").await;
    let worker = t.courier().await;
    let s = session("s");
    let sizes = [10, 10, 10, 1 << 20, 10, 10, 40_000, 40_000, 10];
    for (n, size) in sizes.into_iter().enumerate() {
        let id = MessageId::new(n.to_string()).expect("valid");
        worker.push(Push::new(&s, vec![b'x'; size]).id(id)).await.expect("queued");
    }
    let claimed =
        lua::told(&t, "claim", &["s", "n", "q:s"], &["tester", "take", "none:", "PUBLISH", "s"]).await;
    let epoch = claimed.trim_matches(['[', ']']).split(' ').nth(1).expect("an epoch").to_owned();

    // Every fetch acks what the one before answered. The byte cap is 64 KiB.
    let (mut batches, mut last) = (Vec::new(), Vec::<String>::new());
    while batches.iter().map(Vec::len).sum::<usize>() < sizes.len() {
        let count = last.len().to_string();
        let mut args = vec!["tester", "3", "10", "1000", "fifo", "65536", "s", &epoch, "64", &count];
        args.extend(last.iter().map(String::as_str));
        let args: Vec<&[u8]> = args.into_iter().map(str::as_bytes).collect();
        let reply = lua::call(&t, "ack", &["s", "w", "q:s", "dead:s"], &args).await.expect("fetched");
        let redis::Value::Array(mut replies) = reply else { panic!("{reply:?}") };
        let Some(redis::Value::Array(fields)) = replies.pop() else { panic!("{replies:?}") };
        last = fields[5..]
            .iter()
            .map(|record| match record {
                redis::Value::BulkString(bytes) => lua::receipt(bytes),
                other => panic!("{other:?}"),
            })
            .collect();
        let batch: Vec<usize> = fields[5..]
            .iter()
            .map(|record| match record {
                redis::Value::BulkString(bytes) => bytes.iter().filter(|b| **b == b'x').count(),
                other => panic!("{other:?}"),
            })
            .collect();
        batches.push(batch);
    }
    let expected: [&[usize]; 4] = [&[10, 10, 10], &[1 << 20], &[10, 10, 40_000], &[40_000, 10]];
    assert_eq!(batches, expected);

    // And the same through the courier: in order, whole.
    let courier = t.connect(t.builder().batch_bytes(65_536)).await;
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    wait_pending(&courier, &s, 0).await;
    assert_eq!(sink.seen().iter().map(|d| d.body().len()).collect::<Vec<_>>(), [40_000, 10]);
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Many sessions in one call share its byte cap: those that find it used up are served by the next call.
#[tokio::test]
async fn f51_sessions_that_share_a_call_are_all_served_whatever_its_byte_cap() {
    let t = Fixture::new("f51_shared").await;
    let courier = t.connect(t.builder().batch_bytes(1000)).await;
    let sinks: Vec<_> = (0..20).map(|n| (session(&format!("s{n}")), Recorder::new())).collect();
    for (s, _) in &sinks {
        for n in 0..5 {
            courier.push(Push::new(s, vec![b'a' + n; 900])).await.expect("queued");
        }
    }
    for (s, sink) in &sinks {
        courier.subscribers().ensure_running(s, sink.clone()).await.expect("claimed");
    }
    for (s, sink) in &sinks {
        sink.wait_for(5).await;
        wait_pending(&courier, s, 0).await;
        assert_eq!(sink.seen().iter().map(|d| d.body()[0]).collect::<Vec<_>>(), b"abcde");
    }
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A record that travels in the doorbell and one that is fetched arrive alike, on both sides of the limit.
#[tokio::test]
async fn a_message_arrives_alike_on_both_sides_of_the_handoff_limit() {
    let t = Fixture::new("handoff").await;
    let courier = t.courier().await;
    let s = session("s");
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    for (n, size) in (16_200..16_400).step_by(10).enumerate() {
        let body: Vec<u8> = (0..size).map(|b| (b % 251) as u8).collect();
        courier.push(Push::new(&s, body.clone())).await.expect("queued");
        sink.wait_for(n + 1).await;
        assert!(sink.seen()[n].body() == body, "{size} bytes");
        wait_pending(&courier, &s, 0).await;
    }
    assert_eq!(courier.metrics().suppressed, 0);

    // And with no handoff at all.
    let plain = t.connect(t.builder().handoff_bytes(0)).await;
    plain.push(push(&s, "x")).await.expect("queued");
    assert_eq!(sink.wait_for(21).await[20], "x");
    wait_pending(&courier, &s, 0).await;
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}
