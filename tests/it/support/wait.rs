//! Waiting for what must come, in place of sleeping for as long as it may take.

use std::time::{Duration, Instant};

/// Asks every 5 ms until the answer is `Ok`, and gives that back.
///
/// `Err` is what was seen instead. The last one is in the panic after `timeout`, beside `what` was waited for.
pub async fn wait_until<T, F: Future<Output = Result<T, String>>>(
    what: &str,
    timeout: Duration,
    mut ask: impl FnMut() -> F,
) -> T {
    let end = Instant::now() + timeout;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(seen) if Instant::now() > end => {
                panic!("waited {timeout:?} for {what}, last seen: {seen}")
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}
