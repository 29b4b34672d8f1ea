//! What the library logs, as text.

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock};

use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;

/// Takes every event and span of this thread, from TRACE up, while it lives.
///
/// A test with `#[tokio::test]` runs on one thread, its tasks included. What other threads log is not seen.
pub struct Capture {
    buffer: Buffer,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("not poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Buffer {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// As long as a program has one subscriber, `tracing` asks the thread that meets a call site first whether anybody
/// wants it, and keeps a "no" of a thread without a subscriber for all threads. With a second one it asks all.
pub fn share_call_sites() {
    static SECOND: OnceLock<tracing::Dispatch> = OnceLock::new();
    SECOND.get_or_init(|| tracing::Dispatch::new(tracing_subscriber::registry()));
}

impl Capture {
    /// From now on.
    pub fn start() -> Self {
        share_call_sites();
        let buffer = Buffer::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .without_time()
            .with_span_events(FmtSpan::NEW | FmtSpan::CLOSE)
            .with_writer(buffer.clone())
            .finish();
        Self { buffer, _guard: tracing::subscriber::set_default(subscriber) }
    }

    /// Everything so far, a line for each event: level, spans with their fields, target, message, fields.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.buffer.0.lock().expect("not poisoned")).into_owned()
    }

    /// The lines that hold all of `words`.
    pub fn lines_with(&self, words: &[&str]) -> Vec<String> {
        let text = self.text();
        text.lines().filter(|l| words.iter().all(|w| l.contains(w))).map(str::to_owned).collect()
    }
}
