//! A TCP proxy in front of a server, to break connections as a network does.
//!
//! Servers and sentinels know each other by the addresses of the proxies too, since that is where clients are to go. What
//! is broken concerns couriers alone: their connections begin with `HELLO`, and no others do.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::output::Failure;

/// What happens to the couriers' bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    #[default]
    Pass,
    /// They arrive so much later, each way.
    Delay(Duration),
    /// Sockets stay open, and no byte gets through in the directions named. They arrive when it ends.
    Silent { to_server: bool, to_client: bool },
    /// Every connection is reset, and every new one at once.
    Refuse,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    mode: Mode,
    /// The first so many connections have this mode whatever the others do, until they are cut.
    frozen: (usize, Mode),
    /// The first so many connections are reset.
    cut: usize,
}

/// See the module.
pub struct Proxy {
    pub port: u16,
    state: watch::Sender<State>,
    accepted: Arc<AtomicUsize>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// In front of a port of 127.0.0.1, whether somebody listens there yet or not.
    pub async fn start(target: watch::Receiver<u16>) -> Result<Self, Failure> {
        let port = super::servers::free_port()?;
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let state = watch::Sender::new(State::default());
        let accepted = Arc::new(AtomicUsize::new(0));
        let accepting = tokio::spawn(accept(listener, target, state.subscribe(), accepted.clone()));
        Ok(Self { port, state, accepted, accepting })
    }

    /// From now on, for all couriers.
    pub fn set(&self, mode: Mode) {
        let accepted = self.accepted.load(Ordering::SeqCst);
        self.state.send_modify(|state| {
            state.mode = mode;
            if mode == Mode::Refuse {
                state.cut = accepted;
            }
        });
    }

    /// The couriers' connections that are open now have this mode from now on; new ones are not affected.
    pub fn freeze(&self, mode: Mode) {
        let accepted = self.accepted.load(Ordering::SeqCst);
        self.state.send_modify(|state| state.frozen = (accepted, mode));
    }

    /// Resets what was frozen, as a system does at last.
    pub fn cut_frozen(&self) {
        self.state.send_modify(|state| state.cut = state.cut.max(state.frozen.0));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.state.send_modify(|state| state.cut = usize::MAX);
    }
}

async fn accept(
    listener: TcpListener,
    target: watch::Receiver<u16>,
    state: watch::Receiver<State>,
    accepted: Arc<AtomicUsize>,
) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Out of descriptors, or reset before it was taken.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let number = accepted.fetch_add(1, Ordering::SeqCst) + 1;
        let (target, state) = (*target.borrow(), state.clone());
        tokio::spawn(async move {
            // A close with this set is a reset; an orderly end is shut down first.
            let _ = client.set_zero_linger();
            let _ = client.set_nodelay(true);
            let _ = serve(client, number, target, state).await;
        });
    }
}

async fn serve(
    mut client: TcpStream,
    number: usize,
    target: u16,
    state: watch::Receiver<State>,
) -> io::Result<()> {
    let mut first = vec![0; 16 << 10];
    let read = client.read(&mut first).await?;
    first.truncate(read);
    let courier = first.windows(5).any(|w| w == b"HELLO");
    if courier && state.borrow().mode == Mode::Refuse {
        return Ok(());
    }
    let mut server = TcpStream::connect(("127.0.0.1", target)).await?;
    server.set_nodelay(true)?;
    if !courier {
        server.write_all(&first).await?;
        return tokio::io::copy_bidirectional(&mut client, &mut server).await.map(drop);
    }
    broken(client, server, first, number, state).await
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ToServer,
    ToClient,
}

async fn broken(
    client: TcpStream,
    server: TcpStream,
    first: Vec<u8>,
    number: usize,
    state: watch::Receiver<State>,
) -> io::Result<()> {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let both = async {
        tokio::try_join!(
            pump(from_client, to_server, first, number, Way::ToServer, state.clone()),
            pump(from_server, to_client, Vec::new(), number, Way::ToClient, state.clone())
        )
    };
    let mut cuts = state.clone();
    tokio::select! {
        cut = cuts.wait_for(|s| number <= s.cut) => drop(cut),
        done = both => drop(done?),
    }
    Ok(())
}

/// One direction, until its end is handed on.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    first: Vec<u8>,
    number: usize,
    way: Way,
    mut state: watch::Receiver<State>,
) -> io::Result<()> {
    // Reading and writing apart: a delay must not slow down what comes behind it.
    let (sender, mut chunks) = mpsc::channel::<(Instant, Vec<u8>)>(256);
    let read = async move {
        if !first.is_empty() {
            let _ = sender.send((Instant::now(), first)).await;
        }
        let mut buffer = vec![0; 16 << 10];
        loop {
            let n = from.read(&mut buffer).await?;
            if sender.send((Instant::now(), buffer[..n].to_vec())).await.is_err() || n == 0 {
                return io::Result::Ok(());
            }
        }
    };
    let write = async {
        while let Some((came, chunk)) = chunks.recv().await {
            hold(&mut state, number, way, came).await;
            if chunk.is_empty() {
                return to.shutdown().await;
            }
            to.write_all(&chunk).await?;
        }
        Ok(())
    };
    tokio::try_join!(read, write).map(drop)
}

/// Until a chunk that came at that moment may go on.
async fn hold(state: &mut watch::Receiver<State>, number: usize, way: Way, came: Instant) {
    loop {
        let now = *state.borrow_and_update();
        let mode = if number <= now.frozen.0 { now.frozen.1 } else { now.mode };
        let due = match mode {
            Mode::Pass => return,
            Mode::Delay(by) if came + by <= Instant::now() => return,
            Mode::Delay(by) => Some(came + by),
            Mode::Silent { to_server, to_client } => {
                if !(if way == Way::ToServer { to_server } else { to_client }) {
                    return;
                }
                None
            }
            Mode::Refuse => None,
        };
        tokio::select! {
            changed = state.changed() => if changed.is_err() { return },
            () = async { tokio::time::sleep_until(due.unwrap_or_else(Instant::now)).await }, if due.is_some() => {}
        }
    }
}
