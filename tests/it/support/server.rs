use redis::aio::MultiplexedConnection;
pub struct Server {
    url: String,
}
impl Server {
    pub fn url(&self) -> &str {
        &self.url
    }
    pub async fn raw(&self) -> MultiplexedConnection {
        redis::Client::open(&*self.url).unwrap().get_multiplexed_async_connection().await.unwrap()
    }
}
pub async fn shared() -> Server {
    Server { url: std::env::var("REDIS_URL").unwrap() }
}
