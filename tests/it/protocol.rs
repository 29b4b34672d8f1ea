//! `docs/protocol.md` is enough: producers and consumers that know nothing but that page and the Lua files.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use mcp_courier::SessionId;
use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::process::Command;

use crate::support::fixture::{Fixture, Recorder, push, session, wait_pending};
use crate::support::private::{Options, private_or_skip};

const PAGE: &str = include_str!("../../docs/protocol.md");

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// The text of a block in the page, found by the comment in front of it.
pub fn block(mark: &str) -> String {
    let mark = format!("<!-- test: {mark} -->\n");
    let (_, rest) = PAGE.split_once(&mark).unwrap_or_else(|| panic!("no {mark} in docs/protocol.md"));
    let (_, rest) = rest.split_once('\n').expect("an opening fence");
    rest.split_once("\n```").expect("a closing fence").0.to_owned()
}

/// A script's text as the page tells to put it together.
fn assemble(name: &str) -> String {
    let read = |file: String| std::fs::read_to_string(repository().join(&file)).expect(&file);
    let own = read(format!("lua/{name}.lua"));
    let uses = own.lines().find_map(|l| l.strip_prefix("-- Uses ")).unwrap_or_default().trim();
    let libraries: String =
        uses.split(", ").filter(|f| !f.is_empty()).map(|f| read(format!("lua/{f}"))).collect();
    libraries + &own
}

/// A client of its own make: loads a script, calls it by its digest.
async fn call(raw: &mut MultiplexedConnection, name: &str, keys: &[String], args: &[&[u8]]) -> Vec<Value> {
    let sha: String =
        redis::cmd("SCRIPT").arg("LOAD").arg(assemble(name)).query_async(raw).await.expect("loaded");
    let mut cmd = redis::cmd("EVALSHA");
    cmd.arg(sha).arg(keys.len()).arg(keys).arg(args);
    match cmd.query_async(raw).await.unwrap_or_else(|e| panic!("{name}: {e}")) {
        Value::Array(items) => items,
        bare => vec![bare],
    }
}

fn text(v: &Value) -> String {
    match v {
        Value::BulkString(b) => String::from_utf8_lossy(b).into_owned(),
        Value::SimpleString(s) => s.clone(),
        Value::Int(n) => n.to_string(),
        other => panic!("{other:?}"),
    }
}

fn array(v: &Value) -> &[Value] {
    match v {
        Value::Array(items) => items,
        other => panic!("{other:?}"),
    }
}

fn texts(items: &[Value]) -> Vec<String> {
    items.iter().map(text).collect()
}

/// Keys and arguments of `push` as the table lists them.
fn push_call(t: &Fixture, sid: &str, id: &str, body: &[u8]) -> (Vec<String>, Vec<Vec<u8>>) {
    let keys = vec![t.key("s", ""), t.key("w", ""), t.key("q", sid), t.key("d", &format!("{sid}:{id}"))];
    let inboxes = format!("{}:{{0}}:c:", t.prefix);
    let fixed = ["1000", &inboxes, "PUBLISH", "16384"];
    let words = ["", "300000 60000 10000 refuse", "traceparent"];
    let mut args: Vec<_> = fixed.iter().map(|w| w.as_bytes().to_vec()).collect();
    args.extend([sid.as_bytes().to_vec(), id.as_bytes().to_vec(), body.to_vec()]);
    args.extend(words.iter().map(|w| w.as_bytes().to_vec()));
    (keys, args)
}

/// The status, and how many are pending.
async fn push_by_hand(t: &mut Fixture, sid: &str, id: &str, body: &[u8]) -> (String, i64) {
    let (keys, args) = push_call(t, sid, id, body);
    let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
    match &call(&mut t.raw, "push", &keys, &args).await[..] {
        [Value::Int(pending)] => ("queued".into(), *pending),
        [Value::Array(one)] => match &one[..] {
            [word, Value::Int(pending), _] => (text(word), *pending),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// EVALSHA alone: any bytes under a hostile session id arrive as they were pushed, once.
#[tokio::test]
async fn a_producer_that_only_knows_the_page_is_delivered_byte_for_byte() {
    let mut t = Fixture::plain("evalsha_producer").await;
    let courier = t.courier().await;
    let s = SessionId::new("a:{b} %\u{e9}").expect("valid");
    let sid = "a%3A%7Bb%7D%20%25%C3%A9";
    let body = b"\0\xff[] {} 9007199254740993\n";
    assert_eq!(push_by_hand(&mut t, sid, "m-1", body).await, ("queued".into(), 1));
    assert_eq!(push_by_hand(&mut t, sid, "m-1", body).await, ("duplicate".into(), 1));
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    sink.wait_for(1).await;
    wait_pending(&courier, &s, 0).await;
    let seen = sink.seen();
    assert_eq!((seen.len(), seen[0].body(), seen[0].id.as_str()), (1, &body[..], "m-1"));
    assert_eq!(seen[0].trace(), b"traceparent");
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// What `LRANGE` shows is the record of the page: ten numbers, a newline, the strings, the body.
#[tokio::test]
async fn a_stored_record_is_as_the_page_writes_it_down() {
    let mut t = Fixture::plain("record").await;
    let courier = t.courier().await;
    let s = session("s");
    let pushed = courier.push(push(&s, "body").coalesce("key").trace("tr")).await.expect("queued");
    let stored: Vec<String> =
        redis::cmd("LRANGE").arg(t.key("q", "s")).arg(0).arg(-1).query_async(&mut t.raw).await.expect("read");
    let (line, strings) = stored[0].split_once('\n').expect("a first line");
    let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().expect("a number")).collect();
    let id = pushed.id.as_str();
    assert_eq!(numbers.len(), 10);
    assert_eq!((numbers[0], numbers[2] - numbers[1]), (1, 300_000), "format, and the default time to live");
    assert_eq!(numbers[3..], [0, 0, id.len() as u64, 3, 2, 0, 0]);
    assert_eq!(strings, format!("{id}keytrbody"));

    // The example of the page, its times moved to now.
    let example = block_after("as `LRANGE` shows it").replace("\\n", "\n");
    assert_eq!(example.len(), 56 + 16 + 2);
    let now = numbers[1];
    let example = example
        .replace("1700000000000", &now.to_string())
        .replace("1700000300000", &(now + 300_000).to_string());
    let () = redis::cmd("LPUSH")
        .arg(t.key("q", "s"))
        .arg(&example)
        .query_async(&mut t.raw)
        .await
        .expect("put in front");
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(2).await, ["{}", "body"]);
    let seen = sink.seen();
    assert_eq!((seen[0].id.as_str(), seen[0].attempt), ("order-42", 2));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// Records as the first release wrote them, byte for byte: whatever comes later reads them. A change of these bytes is a new
/// format, which gets a list of its own; this one stays.
const FORMAT_1: [(&[u8], Option<&str>); 5] = [
    (b"1 1700000000000 4102444800000 0 0 1 0 0 0 0\na{}", Some("a")),
    // Every string, a body of any bytes.
    (b"1 1700000000000 4102444800000 0 0 3 2 2 0 0\nb:\n{}tr\0\xff\n1 2 3", Some("b:\n")),
    // It failed twice, and its pause is over.
    (b"1 1700000000000 4102444800000 2 1700000000200 1 0 0 5 6\ncfirstsecond[]", Some("c")),
    // Its time is over.
    (b"1 1700000000000 1700000300000 0 0 1 0 0 0 0\ndlate", None),
    // No body at all.
    (b"1 1700000000000 4102444800000 0 0 1 0 0 0 0\ne", Some("e")),
];

/// A dead letter of the first release, with the third of these records.
const DEAD_1: &[u8] =
    b"1 1700000000300 8\nattempts1 1700000000000 4102444800000 3 1700000000200 1 0 0 5 6\nxfirstsecond[]";

/// What an older release left in Redis is delivered, expired, listed and put back by this one.
#[tokio::test]
async fn records_of_the_first_format_are_read_byte_for_byte() {
    let mut t = Fixture::plain("golden").await;
    let courier = t.connect(t.builder().max_attempts(9)).await;
    let s = session("s");
    for (record, _) in FORMAT_1 {
        let () =
            redis::cmd("RPUSH").arg(t.key("q", "s")).arg(record).query_async(&mut t.raw).await.expect("put");
    }
    let () =
        redis::cmd("RPUSH").arg(t.key("dead", "s")).arg(DEAD_1).query_async(&mut t.raw).await.expect("put");
    let () = t.ask(&format!("PEXPIRE {} 600000", t.key("dead", "s"))).await;
    let dead = courier.dead_letters(&s);
    let (total, letters) = dead.list(0, 10).await.expect("listed");
    let letter = &letters[0];
    assert_eq!((total, &*letter.id, &*letter.reason, letter.attempts), (1, "x", "attempts", 3));
    assert_eq!((&letter.body[..], letter.died_at_ms), (&b"[]"[..], 1_700_000_000_300));

    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    sink.wait_for(4).await;
    wait_pending(&courier, &s, 0).await;
    assert_eq!(dead.requeue(None).await, Ok(1));
    sink.wait_for(5).await;
    wait_pending(&courier, &s, 0).await;
    let seen = sink.seen();
    let ids: Vec<&str> = seen.iter().map(|d| d.id.as_str()).collect();
    let expected: Vec<&str> = FORMAT_1.iter().filter_map(|(_, id)| *id).chain(["x"]).collect();
    assert_eq!(ids, expected);
    let bodies: Vec<&[u8]> = seen.iter().map(|d| d.body()).collect();
    assert_eq!(bodies, [&b"{}"[..], b"\0\xff\n1 2 3", b"[]", b"", b"[]"]);
    assert_eq!(seen.iter().map(|d| d.attempt).collect::<Vec<_>>(), [1, 1, 3, 1, 1]);
    assert_eq!((seen[1].trace(), courier.metrics().expired), (&b"tr"[..], 1));
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The block that follows a sentence.
fn block_after(words: &str) -> String {
    let (_, rest) = PAGE.split_once(words).expect("the sentence");
    let (_, rest) = rest.split_once("```text\n").expect("a block");
    rest.split_once("\n```").expect("its end").0.to_owned()
}

/// A consumer with EVALSHA alone claims, fetches, acks and gives back, beside a courier that pushes.
#[tokio::test]
async fn a_consumer_that_only_knows_the_page_claims_pops_and_acks() {
    let mut t = Fixture::plain("evalsha_consumer").await;
    let courier = t.courier().await;
    let s = session("s");
    for body in ["a", "b", "c"] {
        courier.push(push(&s, body)).await.expect("queued");
    }
    let (q, dead) = (t.key("q", "s"), t.key("dead", "s"));
    let (owners, waiting, nodes) = (t.key("s", ""), t.key("w", ""), t.key("n", ""));
    let inboxes = format!("{}:{{0}}:c:", t.prefix);
    let (inboxes, sn) = (inboxes.as_bytes(), [owners.clone(), nodes.clone()]);
    let raw = &mut t.raw;

    let beat: [&[u8]; 5] = [b"mine", b"10000", inboxes, b"PUBLISH", b"1"];
    let answer = call(raw, "heartbeat", &sn, &beat).await;
    assert_eq!(
        (&texts(&answer[..2])[..], array(&answer[3]).len()),
        (&["0".to_owned(), "0".to_owned()][..], 0)
    );
    let claim_keys = [owners.clone(), nodes.clone(), q.clone()];
    let claimed = call(raw, "claim", &claim_keys, &[b"mine", b"take", inboxes, b"PUBLISH", b"s"]).await;
    let claimed = texts(array(&claimed[0]));
    assert_eq!((&*claimed[0], &*claimed[2]), ("claimed", "3"));
    let epoch = claimed[1].as_bytes();

    let pop_keys = [owners.clone(), waiting.clone(), nodes.clone(), q.clone(), dead.clone()];
    let settings: [&[u8]; 8] = [b"mine", b"10000", b"1000", b"3", b"1000", b"60000", b"fifo", b"1048576"];
    let pop = [&settings[..], &[b"s", epoch, b"2"]].concat();
    let popped = call(raw, "pop", &pop_keys, &pop).await;
    let popped = texts(array(&popped[0]));
    assert_eq!(popped[..5], ["ok", "0", "0", "0", "0"]);
    let receipts: Vec<String> = popped[5..].iter().map(|r| receipt_of(r)).collect();
    assert_eq!(popped[5..].iter().map(|r| &r[r.len() - 1..]).collect::<Vec<_>>(), ["a", "b"]);

    // The first was delivered, the second failed: ack, then requeue with no delay worth mentioning.
    let ack_keys = [owners.clone(), waiting.clone(), q.clone(), dead.clone()];
    let settings: [&[u8]; 6] = [b"mine", b"3", b"1000", b"60000", b"fifo", b"1048576"];
    let ack = [&settings[..], &[b"s", epoch, b"0", b"1", receipts[0].as_bytes()]].concat();
    let acked = call(raw, "ack", &ack_keys, &ack).await;
    assert_eq!(texts(array(&acked[0])), ["ok", "0", "1", "0", "0"]);
    let failed: [&[u8]; 11] = [
        b"mine",
        epoch,
        b"s",
        receipts[1].as_bytes(),
        b"1",
        b"3",
        b"1",
        b"not now",
        b"fifo",
        b"1000",
        b"60000",
    ];
    let requeued = call(raw, "requeue", &[owners.clone(), waiting.clone(), q, dead], &failed).await;
    assert_eq!(texts(&requeued)[..2], ["requeued", "1"]);
    let again = wait_ready(raw, &pop_keys, &pop).await;
    assert_eq!(again.len(), 2);
    assert_eq!(again[0].split(' ').nth(3), Some("1"), "one counted attempt");

    // The ack of both carries what comes next, which is nothing.
    let (first, last) = (receipt_of(&again[0]), receipt_of(&again[1]));
    let ack = [&settings[..], &[b"s", epoch, b"9", b"2", first.as_bytes(), last.as_bytes()]].concat();
    let acked = call(raw, "ack", &ack_keys, &ack).await;
    assert_eq!(texts(&acked), ["2"]);
    assert_eq!(texts(&call(raw, "release", &[owners], &[b"mine", b"s", epoch]).await), ["released"]);
    assert_eq!(texts(&call(raw, "leave", &[nodes], &[b"mine"]).await), ["1"]);
    assert_eq!(courier.stats(&s).await.expect("stats").owner, None);
    t.finish().await;
}

/// The records of a pop, once the head may be tried again.
async fn wait_ready(raw: &mut MultiplexedConnection, keys: &[String], args: &[&[u8]]) -> Vec<String> {
    let end = tokio::time::Instant::now() + Duration::from_secs(10);
    loop {
        let popped = call(raw, "pop", keys, args).await;
        let popped = texts(array(&popped[0]));
        if popped.len() > 5 {
            return popped[5..].to_vec();
        }
        assert!(tokio::time::Instant::now() < end, "the head is never ready: {popped:?}");
        tokio::time::sleep(Duration::from_millis(popped[1].parse().expect("wait_ms"))).await;
    }
}

/// A record up to the end of its id, by its lengths.
fn receipt_of(record: &str) -> String {
    let (line, strings) = record.split_once('\n').expect("a first line");
    let numbers: Vec<&str> = line.split(' ').collect();
    let length: usize = numbers[5].parse().expect("the id's length");
    format!("{line}\n{}", &strings[..length])
}

/// Whether a program of the test's machine does what it should; says so when it does not.
async fn there(program: &str, args: &[&str]) -> bool {
    let status = Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status().await;
    let there = status.is_ok_and(|s| s.success());
    if !there {
        eprintln!("skipped: `{program} {}` does not run here", args.join(" "));
    }
    there
}

fn server_is_over_tcp(t: &Fixture) -> bool {
    let tcp = t.server.url().starts_with("redis://");
    if !tcp {
        eprintln!("skipped: another program cannot reach {}", t.server.url());
    }
    tcp
}

async fn output(mut command: Command) -> String {
    let out = command.current_dir(repository()).output().await.expect("it starts");
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{stdout}{stderr}");
    stdout.into_owned()
}

/// The shell block of the page, as it stands there, with redis-cli and nothing else.
#[tokio::test]
async fn a_push_with_redis_cli_alone_is_delivered() {
    let t = Fixture::plain("redis_cli").await;
    if !server_is_over_tcp(&t) || !there("redis-cli", &["--version"]).await {
        return;
    }
    let courier = t.courier().await;
    let scratch = tempfile::tempdir().expect("a directory");
    let assembled = scratch.path().join("push.lua").display().to_string();
    let script = block("redis-cli")
        .replace(" push.lua", &format!(" {assembled}"))
        .replace("redis-cli ", &format!("redis-cli -u {} ", t.server.url()))
        .replace("'courier:", &format!("'{}:", t.prefix));
    let mut sh = Command::new("sh");
    sh.arg("-ec").arg(script);
    assert_eq!(output(sh).await.split_whitespace().collect::<Vec<_>>(), ["1"]);

    let sink = Recorder::new();
    let s = session("session-1");
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    sink.wait_for(1).await;
    let delivery = &sink.seen()[0];
    assert_eq!(delivery.id.as_str(), "order-42");
    assert_eq!(delivery.notification().expect("a notification").method, "notifications/message");
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The Python block of the page, as it stands there, where redis-py is installed.
#[tokio::test]
async fn a_push_with_redis_py_alone_is_delivered() {
    let t = Fixture::plain("redis_py").await;
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    if !server_is_over_tcp(&t) || !there(&python, &["-c", "import redis"]).await {
        return;
    }
    let courier = t.courier().await;
    let s = SessionId::new("sitzung {7}: \u{fc}ber").expect("valid");
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    let mut program = Command::new(python);
    program.arg("-c").arg(block("redis-py")).arg(t.server.url()).arg(&t.prefix).arg(s.as_str());
    assert_eq!(output(program).await.lines().count(), 3);
    let bodies = sink.wait_for(3).await;
    for (n, body) in bodies.iter().enumerate() {
        assert_eq!(*body, format!(r#"{{"method":"notifications/progress","params":{{"progress":{n}}}}}"#));
    }
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// The words of an ACL rule without the commands that this server does not have: naming one is an error.
pub async fn known_rules<'a>(
    raw: &mut MultiplexedConnection,
    words: impl Iterator<Item = &'a str>,
) -> Vec<&'a str> {
    let mut known = Vec::new();
    for word in words {
        let there = match word.strip_prefix('+') {
            // Before 7.0 a server does not know the parts of a command by name: it is tried.
            Some("client|setinfo") => {
                let mut setinfo = redis::cmd("CLIENT");
                setinfo.arg("SETINFO").arg("LIB-NAME").arg("test").exec_async(raw).await.is_ok()
            }
            Some(name) if !name.contains(['|', '@']) => {
                let info: Vec<Value> =
                    redis::cmd("COMMAND").arg("INFO").arg(name).query_async(raw).await.expect("COMMAND");
                info != [Value::Nil]
            }
            _ => true,
        };
        if there {
            known.push(word);
        }
    }
    known
}

/// A user with the rights of the page can do everything: push, claim, fail, bury, revive, look, leave.
#[tokio::test]
async fn a_user_with_the_listed_rights_can_do_everything() {
    let Some(server) = private_or_skip("rights", Options::default()).await else { return };
    let mut raw = server.raw().await;
    let rights = block("acl");
    let mut acl = redis::cmd("ACL");
    acl.arg("SETUSER").arg(known_rules(&mut raw, rights.split_whitespace().skip(1)).await);
    let () = acl.query_async(&mut raw).await.expect("every rule of the page is one");

    let url = server.url().replace("redis://", "redis://courier:password@");
    let builder = mcp_courier::Courier::builder()
        .backoff(Duration::from_millis(5))
        .look_again(Duration::from_millis(100))
        .heartbeat(Duration::from_millis(100))
        .node_grace(Duration::from_millis(1));
    let courier = builder.connect(&url).await.expect("connects with these rights");
    let s = session("s");
    let sink = Recorder::answering(|d| match d.body() {
        b"bad" => Err(mcp_courier::SinkError::retry("no")),
        _ => Ok(()),
    });
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    for body in ["good", "bad", "end"] {
        courier.push(push(&s, body).coalesce(body)).await.expect("queued");
    }
    assert_eq!(sink.wait_for(5).await, ["good", "bad", "bad", "bad", "end"]);
    wait_pending(&courier, &s, 0).await;
    assert_eq!(courier.dead_letters(&s).requeue(None).await, Ok(1));
    sink.wait_for(8).await;
    wait_pending(&courier, &s, 0).await;
    assert_eq!(courier.dead_letters(&s).purge(None).await, Ok(1));
    courier.overview(10).await.expect("a look");
    assert!(courier.health().is_healthy(), "{:?}", courier.health());
    assert_eq!(courier.shutdown(Duration::from_secs(5)).await.abandoned, 0);
    let refused: Vec<Value> =
        redis::cmd("ACL").arg("LOG").query_async(&mut raw).await.expect("the log of refusals");
    // Optional, and always tried by the client.
    let refused: Vec<_> = refused.iter().filter(|entry| !format!("{entry:?}").contains("client")).collect();
    assert!(refused.is_empty(), "{refused:?}");
}
