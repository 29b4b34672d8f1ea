//! One test's courier, prefix and raw connection, and the check that it left nothing behind.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mcp_courier::{Builder, Courier, Delivery, NotificationSink, Push, SessionId, SinkError};
use redis::aio::MultiplexedConnection;

use super::{leaks, names, server, wait::wait_until};

/// Everything a test needs. Call [`Fixture::finish`] at its end.
pub struct Fixture {
    pub server: server::Server,
    pub prefix: String,
    pub raw: MultiplexedConnection,
}

impl Fixture {
    /// On the shared server, under a prefix of its own.
    pub async fn new(test: &str) -> Self {
        let server = server::shared().await;
        let raw = server.raw().await;
        Self { prefix: names::prefix(test), raw, server }
    }

    /// Settings for tests: short pauses, everything else as users have it.
    pub fn builder(&self) -> Builder {
        Courier::builder()
            .prefix(&self.prefix)
            .backoff(Duration::from_millis(20))
            .backoff_cap(Duration::from_millis(200))
            .look_again(Duration::from_millis(300))
            .heartbeat(Duration::from_millis(200))
            .lease(Duration::from_secs(2))
    }

    pub async fn courier(&self) -> Courier {
        self.connect(self.builder()).await
    }

    pub async fn connect(&self, builder: Builder) -> Courier {
        builder.connect(self.server.url()).await.expect("the test server answers")
    }

    /// Through a proxy.
    pub async fn connect_to(&self, url: &str) -> Courier {
        self.builder().connect(url).await.expect("the proxied server answers")
    }

    /// The key of a kind (`q`, `dead`) for a session id that needs no encoding, or of an index (`s`, `w`, `n`).
    pub fn key(&self, kind: &str, sid: &str) -> String {
        if sid.is_empty() {
            format!("{}:{{0}}:{kind}", self.prefix)
        } else {
            format!("{}:{{0}}:{kind}:{sid}", self.prefix)
        }
    }

    /// No key without a TTL but the indexes, and those hold no session any more.
    pub async fn finish(mut self) {
        leaks::assert_clean(&mut self.raw, &self.prefix).await;
    }
}

pub fn session(id: &str) -> SessionId {
    SessionId::new(id).expect("a valid session id")
}

/// A push of a text body.
pub fn push(session: &SessionId, body: &str) -> Push {
    Push::new(session, body)
}

/// What a sink answers to a delivery.
type Verdict = Box<dyn Fn(&Delivery) -> Result<(), SinkError> + Send + Sync>;

/// A sink that writes down what it gets, and answers as it is told.
#[derive(Clone)]
pub struct Recorder {
    seen: Arc<Mutex<Vec<Delivery>>>,
    verdict: Arc<Verdict>,
}

impl Recorder {
    /// Takes everything.
    pub fn new() -> Self {
        Self::answering(|_| Ok(()))
    }

    pub fn answering(verdict: impl Fn(&Delivery) -> Result<(), SinkError> + Send + Sync + 'static) -> Self {
        Self { seen: Arc::default(), verdict: Arc::new(Box::new(verdict)) }
    }

    /// Every delivery so far, failed ones included.
    pub fn seen(&self) -> Vec<Delivery> {
        self.seen.lock().expect("not poisoned").clone()
    }

    /// The bodies as text, in order.
    pub fn bodies(&self) -> Vec<String> {
        self.seen().iter().map(|d| String::from_utf8_lossy(d.body()).into_owned()).collect()
    }

    /// Until that many deliveries were seen.
    pub async fn wait_for(&self, count: usize) -> Vec<String> {
        wait_until(&format!("{count} deliveries"), Duration::from_secs(15), || async {
            let seen = self.seen().len();
            if seen >= count {
                Ok(())
            } else {
                Err(format!("{seen} so far: {:?}", self.bodies().iter().take(20).collect::<Vec<_>>()))
            }
        })
        .await;
        self.bodies()
    }
}

impl NotificationSink for Recorder {
    async fn deliver(&self, delivery: Delivery) -> Result<(), SinkError> {
        let verdict = (self.verdict)(&delivery);
        self.seen.lock().expect("not poisoned").push(delivery);
        verdict
    }
}

/// Until a session has that many pending messages.
pub async fn wait_pending(courier: &Courier, session: &SessionId, pending: u64) {
    wait_until(&format!("{pending} pending in {session}"), Duration::from_secs(15), || async {
        match courier.stats(session).await {
            Ok(stats) if stats.pending == pending => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}
