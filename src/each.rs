//! Several calls at once in one task.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// Runs all of them side by side; answers in their order. On a shared connection their commands travel together.
pub(crate) async fn each<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(|f| (Box::pin(f), None)).collect();
    let mut all = pin!(poll_fn(move |cx| {
        let mut done = true;
        for (future, answer) in &mut running {
            if answer.is_none() {
                match future.as_mut().poll(cx) {
                    Poll::Ready(value) => *answer = Some(value),
                    Poll::Pending => done = false,
                }
            }
        }
        if done {
            Poll::Ready(running.drain(..).filter_map(|(_, answer)| answer).collect())
        } else {
            Poll::Pending
        }
    }));
    all.as_mut().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_come_in_order_whatever_ends_first() {
        let slow_first = [30_u64, 1, 10].map(|ms| async move {
            tokio::time::sleep(std::time::Duration::from_millis(ms)).await;
            ms
        });
        assert_eq!(each(slow_first).await, [30, 1, 10]);
        assert_eq!(each(Vec::<std::future::Ready<u8>>::new()).await, Vec::<u8>::new());
    }
}
