//! Many callers, one script call: requests that meet while a call is on its way travel together in the next one.
//!
//! Nothing waits for a batch to fill up. A lone request is sent at once; the batch grows with the load.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::{Error, Result};

type Replies<R> = Pin<Box<dyn Future<Output = Result<Vec<Result<R>>>> + Send>>;
type Waiting<Q, R> = (Q, oneshot::Sender<Result<R>>);

/// Collects requests of one kind. Clones share it.
pub(crate) struct Batcher<Q, R>(Arc<Shared<Q, R>>);

struct Shared<Q, R> {
    op: &'static str,
    most: usize,
    calls: usize,
    run: Box<dyn Fn(Vec<Q>) -> Replies<R> + Send + Sync>,
    queue: Mutex<Queue<Q, R>>,
}

struct Queue<Q, R> {
    waiting: VecDeque<Waiting<Q, R>>,
    in_flight: usize,
}

impl<Q: Send + 'static, R: Send + 'static> Batcher<Q, R> {
    /// At most `most` requests a call and `calls` calls at a time. `run` answers each request, in order.
    pub(crate) fn new(
        op: &'static str,
        most: usize,
        calls: usize,
        run: impl Fn(Vec<Q>) -> Replies<R> + Send + Sync + 'static,
    ) -> Self {
        let queue = Mutex::new(Queue { waiting: VecDeque::new(), in_flight: 0 });
        Self(Arc::new(Shared { op, most, calls, run: Box::new(run), queue }))
    }

    /// Answers when the batch that carried the request was answered. Dropping the future does not take the request
    /// back.
    pub(crate) async fn call(&self, request: Q) -> Result<R> {
        let (answer, answered) = oneshot::channel();
        let start = {
            let mut queue = self.0.lock();
            queue.waiting.push_back((request, answer));
            let start = queue.in_flight < self.0.calls;
            queue.in_flight += usize::from(start);
            start
        };
        if start {
            tokio::spawn(self.0.clone().drain());
        }
        answered.await.unwrap_or(Err(Error::Closed { op: self.0.op }))
    }
}

impl<Q, R> Shared<Q, R> {
    fn lock(&self) -> std::sync::MutexGuard<'_, Queue<Q, R>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn drain(self: Arc<Self>) {
        loop {
            let batch: Vec<_> = {
                let mut queue = self.lock();
                let n = queue.waiting.len().min(self.most);
                if n == 0 {
                    queue.in_flight -= 1;
                    return;
                }
                queue.waiting.drain(..n).collect()
            };
            let (requests, answers): (Vec<Q>, Vec<_>) = batch.into_iter().unzip();
            match (self.run)(requests).await {
                Ok(replies) if replies.len() == answers.len() => {
                    for (answer, reply) in answers.into_iter().zip(replies) {
                        let _ = answer.send(reply);
                    }
                }
                Ok(replies) => {
                    let got = format!("{} answers for {} sessions", replies.len(), answers.len());
                    fail(answers, &Error::Reply { op: self.op, got });
                }
                Err(e) => fail(answers, &e),
            }
        }
    }
}

fn fail<R>(answers: Vec<oneshot::Sender<Result<R>>>, e: &Error) {
    for answer in answers {
        let _ = answer.send(Err(e.clone()));
    }
}
