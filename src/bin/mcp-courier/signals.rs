//! Ctrl-C and SIGTERM.

/// From here on the process does not end by itself when it is asked to stop: the future returns then. To be called
/// before there is anything to tidy up, not when the future is first waited for.
#[cfg(unix)]
pub fn stop() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// As on Unix, where there is no SIGTERM.
#[cfg(not(unix))]
pub fn stop() -> std::io::Result<impl Future<Output = ()>> {
    Ok(async {
        let _ = tokio::signal::ctrl_c().await;
    })
}
