//! The baseline that acknowledges: a stream with a consumer group, read and acked 64 at a time.

use std::time::Instant;

use redis::Value;

use super::ledger::Ledger;
use super::measures::{Measures, Meter};
use super::server::{Target, raw_failure};
use crate::output::Failure;

const BATCH: usize = 64;

/// Preloads one stream, then drains it with one consumer on one connection.
pub async fn drain(target: &Target, messages: u32, body: usize) -> Result<Measures, Failure> {
    let key = format!("{}:stream-{:08x}", target.root, fastrand::u32(..));
    let ledger = Ledger::new(1, 1)?;
    let mut raw = target.raw().await?;
    let mut left = messages;
    while left > 0 {
        let mut pipeline = redis::Pipeline::new();
        for _ in 0..left.min(1000) {
            pipeline.cmd("XADD").arg(&key).arg("*").arg("b").arg(ledger.next(0, 0, body)).ignore();
        }
        pipeline.exec_async(&mut raw).await.map_err(raw_failure)?;
        left -= left.min(1000);
    }
    let mut create = redis::cmd("XGROUP");
    create.arg("CREATE").arg(&key).arg("g").arg(0);
    create.exec_async(&mut raw).await.map_err(raw_failure)?;

    let meter = Meter::start(target).await;
    let start = Instant::now();
    loop {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg("g").arg("c").arg("COUNT").arg(BATCH).arg("STREAMS").arg(&key).arg(">");
        let entries = entries(read.query_async(&mut raw).await.map_err(raw_failure)?);
        if entries.is_empty() {
            break;
        }
        let mut ack = redis::cmd("XACK");
        ack.arg(&key).arg("g");
        for (id, body) in &entries {
            ledger.note(body);
            ack.arg(id);
        }
        ack.exec_async(&mut raw).await.map_err(raw_failure)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let mut measures = Measures::new();
    meter.per_message(target, u64::from(messages), &mut measures).await;
    ledger.check("stream")?;
    measures.insert("per_second".to_owned(), f64::from(messages) / seconds);
    redis::cmd("DEL").arg(&key).exec_async(&mut raw).await.map_err(raw_failure)?;
    Ok(measures)
}

/// Ids and bodies of `[[stream, [[id, [field, body]], …]]]`.
fn entries(reply: Value) -> Vec<(Vec<u8>, Vec<u8>)> {
    let list = |value: Value| match value {
        Value::Array(items) => items,
        _ => Vec::new(),
    };
    let bytes = |value: Option<Value>| match value {
        Some(Value::BulkString(bytes)) => Some(bytes),
        _ => None,
    };
    let stream = list(reply).into_iter().next().map(list).unwrap_or_default();
    let entry = |entry: Value| {
        let mut parts = list(entry).into_iter();
        let id = bytes(parts.next())?;
        Some((id, bytes(list(parts.next()?).into_iter().nth(1))?))
    };
    stream.into_iter().nth(1).map(list).unwrap_or_default().into_iter().filter_map(entry).collect()
}
