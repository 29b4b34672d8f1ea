//! Many callers, one script call: requests that meet while a call is on its way travel together in the next one.
//!
//! A lone request is sent at once, and so is the next one, while the call before it is small. Where many come, those of one
//! round trip travel together: few large calls cost the server less than many small ones, and the answer is there sooner.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::{Error, Result};

/// A call with so many requests is a large one: others wait for its answer, unless they would fill a call of their own.
const LARGE: usize = 4;

type Replies<R> = Pin<Box<dyn Future<Output = Result<Vec<Result<R>>>> + Send>>;
type Waiting<Q, R> = (Q, Answer<R>);

/// Where an answer goes: to somebody who waits, or into a few lines that run in the batch's own task.
enum Answer<R> {
    Wait(oneshot::Sender<Result<R>>),
    Tell(Box<dyn FnOnce(Result<R>) + Send>),
}

impl<R> Answer<R> {
    fn send(self, reply: Result<R>) {
        match self {
            Self::Wait(waiting) => drop(waiting.send(reply)),
            Self::Tell(tell) => tell(reply),
        }
    }
}

/// Collects requests of one kind. Clones share it.
pub(crate) struct Batcher<Q, R>(Arc<Shared<Q, R>>);

struct Shared<Q, R> {
    op: &'static str,
    /// Most requests in a call, and about how much they may weigh together.
    most: usize,
    most_weight: usize,
    weight: fn(&Q) -> usize,
    calls: usize,
    run: Box<dyn Fn(Vec<Q>) -> Replies<R> + Send + Sync>,
    queue: Mutex<Queue<Q, R>>,
}

struct Queue<Q, R> {
    waiting: VecDeque<Waiting<Q, R>>,
    in_flight: usize,
    /// Requests in those calls.
    carried: usize,
}

impl<Q, R> Queue<Q, R> {
    /// Whether another call may start beside those on their way.
    fn has_room(&self, calls: usize, most: usize) -> bool {
        self.in_flight < calls && (self.in_flight == 0 || self.carried < LARGE || self.waiting.len() >= most)
    }
}

impl<Q: Send + 'static, R: Send + 'static> Batcher<Q, R> {
    /// At most `most` requests a call and `calls` calls at a time. `run` answers each request, in order.
    pub(crate) fn new(
        op: &'static str,
        most: usize,
        calls: usize,
        run: impl Fn(Vec<Q>) -> Replies<R> + Send + Sync + 'static,
    ) -> Self {
        Self::weighed(op, most, (usize::MAX, |_| 0), calls, run)
    }

    /// The same with a limit on what the requests of a call weigh together; a heavier one travels alone.
    pub(super) fn weighed(
        op: &'static str,
        most: usize,
        (most_weight, weight): (usize, fn(&Q) -> usize),
        calls: usize,
        run: impl Fn(Vec<Q>) -> Replies<R> + Send + Sync + 'static,
    ) -> Self {
        let queue = Mutex::new(Queue { waiting: VecDeque::new(), in_flight: 0, carried: 0 });
        Self(Arc::new(Shared { op, most, most_weight, weight, calls, run: Box::new(run), queue }))
    }

    /// Answers when the call that carried the request was answered. Dropping the future may or may not take the request
    /// back.
    pub(crate) async fn call(&self, request: Q) -> Result<R> {
        let shared = &self.0;
        let answered = {
            let mut queue = shared.lock();
            if queue.waiting.is_empty() && queue.has_room(shared.calls, shared.most) {
                queue.in_flight += 1;
                queue.carried += 1;
                Err(request)
            } else {
                let (answer, answered) = oneshot::channel();
                shared.enqueue(queue, (request, Answer::Wait(answer)));
                Ok(answered)
            }
        };
        match answered {
            Ok(answered) => answered.await.unwrap_or(Err(Error::Closed { op: shared.op })),
            // Nobody else is there: no task is needed to carry one request.
            Err(request) => {
                let _turn = Turn(shared);
                let mut replies = (shared.run)(vec![request]).await?;
                match (replies.pop(), replies.len()) {
                    (Some(reply), 0) => reply,
                    (_, more) => Err(shared.miscounted(more, 1)),
                }
            }
        }
    }
}

impl<Q: Send + 'static, R: Send + 'static> Batcher<Q, R> {
    /// The same without anybody waiting, and so without a task for each: `tell` runs with the answer and must not block.
    /// A request that the end of the runtime drops is answered as closed.
    pub(super) fn tell(&self, request: Q, tell: impl FnOnce(Result<R>) + Send + 'static) {
        self.0.enqueue(self.0.lock(), (request, Answer::Tell(Box::new(tell))));
    }
}

/// A caller's own call is on its way. When it ends, also by being dropped, those who came meanwhile have theirs.
struct Turn<'a, Q: Send + 'static, R: Send + 'static>(&'a Arc<Shared<Q, R>>);

impl<Q: Send + 'static, R: Send + 'static> Drop for Turn<'_, Q, R> {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.carried -= 1;
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if !queue.waiting.is_empty() => {
                drop(queue);
                runtime.spawn(self.0.clone().drain());
            }
            Ok(_) => queue.in_flight -= 1,
            // The runtime is gone, and with it whatever the others wait in.
            Err(_) => {
                queue.in_flight -= 1;
                queue.waiting.clear();
            }
        }
    }
}

impl<Q: Send + 'static, R: Send + 'static> Shared<Q, R> {
    /// Waits for a call, or starts one where there is room for another.
    fn enqueue(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue<Q, R>>, one: Waiting<Q, R>) {
        queue.waiting.push_back(one);
        let start = queue.has_room(self.calls, self.most);
        queue.in_flight += usize::from(start);
        drop(queue);
        if start {
            tokio::spawn(self.clone().drain());
        }
    }
}

impl<Q, R> Shared<Q, R> {
    fn lock(&self) -> MutexGuard<'_, Queue<Q, R>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn miscounted(&self, got: usize, wanted: usize) -> Error {
        Error::Reply { op: self.op, got: format!("{got} answers for {wanted} requests") }
    }

    /// The next call's requests, or none: then this caller's turn is over. `carried`: those of its last call.
    fn next(&self, carried: usize) -> Vec<Waiting<Q, R>> {
        let mut queue = self.lock();
        queue.carried -= carried;
        queue.in_flight -= 1;
        if queue.waiting.is_empty() || !queue.has_room(self.calls, self.most) {
            return Vec::new();
        }
        let (mut n, mut weight) = (0, 0);
        for (request, _) in queue.waiting.iter().take(self.most) {
            weight += (self.weight)(request);
            if n > 0 && weight > self.most_weight {
                break;
            }
            n += 1;
        }
        queue.in_flight += 1;
        queue.carried += n;
        queue.waiting.drain(..n).collect()
    }

    async fn drain(self: Arc<Self>) {
        let mut carried = 0;
        loop {
            let batch = self.next(carried);
            if batch.is_empty() {
                return;
            }
            carried = batch.len();
            let (requests, answers): (Vec<Q>, Vec<_>) = batch.into_iter().unzip();
            match (self.run)(requests).await {
                Ok(replies) if replies.len() == answers.len() => {
                    for (answer, reply) in answers.into_iter().zip(replies) {
                        answer.send(reply);
                    }
                }
                Ok(replies) => {
                    let e = self.miscounted(replies.len(), answers.len());
                    fail(answers, &e);
                }
                Err(e) => fail(answers, &e),
            }
        }
    }
}

fn fail<R>(answers: Vec<Answer<R>>, e: &Error) {
    for answer in answers {
        answer.send(Err(e.clone()));
    }
}
