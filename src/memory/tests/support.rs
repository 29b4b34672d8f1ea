//! A bare RESP client, and a private server to compare with.

use crate::memory::Memory;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A reply as it came over the wire, with the type that was sent. Of an error only its code is kept: texts differ
/// between versions of the real server, too.
#[derive(Clone, PartialEq, PartialOrd)]
pub(crate) enum Wire {
    Line(char, String),
    Error(String),
    Bulk(Vec<u8>),
    Null,
    Group(char, Vec<Wire>),
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Wire::Line(kind, text) => write!(f, "{kind}{text}"),
            Wire::Error(code) => write!(f, "-{code}"),
            Wire::Bulk(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Wire::Null => f.write_str("null"),
            Wire::Group(kind, items) => write!(f, "{kind}{items:?}"),
        }
    }
}

impl Wire {
    pub(crate) fn int(&self) -> i64 {
        match self {
            Wire::Line(':', text) => text.parse().unwrap(),
            other => panic!("not an integer: {other:?}"),
        }
    }

    pub(crate) fn items(&self) -> &[Wire] {
        match self {
            Wire::Group(_, items) => items,
            other => panic!("not a group: {other:?}"),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Wire::Bulk(bytes) => bytes,
            other => panic!("not a string: {other:?}"),
        }
    }
}

pub(crate) struct Raw(BufReader<Box<dyn Stream>>);

impl Raw {
    pub(crate) fn new(stream: impl Stream + 'static) -> Self {
        Raw(BufReader::new(Box::new(stream)))
    }

    /// Reads one reply or push.
    pub(crate) async fn read(&mut self) -> Wire {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line).await.unwrap();
        let line = line.strip_suffix(b"\r\n").unwrap_or_else(|| panic!("connection ended: {line:?}"));
        let (kind, text) = (char::from(line[0]), String::from_utf8_lossy(&line[1..]).into_owned());
        match kind {
            '-' => Wire::Error(text.split(' ').next().unwrap_or_default().to_owned()),
            '_' => Wire::Null,
            '$' | '*' if text == "-1" => Wire::Null,
            '$' | '=' => {
                let mut bytes = vec![0; text.parse::<usize>().unwrap() + 2];
                self.0.read_exact(&mut bytes).await.unwrap();
                bytes.truncate(bytes.len() - 2);
                Wire::Bulk(bytes)
            }
            '*' | '%' | '>' | '~' => {
                let count = text.parse::<usize>().unwrap() * if kind == '%' { 2 } else { 1 };
                let mut items = Vec::new();
                for _ in 0..count {
                    items.push(Box::pin(self.read()).await);
                }
                Wire::Group(kind, items)
            }
            _ => Wire::Line(kind, text),
        }
    }

    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).await.unwrap();
        self.0.get_mut().flush().await.unwrap();
    }

    /// Sends all, then reads a reply for each.
    pub(crate) async fn pipeline(&mut self, requests: &[Vec<Vec<u8>>]) -> Vec<Wire> {
        let bytes: Vec<u8> = requests.iter().flat_map(|request| encode(request)).collect();
        self.send_bytes(&bytes).await;
        let mut replies = Vec::new();
        for _ in requests {
            replies.push(self.read().await);
        }
        replies
    }

    pub(crate) async fn call<A: AsRef<[u8]>>(&mut self, request: &[A]) -> Wire {
        let request: Vec<Vec<u8>> = request.iter().map(|arg| arg.as_ref().to_vec()).collect();
        self.pipeline(&[request]).await.remove(0)
    }

    /// A command without spaces in its arguments.
    pub(crate) async fn words(&mut self, line: &str) -> Wire {
        self.call(&line.split(' ').collect::<Vec<_>>()).await
    }

    /// Whether the other side ended the connection.
    pub(crate) async fn ended(&mut self) -> bool {
        let mut rest = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(5), self.0.read_to_end(&mut rest)).await;
        matches!(read, Ok(Ok(0) | Err(_)))
    }
}

pub(crate) fn encode(request: &[Vec<u8>]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", request.len()).into_bytes();
    for arg in request {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// A server of our own on a socket in a directory of its own; gone when dropped.
pub(crate) struct Server {
    process: Child,
    dir: tempfile::TempDir,
}

impl Server {
    /// `None`, with a message, where there is no `redis-server`.
    pub(crate) async fn start() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let spawned = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(dir.path().join("redis.sock"))
            .arg("--dir")
            .arg(dir.path())
            .stdout(Stdio::null())
            .spawn();
        let Ok(process) = spawned else {
            eprintln!("SKIPPED: no redis-server on PATH to compare the memory engine with");
            return None;
        };
        let server = Server { process, dir };
        let begun = Instant::now();
        while server.socket().await.is_err() {
            assert!(begun.elapsed() < Duration::from_secs(20), "the server does not answer");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Some(server)
    }

    async fn socket(&self) -> std::io::Result<UnixStream> {
        UnixStream::connect(self.dir.path().join("redis.sock")).await
    }

    pub(crate) async fn connect(&self) -> Raw {
        Raw::new(self.socket().await.unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The engine beside a real server, asked the same.
pub(crate) struct Pair {
    server: Server,
    memory: Memory,
    pub(crate) ours: Raw,
    pub(crate) theirs: Raw,
}

impl Pair {
    pub(crate) async fn start(resp: u8) -> Option<Self> {
        let server = Server::start().await?;
        let mut theirs = server.connect().await;
        let memory = Memory::private();
        let mut ours = Raw::new(memory.connect());
        if resp == 3 {
            theirs.words("HELLO 3").await;
            ours.words("HELLO 3").await;
        }
        Some(Pair { server, memory, ours, theirs })
    }

    /// A second connection to each, ours first.
    pub(crate) async fn listeners(&self) -> (Raw, Raw) {
        (Raw::new(self.memory.connect()), self.server.connect().await)
    }

    /// Asks both the same and tells of a difference.
    pub(crate) async fn differ<A: AsRef<[u8]>>(&mut self, request: &[A]) -> Option<String> {
        let theirs = self.theirs.call(request).await;
        let ours = self.ours.call(request).await;
        let shown: Vec<String> = request.iter().map(|arg| arg.as_ref().escape_ascii().to_string()).collect();
        (ours != theirs).then(|| format!("{}\n  ours   {ours:?}\n  theirs {theirs:?}\n", shown.join(" ")))
    }
}

/// Random numbers from `TEST_SEED`, or from a new seed that is printed: that replays a run.
pub(crate) fn seeded() -> (u64, fastrand::Rng) {
    let given = std::env::var("TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("TEST_SEED={seed}");
    (seed, fastrand::Rng::with_seed(seed))
}
