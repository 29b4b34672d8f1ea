use std::time::{Duration, Instant};
pub async fn wait_until<T, F: Future<Output = Result<T, String>>>(
    what: &str,
    timeout: Duration,
    mut f: impl FnMut() -> F,
) -> T {
    let end = Instant::now() + timeout;
    loop {
        match f().await {
            Ok(t) => return t,
            Err(last) if Instant::now() > end => panic!("waited for {what}: {last}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}
