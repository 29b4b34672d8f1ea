//! `memory://`: a small Redis inside the process.
//!
//! It speaks RESP over an in-process pipe and runs the same Lua files as a real server, so that everything above the
//! connection is one code path. It has the commands that the scripts and the client need, and no others; a random
//! differential test holds it equal to a real server. It keeps nothing on disk: when the last handle and the last
//! connection are gone, so is the data.
//!
//! An idle engine costs nothing: expired keys are removed when they are looked at, and a few more with each command.

mod commands;
mod dict;
mod engine;
mod glob;
mod number;
mod pubsub;
mod resp;
mod script;
mod session;
mod store;
#[cfg(test)]
pub(crate) mod tests;
mod zset;

use engine::Shared;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use tokio::io::DuplexStream;

/// Engines with a name. Only their handles and connections keep them.
static NAMED: LazyLock<Mutex<HashMap<String, Weak<Shared>>>> = LazyLock::new(Mutex::default);

/// Opens a raw RESP connection to the engine called `name`, as in `memory://name`: for tests and tools that look
/// inside.
///
/// The same name is the same engine within the process, as long as somebody holds a connection to it. An empty name is
/// an engine of its own.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// let mut connection = mcp_courier::memory::open("example");
/// connection.write_all(b"*1\r\n$4\r\nPING\r\n").await?;
/// let mut reply = [0; 7];
/// connection.read_exact(&mut reply).await?;
/// assert_eq!(&reply, b"+PONG\r\n");
/// # Ok(())
/// # }
/// ```
///
/// # Panics
///
/// Outside of a Tokio runtime, on which the connection's task runs.
pub fn open(name: &str) -> DuplexStream {
    let engine = if name.is_empty() { Memory::private() } else { Memory::named(name) };
    engine.connect()
}

/// A handle of an engine; a clone is the same engine.
#[derive(Debug, Clone)]
pub(crate) struct Memory(Arc<Shared>);

impl Memory {
    /// A new engine that nobody else can reach.
    pub(crate) fn private() -> Self {
        Self(Arc::new(Shared::new()))
    }

    /// The engine of that name, made when there is none.
    pub(crate) fn named(name: &str) -> Self {
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = named.get(name).and_then(Weak::upgrade) {
            return Self(engine);
        }
        named.retain(|_, engine| engine.strong_count() > 0);
        let memory = Self::private();
        named.insert(name.to_owned(), Arc::downgrade(&memory.0));
        memory
    }

    /// Stops the engine's clock at this time. Keys expire by it.
    #[cfg(test)]
    pub(crate) fn set_clock_ms(&self, now_ms: u64) {
        self.0.set_clock_ms(now_ms);
    }

    /// Opens a connection, served by a task on the current Tokio runtime until the other side is dropped.
    pub(crate) fn connect(&self) -> DuplexStream {
        self.0.connect()
    }
}

/// Reads these bytes as a connection does, and panics where the reader breaks its word.
#[cfg(any(test, fuzzing))]
pub(crate) fn read_requests_of(bytes: &[u8]) {
    let mut rest = bytes;
    while let Ok(Some((args, used))) = resp::parse(rest) {
        assert!(0 < used && used <= rest.len(), "took {used} of {} bytes", rest.len());
        assert!(args.iter().map(|arg| arg.len()).sum::<usize>() < used, "arguments larger than the request");
        assert_eq!(resp::parse(&rest[..used]), Ok(Some((args, used))), "what follows a request changes it");
        rest = &rest[used..];
    }
}
