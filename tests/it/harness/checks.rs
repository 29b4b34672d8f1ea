//! Checks that never fail prove nothing: each is shown to fail.

use std::time::{Duration, Instant};

use futures_util::FutureExt;

use crate::support::capture::Capture;
use crate::support::resp::frame_len;
use crate::support::supervisor::AtTheEnd;
use crate::support::{leaks, names, server, wait::wait_until};

#[tokio::test]
async fn the_leak_check_finds_a_key_without_ttl_and_spares_the_indexes() {
    let server = server::plain().await;
    let mut raw = server.raw().await;
    let prefix = names::prefix("leak_check");
    for index in ["s", "w"] {
        redis::cmd("HSET")
            .arg(format!("{prefix}:{{0}}:{index}"))
            .arg("f")
            .arg("v")
            .exec_async(&mut raw)
            .await
            .expect("HSET");
    }
    let set = redis::cmd("SET").arg(format!("{prefix}:{{0}}:d:x")).arg(1).arg("PX").arg(60_000).clone();
    set.exec_async(&mut raw).await.expect("SET");
    leaks::assert_clean(&mut raw, &prefix).await;
    let all = leaks::keys(&mut raw, &prefix).await;
    assert_eq!(all.len(), 3, "{all:?}");
    // What only looks like an index is none.
    for leaked in [":{0}:q:s", ":{0}:x:w", ":{0}:n", ":s"] {
        let key = format!("{prefix}{leaked}");
        redis::cmd("SET").arg(&key).arg(1).exec_async(&mut raw).await.expect("SET");
        let check = std::panic::AssertUnwindSafe(leaks::assert_clean(&mut raw, &prefix)).catch_unwind().await;
        let said = *check.expect_err("the leak is found").downcast::<String>().expect("a message");
        assert!(said.contains(&key), "{said}");
        redis::cmd("DEL").arg(&key).exec_async(&mut raw).await.expect("DEL");
    }
    let names: Vec<_> = leaks::keys(&mut raw, &prefix).await.into_iter().map(|k| k.name).collect();
    redis::cmd("DEL").arg(names).exec_async(&mut raw).await.expect("DEL");
}

#[tokio::test]
async fn a_wait_in_vain_ends_and_says_what_was_seen() {
    let begin = Instant::now();
    let wait = wait_until::<(), _>("the moon", Duration::from_millis(50), || async { Err("clouds".into()) });
    let said = *std::panic::AssertUnwindSafe(wait)
        .catch_unwind()
        .await
        .expect_err("it ends")
        .downcast::<String>()
        .expect("a message");
    assert!(said.contains("the moon") && said.contains("clouds"), "{said}");
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_process_that_is_left_is_found_by_its_marker() {
    let marker = names::unique("marker");
    let sleeper = AtTheEnd::run("true", &[&marker]).expect("sh");
    wait_until("the process to show", Duration::from_secs(5), || async {
        if leaks::processes_with(&marker).is_empty() { Err("none".into()) } else { Ok(()) }
    })
    .await;
    drop(sleeper);
    leaks::assert_no_process(&marker).await;
}

#[tokio::test]
async fn what_is_logged_is_captured_with_its_spans() {
    let logged = Capture::start();
    let span = tracing::info_span!("outer", session = "s-1");
    span.in_scope(|| tracing::debug!(attempt = 3, "trying"));
    tokio::spawn(async { tracing::warn!("from a task") }).await.expect("no panic");
    assert_eq!(logged.lines_with(&["DEBUG", "s-1", "attempt=3", "trying"]).len(), 1, "{}", logged.text());
    assert_eq!(logged.lines_with(&["WARN", "from a task"]).len(), 1, "{}", logged.text());
}

#[test]
fn frames_are_cut_where_they_end() {
    let whole: [&[u8]; 14] = [
        b"+OK\r\n",
        b"-ERR no\r\n",
        b":12\r\n",
        b"_\r\n",
        b"$3\r\na\r\n\r\n",
        b"$0\r\n\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
        b"%1\r\n+k\r\n,1.5\r\n",
        b">3\r\n+message\r\n$1\r\nc\r\n$2\r\nhi\r\n",
        b"=7\r\ntxt:abc\r\n",
        b"~1\r\n#t\r\n",
    ];
    for frame in whole {
        let mut bytes = frame.to_vec();
        bytes.extend_from_slice(b"+NEXT");
        assert_eq!(frame_len(&bytes), Some(frame.len()), "{:?}", String::from_utf8_lossy(frame));
        for end in 0..frame.len() {
            assert_eq!(frame_len(&frame[..end]), None, "{:?}", String::from_utf8_lossy(&frame[..end]));
        }
    }
    assert_eq!(frame_len(b"\x16\x03\x01\x02\r\n"), Some(0), "TLS is no RESP");
}
