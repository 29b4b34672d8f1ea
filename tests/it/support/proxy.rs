//! A TCP proxy in front of a server that misbehaves on demand.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

/// What happens to the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// Replies come so much later.
    Delay(Duration),
    /// Bytes of a direction vanish; the sockets stay open.
    Blackhole {
        to_server: bool,
        to_client: bool,
    },
    /// New connections are closed at once; those that are open are cut.
    Refuse,
}

/// Clones share it; with the last one it ends, and its connections with it.
#[derive(Clone)]
pub struct Proxy {
    url: String,
    shared: Arc<Shared>,
    _guard: Arc<DropGuard>,
}

struct Shared {
    upstream: String,
    rules: Mutex<Rules>,
    connections: Mutex<Vec<Connection>>,
    accepted: AtomicUsize,
    stop: CancellationToken,
}

struct Rules {
    mode: Mode,
    cut_after: Option<usize>,
    drop_replies: Option<Vec<u8>>,
    drop_requests: Option<Vec<u8>>,
}

#[derive(Clone)]
struct Connection {
    cut: CancellationToken,
    /// Overrides the proxy's mode for this connection.
    own: Arc<Mutex<Option<Mode>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ToServer,
    ToClient,
}

impl Proxy {
    /// In front of a `redis://host:port/…` server; `None` for one that is not behind TCP.
    pub async fn in_front_of(url: &str) -> Option<Self> {
        let rest = url.strip_prefix("redis://")?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(u, h)| (Some(u), h));
        let upstream = if host.contains(':') { host.to_owned() } else { format!("{host}:6379") };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let user = user.map(|u| format!("{u}@")).unwrap_or_default();
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            upstream,
            rules: Mutex::new(Rules {
                mode: Mode::Pass,
                cut_after: None,
                drop_replies: None,
                drop_requests: None,
            }),
            connections: Mutex::default(),
            accepted: AtomicUsize::new(0),
            stop: stop.clone(),
        });
        tokio::spawn(accept(listener, shared.clone()));
        Some(Self {
            url: format!("redis://{user}127.0.0.1:{port}/{path}"),
            shared,
            _guard: Arc::new(stop.drop_guard()),
        })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn set(&self, mode: Mode) {
        self.shared.rules().mode = mode;
        if mode == Mode::Refuse {
            self.cut();
        }
    }

    /// Closes every connection that is open now.
    pub fn cut(&self) {
        for connection in self.shared.open().drain(..) {
            connection.cut.cancel();
        }
    }

    /// The connections that are open now get this mode for good; new ones pass.
    pub fn blackhole_existing(&self, mode: Mode) {
        for connection in self.shared.open().iter() {
            *connection.own.lock().expect("not poisoned") = Some(mode);
        }
    }

    /// Of the next reply so many bytes pass, then its connection is cut. Once.
    pub fn cut_after_reply_bytes(&self, bytes: usize) {
        self.shared.rules().cut_after = Some(bytes);
    }

    /// Chunks from the server that contain these bytes vanish.
    pub fn drop_replies_with(&self, bytes: Option<Vec<u8>>) {
        self.shared.rules().drop_replies = bytes;
    }

    /// Chunks to the server that contain these bytes vanish.
    pub fn drop_requests_with(&self, bytes: Option<Vec<u8>>) {
        self.shared.rules().drop_requests = bytes;
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Connections that are open now.
    pub fn open(&self) -> usize {
        let mut open = self.shared.open();
        open.retain(|c| !c.cut.is_cancelled());
        open.len()
    }
}

impl Shared {
    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().expect("not poisoned")
    }

    fn open(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.connections.lock().expect("not poisoned")
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let client = tokio::select! {
            accepted = listener.accept() => accepted.expect("accepts").0,
            () = shared.stop.cancelled() => return,
        };
        shared.accepted.fetch_add(1, Ordering::Relaxed);
        if shared.rules().mode == Mode::Refuse {
            continue;
        }
        let connection = Connection { cut: shared.stop.child_token(), own: Arc::default() };
        shared.open().push(connection.clone());
        tokio::spawn(serve(client, connection, shared.clone()));
    }
}

async fn serve(client: TcpStream, connection: Connection, shared: Arc<Shared>) {
    let Ok(server) = TcpStream::connect(&shared.upstream).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let both = async {
        tokio::select! {
            () = pump(from_client, to_server, Way::ToServer, &connection, &shared) => {}
            () = pump(from_server, to_client, Way::ToClient, &connection, &shared) => {}
        }
    };
    tokio::select! {
        () = both => {}
        () = connection.cut.cancelled() => {}
    }
    connection.cut.cancel();
}

async fn pump(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    way: Way,
    connection: &Connection,
    shared: &Shared,
) {
    let mut buffer = vec![0; 256 << 10];
    loop {
        let Ok(n) = from.read(&mut buffer).await else { return };
        if n == 0 {
            return;
        }
        let mut chunk = &buffer[..n];
        let own = *connection.own.lock().expect("not poisoned");
        let (mode, vanishes, cut_after) = {
            let mut rules = shared.rules();
            let pattern = if way == Way::ToServer { &rules.drop_requests } else { &rules.drop_replies };
            let vanishes = pattern.as_ref().is_some_and(|p| chunk.windows(p.len()).any(|w| w == &p[..]));
            let cut_after = if way == Way::ToClient { rules.cut_after.take() } else { None };
            (own.unwrap_or(rules.mode), vanishes, cut_after)
        };
        match mode {
            Mode::Delay(by) if way == Way::ToClient => tokio::time::sleep(by).await,
            Mode::Blackhole { to_server: true, .. } if way == Way::ToServer => continue,
            Mode::Blackhole { to_client: true, .. } if way == Way::ToClient => continue,
            _ => {}
        }
        if vanishes {
            continue;
        }
        if let Some(bytes) = cut_after {
            chunk = &chunk[..bytes.min(n)];
        }
        if to.write_all(chunk).await.is_err() || cut_after.is_some() {
            return;
        }
    }
}
