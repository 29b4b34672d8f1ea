//! A TCP proxy in front of a server, to break connections in every way a network can.
//!
//! Bytes held back by a black hole are not lost: they arrive when it ends, as TCP would send them again. What must be
//! lost goes with its connection.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::resp::{command, frame_len};
use super::server::open_engine;

/// What the proxy does with all its connections, old and new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    #[default]
    Pass,
    /// Every byte arrives so much later, each way. The throughput stays.
    Delay(Duration),
    /// Sockets stay open, and no byte gets through in the directions named.
    Blackhole { to_server: bool, to_client: bool },
    /// Every connection is reset, and every new one at once.
    Refuse,
}

impl Mode {
    /// Silence both ways, as a pulled cable is.
    pub const SILENT: Self = Self::Blackhole { to_server: true, to_client: true };
    /// Commands arrive and run; their replies do not come back.
    pub const SWALLOW_REPLIES: Self = Self::Blackhole { to_server: false, to_client: true };
}

/// What the proxy refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refuse {
    /// Calls of scripts.
    Scripts,
    /// Whatever is asked, the greeting of a new connection included.
    Everything,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ToServer,
    ToClient,
}

/// See the module.
#[derive(Debug)]
pub struct Proxy {
    url: String,
    shared: Arc<Shared>,
    accepting: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    mode: watch::Sender<Mode>,
    /// Goes up to end every connection that was opened before.
    cuts: watch::Sender<usize>,
    accepted: AtomicUsize,
    open: AtomicUsize,
    dropped: AtomicUsize,
    /// Bytes that may still pass to clients before the connection that would carry the next one is reset.
    budget: Mutex<Option<usize>>,
    /// Frames to clients that hold these bytes are dropped.
    unwanted: Mutex<Option<Vec<u8>>>,
    /// Requests that hold these bytes are dropped.
    unwanted_requests: Mutex<Option<Vec<u8>>>,
    /// What is refused, and with which error.
    refusing: Mutex<Option<(Refuse, String)>>,
    refused: AtomicUsize,
    /// The first so many connections have this mode, whatever the others do.
    frozen: watch::Sender<(usize, Mode)>,
}

impl Proxy {
    /// In front of `redis://` or of an engine in memory (which a client of the proxy then reaches by `redis://` too).
    pub async fn start(target: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port for the proxy");
        let port = listener.local_addr().expect("bound").port();
        let target = &super::server::direct(target).await;
        let mut url = url::Url::parse(target).expect("a URL");
        let target = match url.scheme() {
            "memory" => {
                let name = target.trim_start_matches("memory://").to_owned();
                url = url::Url::parse(&format!("redis://127.0.0.1:{port}")).expect("a URL");
                Target::Memory(name)
            }
            "redis" | "rediss" => {
                let host = url.host_str().expect("a host").to_owned();
                let address = (host, url.port().unwrap_or(6379));
                url.set_host(Some("127.0.0.1")).expect("a URL with a host");
                url.set_port(Some(port)).expect("a URL with a host");
                Target::Tcp(address.0, address.1)
            }
            other => panic!("no proxy for {other}://"),
        };
        let shared = Arc::new(Shared {
            mode: watch::Sender::new(Mode::Pass),
            cuts: watch::Sender::new(0),
            accepted: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
            budget: Mutex::new(None),
            unwanted: Mutex::new(None),
            unwanted_requests: Mutex::new(None),
            refusing: Mutex::new(None),
            refused: AtomicUsize::new(0),
            frozen: watch::Sender::new((0, Mode::Pass)),
        });
        let accepting = tokio::spawn(accept(listener, Arc::new(target), shared.clone()));
        let url = url.to_string().trim_end_matches('/').to_owned();
        Self { url, shared, accepting }
    }

    /// What a courier connects to.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// From now on.
    pub fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
        if mode == Mode::Refuse {
            self.cut();
        }
    }

    /// The connections that are open now have this mode for good; new ones are not affected.
    pub fn freeze_open(&self, mode: Mode) {
        self.shared.frozen.send_replace((self.accepted(), mode));
    }

    /// Answers these requests with this error (`OOM text`) instead of having them done; `None` ends that.
    pub fn refuse(&self, what: Refuse, with: Option<&str>) {
        *self.shared.refusing.lock().expect("not poisoned") = with.map(|text| (what, text.to_owned()));
    }

    /// Requests refused so far.
    pub fn refused(&self) -> usize {
        self.shared.refused.load(Ordering::SeqCst)
    }

    /// Drops every request that holds `pattern`, such as a command's name; `None` ends that.
    pub fn drop_requests_with(&self, pattern: Option<&[u8]>) {
        *self.shared.unwanted_requests.lock().expect("not poisoned") = pattern.map(<[u8]>::to_vec);
    }

    /// Resets every connection that is open now; new ones are served.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|n| *n += 1);
    }

    /// Lets `bytes` more bytes through to clients, all connections together, then resets the one that has the next
    /// byte to carry. With 0 the next command runs and its reply is lost with the connection.
    pub fn cut_after_reply_bytes(&self, bytes: usize) {
        *self.shared.budget.lock().expect("not poisoned") = Some(bytes);
    }

    /// Drops every frame to a client that holds `pattern`, such as the channel of a doorbell; `None` ends that. What is
    /// dropped is counted.
    pub fn drop_frames_with(&self, pattern: Option<&[u8]>) {
        *self.shared.unwanted.lock().expect("not poisoned") = pattern.map(<[u8]>::to_vec);
    }

    /// Frames dropped so far.
    pub fn dropped(&self) -> usize {
        self.shared.dropped.load(Ordering::SeqCst)
    }

    /// Connections accepted so far, those that were refused included.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Connections open now.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

enum Target {
    Tcp(String, u16),
    Memory(String),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Target {
    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(host, port) => {
                let stream = TcpStream::connect((&**host, *port)).await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Self::Memory(name) => Box::new(open_engine(name)),
        })
    }
}

async fn accept(listener: TcpListener, target: Arc<Target>, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let number = shared.accepted.fetch_add(1, Ordering::SeqCst) + 1;
        // Before the mode is read: a cut that comes with `Refuse` is then seen either here or there.
        let cuts = shared.cuts.subscribe();
        // A close with this set is a reset; an orderly end is shut down first.
        let _ = client.set_zero_linger();
        let _ = client.set_nodelay(true);
        if *shared.mode.borrow() == Mode::Refuse {
            continue;
        }
        let (target, shared) = (target.clone(), shared.clone());
        tokio::spawn(async move {
            shared.open.fetch_add(1, Ordering::SeqCst);
            serve(client, number, &target, &shared, cuts).await;
            shared.open.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

async fn serve(
    mut client: TcpStream,
    number: usize,
    target: &Target,
    shared: &Shared,
    mut cuts: watch::Receiver<usize>,
) {
    let both = async {
        let server = target.connect().await?;
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = tokio::io::split(server);
        tokio::try_join!(
            pump(from_client, to_server, shared, number, Way::ToServer),
            pump(from_server, to_client, shared, number, Way::ToClient)
        )
    };
    tokio::select! {
        _ = cuts.changed() => {}
        _ = both => {}
    }
}

/// One direction, until its end is handed on (`Ok`) or the connection has to be reset (`Err`).
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    shared: &Shared,
    number: usize,
    way: Way,
) -> io::Result<()> {
    // Reading and writing apart: a delay must not slow down what comes behind it.
    let (sender, mut chunks) = mpsc::channel::<(Instant, Vec<u8>)>(256);
    let read = async move {
        let mut buffer = vec![0; 16 << 10];
        loop {
            let n = from.read(&mut buffer).await?;
            if sender.send((Instant::now(), buffer[..n].to_vec())).await.is_err() || n == 0 {
                return Ok(());
            }
        }
    };
    let write = async {
        let mut frames = Frames::default();
        while let Some((came, chunk)) = chunks.recv().await {
            if chunk.is_empty() {
                hold(shared, number, way, came).await;
                return to.shutdown().await;
            }
            if way == Way::ToServer {
                for request in frames.push(&chunk) {
                    hold(shared, number, way, came).await;
                    let unwanted = shared.unwanted_requests.lock().expect("not poisoned").clone();
                    if unwanted.is_some_and(|p| request.windows(p.len().max(1)).any(|w| w == p)) {
                        shared.dropped.fetch_add(1, Ordering::SeqCst);
                        continue;
                    }
                    let error = refusal(shared, &request);
                    to.write_all(error.as_deref().unwrap_or(&request)).await?;
                }
                continue;
            }
            for frame in frames.push(&chunk) {
                hold(shared, number, way, came).await;
                let unwanted = shared.unwanted.lock().expect("not poisoned").clone();
                if unwanted.is_some_and(|p| frame.windows(p.len().max(1)).any(|w| w == p)) {
                    shared.dropped.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                let allowed = spend(shared, frame.len());
                to.write_all(&frame[..allowed]).await?;
                if allowed < frame.len() {
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
            }
        }
        Ok(())
    };
    tokio::try_join!(read, write).map(drop)
}

/// What goes to the server in place of a request that is to be refused: one that answers with the error, so that
/// replies keep their order.
fn refusal(shared: &Shared, request: &[u8]) -> Option<Vec<u8>> {
    let refusing = shared.refusing.lock().expect("not poisoned");
    let (what, text) = refusing.as_ref()?;
    let name = request.split(|&b| b == b'\n').nth(2).unwrap_or_default();
    let script = name == b"EVALSHA\r" || name == b"EVAL\r";
    if *what == Refuse::Scripts && !script {
        return None;
    }
    shared.refused.fetch_add(1, Ordering::SeqCst);
    Some(command(&["EVAL", "return redis.error_reply(ARGV[1])", "0", text]))
}

/// Until a chunk that came at that moment may go on.
async fn hold(shared: &Shared, number: usize, way: Way, came: Instant) {
    let mut modes = shared.mode.subscribe();
    let mut frozen = shared.frozen.subscribe();
    loop {
        let (first, frozen_mode) = *frozen.borrow_and_update();
        let all = *modes.borrow_and_update();
        let mode = if number <= first { frozen_mode } else { all };
        let due = match mode {
            Mode::Pass => return,
            Mode::Delay(by) if came + by <= Instant::now() => return,
            Mode::Delay(by) => Some(came + by),
            Mode::Blackhole { to_server, to_client } => {
                if !(if way == Way::ToServer { to_server } else { to_client }) {
                    return;
                }
                None
            }
            Mode::Refuse => None,
        };
        tokio::select! {
            changed = modes.changed() => if changed.is_err() { return },
            changed = frozen.changed() => if changed.is_err() { return },
            () = async { tokio::time::sleep_until(due.unwrap_or_else(Instant::now)).await }, if due.is_some() => {}
        }
    }
}

/// How many of so many bytes may go to the client. A budget that runs out is over: it ends one connection.
fn spend(shared: &Shared, bytes: usize) -> usize {
    let mut budget = shared.budget.lock().expect("not poisoned");
    match *budget {
        None => bytes,
        Some(left) if bytes <= left => {
            *budget = Some(left - bytes);
            bytes
        }
        Some(left) => {
            *budget = None;
            left
        }
    }
}

/// Cuts a stream of requests or replies into frames. What is not RESP (TLS) passes as it comes.
#[derive(Default)]
struct Frames {
    pending: Vec<u8>,
    opaque: bool,
}

impl Frames {
    fn push(&mut self, chunk: &[u8]) -> VecDeque<Vec<u8>> {
        let mut whole = VecDeque::new();
        if self.opaque {
            whole.push_back(chunk.to_vec());
            return whole;
        }
        self.pending.extend_from_slice(chunk);
        let mut at = 0;
        while let Some(len) = frame_len(&self.pending[at..]) {
            if len == 0 {
                self.opaque = true;
                whole.push_back(std::mem::take(&mut self.pending)[at..].to_vec());
                return whole;
            }
            whole.push_back(self.pending[at..at + len].to_vec());
            at += len;
        }
        self.pending.drain(..at);
        whole
    }
}
