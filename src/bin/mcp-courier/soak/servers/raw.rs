//! Plain commands to one server, past all proxies.

use std::time::Duration;

use redis::aio::MultiplexedConnection;

use crate::output::Failure;

/// What our own connections are called in `CLIENT LIST`.
pub const NAME: &str = "soak";

/// Nothing that is asked takes longer, or the server is away.
const WITHIN: Duration = Duration::from_secs(3);

pub async fn connect(port: u16) -> Result<MultiplexedConnection, Failure> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).map_err(failure)?;
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(1)))
        .set_response_timeout(Some(WITHIN));
    let mut raw = client.get_multiplexed_async_connection_with_config(&config).await.map_err(failure)?;
    // A sentinel knows CLIENT too.
    ask::<redis::Value>(&mut raw, &["CLIENT", "SETNAME", NAME]).await?;
    Ok(raw)
}

pub async fn ask<T: redis::FromRedisValue>(
    raw: &mut MultiplexedConnection,
    words: &[&str],
) -> Result<T, Failure> {
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(word);
    }
    command.query_async(raw).await.map_err(failure)
}

/// One command to the server on a port.
pub async fn ask_at<T: redis::FromRedisValue>(port: u16, words: &[&str]) -> Result<T, Failure> {
    ask(&mut connect(port).await?, words).await
}

pub fn failure(e: redis::RedisError) -> Failure {
    Failure::failed(format!("raw command: {e}"))
}

/// One value of `INFO`.
pub fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}
