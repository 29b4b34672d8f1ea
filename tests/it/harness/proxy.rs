//! Every mode of the proxy does what it says.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::proxy::{Mode, Proxy};
use crate::support::resp::command;
use crate::support::wait::wait_until;
use crate::support::{names, server};

/// A proxy in front of the shared server, the server's own connection, and a key.
struct Bench {
    proxy: Proxy,
    direct: MultiplexedConnection,
    key: String,
    /// Keeps an engine in memory alive.
    _server: server::Server,
}

const SHORT: Duration = Duration::from_millis(200);

impl Bench {
    async fn new(test: &str) -> Self {
        let server = server::plain().await;
        let (proxy, direct) = (Proxy::start(server.admin_url()).await, server.raw().await);
        Self { proxy, direct, key: names::prefix(test), _server: server }
    }

    async fn through(&self) -> MultiplexedConnection {
        server::raw(self.proxy.url()).await
    }

    async fn count(&mut self) -> i64 {
        let n: Option<i64> =
            redis::cmd("GET").arg(&self.key).query_async(&mut self.direct).await.expect("GET");
        n.unwrap_or(0)
    }

    async fn finish(mut self) {
        redis::cmd("DEL").arg(&self.key).exec_async(&mut self.direct).await.expect("DEL");
    }
}

async fn incr(raw: &mut MultiplexedConnection, key: &str) -> redis::RedisResult<i64> {
    redis::cmd("INCR").arg(key).query_async(raw).await
}

#[tokio::test]
async fn pass_changes_nothing_and_counts_connections() {
    let b = Bench::new("pass").await;
    let mut raw = b.through().await;
    let big = vec![7_u8; 1 << 20];
    let echoed: Vec<u8> = redis::cmd("ECHO").arg(&big).query_async(&mut raw).await.expect("ECHO");
    assert!(echoed == big);
    assert_eq!((b.proxy.accepted(), b.proxy.open()), (1, 1));
    let _second = b.through().await;
    assert_eq!((b.proxy.accepted(), b.proxy.open()), (2, 2));
    drop(raw);
    wait_until("one connection to end", Duration::from_secs(5), || async {
        if b.proxy.open() == 1 { Ok(()) } else { Err(b.proxy.open().to_string()) }
    })
    .await;
    b.finish().await;
}

#[tokio::test]
async fn a_delay_is_added_each_way_and_not_for_each_command() {
    let b = Bench::new("delay").await;
    let mut raw = b.through().await;
    let delay = Duration::from_millis(60);
    b.proxy.set(Mode::Delay(delay));
    let begin = Instant::now();
    incr(&mut raw, &b.key).await.expect("INCR");
    assert!(begin.elapsed() >= delay * 2, "{:?}", begin.elapsed());
    let begin = Instant::now();
    let many = (0..50).map(|_| {
        let (mut raw, key) = (raw.clone(), b.key.clone());
        async move { incr(&mut raw, &key).await }
    });
    futures_util::future::try_join_all(many).await.expect("INCR");
    let took = begin.elapsed();
    assert!(took >= delay * 2 && took < delay * 20, "{took:?}");
    b.finish().await;
}

#[tokio::test]
async fn a_black_hole_holds_commands_and_lets_them_go_when_it_ends() {
    let mut b = Bench::new("hole").await;
    let mut raw = b.through().await;
    b.proxy.set(Mode::SILENT);
    let key = b.key.clone();
    let mut answer = std::pin::pin!(incr(&mut raw, &key));
    assert!(timeout(SHORT, &mut answer).await.is_err(), "answered through a black hole");
    assert_eq!(b.count().await, 0, "the command did not arrive");
    assert_eq!(b.proxy.open(), 1, "the socket stays open");
    b.proxy.set(Mode::Pass);
    assert_eq!(answer.await.expect("INCR"), 1);
    b.finish().await;
}

#[tokio::test]
async fn swallowed_replies_belong_to_commands_that_ran() {
    let mut b = Bench::new("swallow").await;
    let mut raw = b.through().await;
    b.proxy.set(Mode::SWALLOW_REPLIES);
    let key = b.key.clone();
    let mut answer = std::pin::pin!(incr(&mut raw, &key));
    assert!(timeout(SHORT, &mut answer).await.is_err(), "the reply came back");
    assert_eq!(b.count().await, 1, "the command ran");
    b.proxy.cut();
    answer.await.expect_err("its connection is gone");
    b.finish().await;
}

#[tokio::test]
async fn refuse_resets_old_and_new_connections_until_it_ends() {
    let b = Bench::new("refuse").await;
    let mut raw = b.through().await;
    let mut stream = connect(&b.proxy).await;
    b.proxy.set(Mode::Refuse);
    incr(&mut raw, &b.key).await.expect_err("the old connection is reset");
    assert_reset(&mut stream).await;
    assert_reset(&mut connect(&b.proxy).await).await;
    b.proxy.set(Mode::Pass);
    incr(&mut b.through().await, &b.key).await.expect("a new connection is served");
    b.finish().await;
}

async fn connect(proxy: &Proxy) -> TcpStream {
    let url = url::Url::parse(proxy.url()).expect("a URL");
    TcpStream::connect(("127.0.0.1", url.port().expect("a port"))).await.expect("accepted")
}

async fn assert_reset(stream: &mut TcpStream) {
    let read = timeout(Duration::from_secs(5), stream.read(&mut [0; 1])).await.expect("it ends");
    assert_eq!(read.expect_err("a reset, not an end").kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_cut_ends_what_is_open_and_nothing_else() {
    let b = Bench::new("cut").await;
    let mut stream = connect(&b.proxy).await;
    // Served, not only accepted by the kernel.
    stream.write_all(&command(&["PING"])).await.expect("written");
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).await.expect("PONG");
    b.proxy.cut();
    assert_reset(&mut stream).await;
    incr(&mut b.through().await, &b.key).await.expect("a new connection is served");
    b.finish().await;
}

#[tokio::test]
async fn a_connection_is_cut_within_a_reply_after_so_many_bytes() {
    let mut b = Bench::new("budget").await;
    let mut stream = connect(&b.proxy).await;
    b.proxy.cut_after_reply_bytes(3);
    stream.write_all(&command(&["INCR", &b.key])).await.expect("written");
    let mut answer = Vec::new();
    let end = timeout(Duration::from_secs(5), stream.read_to_end(&mut answer)).await.expect("it ends");
    end.expect_err("a reset, not an end");
    assert!(answer.len() <= 3, "{answer:?}");
    assert_eq!(b.count().await, 1, "the command ran");
    // One connection pays for it; the next is served.
    incr(&mut b.through().await, &b.key).await.expect("INCR");
    let mut raw = b.through().await;
    b.proxy.cut_after_reply_bytes(0);
    incr(&mut raw, &b.key).await.expect_err("the reply is lost");
    assert_eq!(b.count().await, 3, "the command ran");
    b.finish().await;
}

#[tokio::test]
async fn frames_with_a_pattern_are_dropped_and_the_rest_arrives_whole() {
    let b = Bench::new("frames").await;
    let (mut listener, mut direct) = (connect(&b.proxy).await, b.direct.clone());
    let (loud, quiet) = (format!("{}:loud", b.key), format!("{}:quiet", b.key));
    listener.write_all(&command(&["SUBSCRIBE", &loud, &quiet])).await.expect("written");
    let mut text = String::new();
    read_until(&mut listener, &mut text, ":2\r\n").await;
    b.proxy.drop_frames_with(Some(b":quiet"));
    for (channel, message) in [(&quiet, "no"), (&loud, "yes"), (&quiet, "no"), (&loud, "last")] {
        redis::cmd("PUBLISH").arg(channel).arg(message).exec_async(&mut direct).await.expect("PUBLISH");
    }
    let mut text = String::new();
    read_until(&mut listener, &mut text, "last\r\n").await;
    assert!(text.contains("yes\r\n") && !text.contains("no\r\n"), "{text}");
    assert_eq!(b.proxy.dropped(), 2);
    b.proxy.drop_frames_with(None);
    redis::cmd("PUBLISH").arg(&quiet).arg("again").exec_async(&mut direct).await.expect("PUBLISH");
    read_until(&mut listener, &mut text, "again\r\n").await;
    b.finish().await;
}

#[tokio::test]
async fn requests_with_a_pattern_are_dropped_and_others_arrive() {
    let mut b = Bench::new("requests").await;
    let mut raw = b.through().await;
    b.proxy.drop_requests_with(Some(b"INCR"));
    let key = b.key.clone();
    let mut answer = std::pin::pin!(incr(&mut raw, &key));
    assert!(timeout(SHORT, &mut answer).await.is_err(), "a dropped command was answered");
    assert_eq!((b.count().await, b.proxy.dropped()), (0, 1));
    b.proxy.drop_requests_with(None);
    assert_eq!(incr(&mut b.through().await, &key).await.expect("INCR"), 1);
    b.finish().await;
}

#[tokio::test]
async fn a_freeze_holds_for_the_connections_of_its_moment() {
    let b = Bench::new("freeze").await;
    let mut old = b.through().await;
    b.proxy.freeze_open(Mode::SILENT);
    let key = b.key.clone();
    let mut answer = std::pin::pin!(incr(&mut old, &key));
    assert!(timeout(SHORT, &mut answer).await.is_err(), "answered through a frozen connection");
    assert_eq!(incr(&mut b.through().await, &key).await.expect("a new connection is served"), 1);
    b.proxy.set(Mode::Pass);
    assert!(timeout(SHORT, &mut answer).await.is_err(), "frozen for good");
    b.finish().await;
}

async fn read_until(stream: &mut TcpStream, text: &mut String, end: &str) {
    let mut buffer = [0; 4096];
    while !text.ends_with(end) {
        let read = timeout(Duration::from_secs(5), stream.read(&mut buffer)).await;
        let n = read.unwrap_or_else(|_| panic!("no {end:?} in {text:?}")).expect("read");
        assert!(n > 0, "ended: {text:?}");
        text.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
}
