//! One test's courier, prefix and raw connection, and the check that it left nothing behind.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mcp_courier::{
    Builder, CancellationToken, Courier, Delivery, Ended, NotificationSink, Push, Result, SessionId,
    SinkError,
};
use redis::aio::MultiplexedConnection;

use super::{leaks, names, server, wait::wait_until};

/// Everything a test needs. Call [`Fixture::finish`] at its end.
pub struct Fixture {
    pub server: server::Server,
    pub prefix: String,
    pub raw: MultiplexedConnection,
}

/// A subscriber loop in the background.
pub struct Serving {
    cancel: CancellationToken,
    running: tokio::task::JoinHandle<Result<Ended>>,
}

/// Starts a subscriber loop.
pub fn serve(courier: &Courier, session: &SessionId, sink: impl NotificationSink) -> Serving {
    let cancel = CancellationToken::new();
    let running = tokio::spawn({
        let (courier, session, cancel) = (courier.clone(), session.clone(), cancel.clone());
        async move { courier.subscriber_loop(&session, sink, cancel).await }
    });
    Serving { cancel, running }
}

impl Serving {
    /// Until it ends by itself.
    pub async fn ended(self) -> Ended {
        let ended = tokio::time::timeout(Duration::from_secs(15), self.running).await;
        ended.expect("it ends").expect("no panic").expect("no error at the start")
    }

    /// Cancels it and waits for its end.
    pub async fn stop(self) {
        self.cancel.cancel();
        assert_eq!(self.ended().await, Ended::Stopped);
    }
}

/// A process in the process: a runtime of its own that can be made to vanish between two polls, which no code of the
/// courier notices. The server sees its connections close, as after SIGKILL.
pub struct Process {
    pub runtime: tokio::runtime::Runtime,
    pub courier: Courier,
}

impl Process {
    pub async fn start(builder: Builder, url: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let url = url.to_owned();
        let courier = runtime.spawn(async move { builder.connect(url).await });
        let courier = courier.await.expect("no panic").expect("the test server answers");
        Self { runtime, courier }
    }

    /// Serves a session in this process; answers when it is claimed.
    pub async fn serve(&self, session: &SessionId, sink: impl NotificationSink) {
        let (registry, session) = (self.courier.subscribers(), session.clone());
        let running = self.runtime.spawn(async move { registry.ensure_running(&session, sink).await });
        running.await.expect("no panic").expect("claimed");
    }

    /// The process vanishes: every task is dropped where it stands.
    pub async fn crash(self) {
        let Self { runtime, courier } = self;
        let down = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(Duration::from_secs(10)));
        down.await.expect("no panic");
        // Not before: the last handle's end would be noticed by tasks that still run.
        drop(courier);
    }
}

impl Fixture {
    /// On the shared server, under a prefix of its own.
    ///
    /// In a Cluster all sessions of the test are in one partition, so that `raw` reaches everything; `partitions` and
    /// `cluster` are about more than one.
    pub async fn new(test: &str) -> Self {
        let t = Self::spread(test).await;
        if t.server.kind() == server::Kind::Cluster {
            t.ask::<String>(&format!("SET {} 1 PX 3600000", t.key("p", ""))).await;
        }
        t
    }

    /// The same with as many partitions as the courier chooses.
    pub async fn spread(test: &str) -> Self {
        Self::on(server::shared().await, test).await
    }

    /// On a single server, whatever the others run on; see [`server::plain`].
    pub async fn plain(test: &str) -> Self {
        Self::on(server::plain().await, test).await
    }

    async fn on(server: server::Server, test: &str) -> Self {
        let raw = server.raw().await;
        Self { prefix: names::prefix(test), raw, server }
    }

    /// The command that rings a doorbell, and the question who listens to it.
    pub fn publish(&self) -> (&'static str, &'static str) {
        if self.server.kind() == server::Kind::Cluster {
            ("SPUBLISH", "PUBSUB SHARDNUMSUB")
        } else {
            ("PUBLISH", "PUBSUB NUMSUB")
        }
    }

    /// A connection to each server that may have keys of ours.
    async fn everywhere(&self) -> Vec<MultiplexedConnection> {
        #[cfg(feature = "cluster")]
        if self.server.kind() == server::Kind::Cluster {
            let mut all = Vec::new();
            for master in super::cluster::masters(self.server.url()).await {
                all.push(server::raw(&master).await);
            }
            return all;
        }
        vec![self.raw.clone()]
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

    /// One command as another program would send it: words separated by spaces.
    pub async fn ask<T: redis::FromRedisValue>(&self, words: &str) -> T {
        let mut words = words.split(' ');
        let mut cmd = redis::cmd(words.next().expect("a command"));
        words.for_each(|word| {
            cmd.arg(word);
        });
        self.send(&cmd).await
    }

    /// One command with arguments of any bytes.
    pub async fn send<T: redis::FromRedisValue>(&self, cmd: &redis::Cmd) -> T {
        cmd.query_async(&mut self.raw.clone()).await.expect("the server takes the raw command")
    }

    /// The server's clock, in Unix milliseconds.
    pub async fn server_ms(&self) -> u64 {
        let (seconds, micros): (u64, u64) = self.ask("TIME").await;
        seconds * 1000 + micros / 1000
    }

    /// Until the server's clock shows that time.
    pub async fn wait_server_ms(&self, at: u64) {
        wait_until("the server's clock", Duration::from_secs(10), || async {
            let now = self.server_ms().await;
            if now >= at { Ok(()) } else { Err(format!("{} ms to go", at - now)) }
        })
        .await;
    }

    /// Every key under the test's prefix with its remaining life in ms (-1: for ever), in order.
    pub async fn keys(&self) -> Vec<(String, i64)> {
        let mut keys = Vec::new();
        for mut raw in self.everywhere().await {
            self.keys_at(&mut raw, &mut keys).await;
        }
        keys.sort();
        keys.dedup();
        keys
    }

    async fn keys_at(&self, raw: &mut MultiplexedConnection, keys: &mut Vec<(String, i64)>) {
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(format!("{}:*", self.prefix)).arg("COUNT").arg(1000);
            let page: (String, Vec<String>) = scan.query_async(raw).await.expect("SCAN");
            for key in page.1 {
                let life: i64 = redis::cmd("PTTL").arg(&key).query_async(raw).await.expect("PTTL");
                // One that is gone meanwhile counts as gone. The number of partitions is every prefix's, and no test's.
                if life != -2 && !key.ends_with(":{0}:p") {
                    keys.push((
                        key.trim_start_matches(&*self.prefix).trim_start_matches(":{0}:").to_owned(),
                        life,
                    ));
                }
            }
            cursor = page.0;
            if cursor == "0" {
                return;
            }
        }
    }

    /// Deletes a key, wherever it is.
    pub async fn delete(&self, key: &str) {
        for mut raw in self.everywhere().await {
            // The others say where it is instead.
            let _ = redis::cmd("DEL").arg(key).exec_async(&mut raw).await;
        }
    }

    /// The owner token of a session, as stored.
    pub async fn token(&self, sid: &str) -> Option<String> {
        self.ask(&format!("HGET {} {sid}", self.key("s", ""))).await
    }

    /// Until nobody listens to a node's inbox: its process is gone.
    pub async fn wait_deaf(&self, node: &str) {
        let inbox = format!("{}:{{0}}:c:{node}", self.prefix);
        wait_until("the process is gone", Duration::from_secs(10), || async {
            let (_, heard): (String, u64) = self.ask(&format!("{} {inbox}", self.publish().1)).await;
            if heard == 0 { Ok(()) } else { Err("it still listens".to_owned()) }
        })
        .await;
        // How many hear a shard channel says nothing certain: there the lease tells the dead from the living.
        if self.server.kind() == server::Kind::Cluster {
            let lease: Option<f64> = self.ask(&format!("ZSCORE {} {node}", self.key("n", ""))).await;
            self.wait_server_ms(lease.unwrap_or_default() as u64 + 1).await;
        }
    }

    /// No key without a TTL but the indexes, and those hold no session any more.
    pub async fn finish(self) {
        for mut raw in self.everywhere().await {
            leaks::assert_clean(&mut raw, &self.prefix).await;
        }
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

/// A sink that writes down what it gets and does not answer until its gate is opened.
#[derive(Clone)]
pub struct Held {
    pub recorder: Recorder,
    pub gate: CancellationToken,
}

impl Held {
    pub fn new(recorder: Recorder) -> Self {
        Self { recorder, gate: CancellationToken::new() }
    }
}

impl NotificationSink for Held {
    async fn deliver(&self, delivery: Delivery) -> Result<(), SinkError> {
        let verdict = self.recorder.deliver(delivery).await;
        self.gate.cancelled().await;
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
