use redis::aio::MultiplexedConnection;
pub async fn assert_clean(raw: &mut MultiplexedConnection, prefix: &str) {
    let keys: Vec<String> = redis::cmd("KEYS").arg(format!("{prefix}*")).query_async(raw).await.unwrap();
    for key in keys {
        let ttl: i64 = redis::cmd("PTTL").arg(&key).query_async(raw).await.unwrap();
        let index = [":s", ":w", ":n"].iter().any(|i| key.ends_with(i));
        assert!(ttl >= 0 || index, "{key} has no TTL");
    }
}
