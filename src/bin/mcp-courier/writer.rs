//! Stdout for those who must not wait in a system call.

use std::io;
use std::sync::mpsc;

use tokio::sync::oneshot;

use crate::output;

struct Job {
    line: String,
    done: oneshot::Sender<io::Result<()>>,
}

/// Stdout behind a thread of its own: a reader that stands still (a pager, a full pipe) holds up the lines, and not
/// the heartbeat, the signals, or the other deliveries.
#[derive(Clone)]
pub struct Writer(mpsc::Sender<Job>);

impl Writer {
    pub fn start() -> Self {
        let (jobs, queue) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for Job { line, done } in queue {
                // Nobody waits for it any more: its message was given back and is printed by its next owner.
                if !done.is_closed() {
                    let _ = done.send(output::line(&line));
                }
            }
        });
        Self(jobs)
    }

    /// Returns when the line is written and flushed. Dropped before, the line may be out or not.
    pub async fn line(&self, line: String) -> io::Result<()> {
        let (done, written) = oneshot::channel();
        self.0.send(Job { line, done }).map_err(|_| io::ErrorKind::BrokenPipe)?;
        written.await.map_err(|_| io::ErrorKind::BrokenPipe)?
    }
}
