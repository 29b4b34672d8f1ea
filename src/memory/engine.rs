//! The engine: store and scripts under one lock, and the connections to it.

use super::pubsub::Outbox;
use super::resp::{ProtocolError, parse};
use super::script::{self, Scripts};
use super::session::{Next, Session};
use super::store::{Fault, Store};
use bytes::{Buf, BytesMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};

/// Bytes under way to or from a client.
const PIPE: usize = 64 * 1024;

/// What commands work on. Whoever holds it runs alone: a command, or a script as a whole.
#[derive(Debug)]
pub(super) struct Engine {
    /// Behind a lock of its own, never contended, because `redis.call` needs it while a script runs.
    store: Arc<Mutex<Store>>,
    pub(super) scripts: Scripts,
}

impl Engine {
    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        script::lock(&self.store)
    }
}

/// An engine shared by its handles and its connections.
#[derive(Debug)]
pub(super) struct Shared(Mutex<Engine>);

impl Shared {
    pub(super) fn new() -> Self {
        let store = Arc::new(Mutex::new(Store::default()));
        let scripts =
            Scripts::new(store.clone()).expect("the prelude is a constant that runs in a fresh Lua state");
        Self(Mutex::new(Engine { store, scripts }))
    }

    fn lock(&self) -> MutexGuard<'_, Engine> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn set_clock_ms(&self, now_ms: u64) {
        self.lock().store().set_clock_ms(now_ms);
    }

    /// Opens a connection, served by a task of its own until the other side is dropped.
    pub(super) fn connect(self: &Arc<Self>) -> DuplexStream {
        let (client, server) = tokio::io::duplex(PIPE);
        tokio::spawn(serve(Connection::open(self.clone()), server));
        client
    }
}

/// A session that leaves the engine when it is dropped, however its task ends.
struct Connection {
    engine: Arc<Shared>,
    session: Session,
}

impl Connection {
    fn open(engine: Arc<Shared>) -> Self {
        let outbox = Arc::new(Outbox::default());
        let id = engine.lock().store().channels.join(outbox.clone());
        Self { engine, session: Session::new(id, outbox) }
    }

    fn run(&mut self, request: &[&[u8]]) -> Next {
        let mut engine = self.engine.lock();
        engine.store().tick();
        self.session.run(&mut engine, request)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let engine = self.engine.lock();
        engine.store().channels.leave(self.session.id, self.session.channels.iter());
    }
}

async fn serve(mut connection: Connection, stream: DuplexStream) {
    let (from_client, to_client) = tokio::io::split(stream);
    let outbox = connection.session.outbox.clone();
    let reading = async {
        read_requests(&mut connection, from_client).await;
        connection.session.outbox.finish();
        // The writer ends the connection, after it has sent what is left.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = reading => {}
        () = write_replies(&outbox, to_client) => {}
    }
}

/// Runs what the client sends, as much as there is before a flush, until it ends or breaks the protocol.
async fn read_requests(connection: &mut Connection, mut stream: impl AsyncRead + Unpin) {
    let mut input = BytesMut::new();
    loop {
        input.reserve(PIPE);
        match stream.read_buf(&mut input).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        loop {
            match parse(&input) {
                Ok(Some((request, used))) => {
                    if connection.run(&request) == Next::Close {
                        return;
                    }
                    input.advance(used);
                }
                Ok(None) => break,
                Err(ProtocolError(text)) => {
                    let fault = Fault::new(format!("ERR Protocol error: {text}"));
                    connection.session.outbox.reply(&fault.reply());
                    return;
                }
            }
        }
        connection.session.outbox.flush();
    }
}

async fn write_replies(outbox: &Outbox, mut stream: impl AsyncWrite + Unpin) {
    while let Some(bytes) = outbox.next().await {
        if stream.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
