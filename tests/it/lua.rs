//! Calls a Lua file as a program in another language would: the text with its shared lines in front, keys, arguments.

use redis::{RedisResult, Value};

use crate::support::fixture::Fixture;

/// A script's text, put together from what its header says it uses.
fn source(name: &str) -> String {
    let lua = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
    let read = |file: &str| std::fs::read_to_string(lua.join(file)).expect("a script of ours");
    let script = read(&format!("{name}.lua"));
    let uses =
        script.lines().filter(|line| line.starts_with("-- Uses")).flat_map(|line| line.split([' ', ',']));
    let shared: String = uses.filter(|word| word.starts_with("lib/")).map(read).collect();
    shared + &script
}

/// Runs a script; `keys` are named as in its header (`s`, `q:<sid>`), `args` are whatever converts to bytes.
pub(crate) async fn call(t: &Fixture, name: &str, keys: &[&str], args: &[&[u8]]) -> RedisResult<Value> {
    let mut cmd = redis::cmd("EVAL");
    cmd.arg(source(name)).arg(keys.len());
    for key in keys {
        cmd.arg(t.key(key, ""));
    }
    for arg in args {
        cmd.arg(*arg);
    }
    cmd.query_async(&mut t.raw.clone()).await
}

/// A reply as text: arrays in brackets, in order.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::Int(n) => n.to_string(),
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Okay => "OK".to_owned(),
        Value::Array(items) => format!("[{}]", items.iter().map(text).collect::<Vec<_>>().join(" ")),
        other => format!("{other:?}"),
    }
}

/// The same call, its reply as text.
pub(crate) async fn told(t: &Fixture, name: &str, keys: &[&str], args: &[&str]) -> String {
    let args: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
    text(&call(t, name, keys, &args).await.expect("the script runs"))
}

/// What a record is acked by: its beginning up to the end of its id.
pub(crate) fn receipt(record: &[u8]) -> String {
    let end = record.iter().position(|b| *b == b'\n').expect("a first line");
    let line: Vec<_> = std::str::from_utf8(&record[..end]).expect("text").split(' ').collect();
    let id = &record[end + 1..][..line[5].parse::<usize>().expect("a length")];
    format!("{}\n{}", line.join(" "), String::from_utf8_lossy(id))
}

/// The receipts of a session's pending messages, in order.
pub(crate) async fn receipts(t: &Fixture, sid: &str) -> Vec<String> {
    let mut cmd = redis::cmd("LRANGE");
    cmd.arg(t.key("q", sid)).arg(0).arg(-1);
    let records: Vec<Vec<u8>> = cmd.query_async(&mut t.raw.clone()).await.expect("a list");
    records.iter().map(|record| receipt(record)).collect()
}
