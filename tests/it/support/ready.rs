//! Whether a server on a port is up, and whether it is the one that was started.

use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::names;

/// A free port. A Cluster's bus uses port + 10000, and both stay below the ports that clients get.
pub fn free_port() -> u16 {
    for n in 0..1000 {
        let seed = u64::from(std::process::id()) * 131 + names::serial() * 7919 + n;
        let port =
            10_000 + u16::try_from((seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) % 12_700).unwrap_or(0);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between 10000 and 22700");
}

async fn ask(port: u16, request: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = vec![0; 64 << 10];
    let mut len = 0;
    // The answer to INFO may come in pieces; QUIT ends it.
    loop {
        match stream.read(&mut answer[len..]).await? {
            0 => return Ok(String::from_utf8_lossy(&answer[..len]).into_owned()),
            n => len += n,
        }
        let text = String::from_utf8_lossy(&answer[..len]);
        // Up, and nothing more is told to a stranger.
        if text.starts_with("-NOAUTH") {
            return Ok(text.into_owned());
        }
        // A sentinel does not know QUIT, and says so at last.
        if text.lines().last().is_some_and(|l| l.starts_with("-ERR unknown command")) {
            return Ok(text.into_owned());
        }
    }
}

/// `Ok` once the server serves. `pid`: only that process will do, since another server may have won the port.
async fn look(port: u16, pid: Option<u32>) -> Result<(), String> {
    // INFO answers while the AOF is still being read, so it says nothing about readiness: PING does.
    let answer = ask(port, "PING\r\nINFO server\r\nQUIT\r\n").await.map_err(|e| e.to_string())?;
    if answer.starts_with("-NOAUTH") {
        return Ok(());
    }
    if !answer.starts_with("+PONG") {
        return Err(answer.lines().next().unwrap_or("no answer").to_owned());
    }
    let serving: Option<u32> =
        answer.lines().find_map(|l| l.strip_prefix("process_id:")?.trim().parse().ok());
    match (pid, serving) {
        (Some(ours), Some(theirs)) if ours != theirs => Err(format!("port {port} is process {theirs}'s")),
        _ => Ok(()),
    }
}

/// Until the server serves; the error holds the end of its log.
pub async fn wait_ready(port: u16, pid: Option<u32>, log: Option<&Path>) -> Result<(), String> {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let looked = tokio::time::timeout(Duration::from_secs(2), look(port, pid)).await;
        let Err(why) = looked.unwrap_or_else(|_| Err("no answer in 2 s".into())) else { return Ok(()) };
        let text = log.and_then(|l| std::fs::read_to_string(l).ok()).unwrap_or_default();
        let taken =
            ["Address already in use", "Failed listening", "FATAL CONFIG", "Failed finding TLS support"]
                .iter()
                .any(|w| text.contains(w));
        if taken || Instant::now() > end {
            let tail: Vec<_> = text.lines().rev().take(8).collect();
            return Err(format!("{why}; log: {}", tail.into_iter().rev().collect::<Vec<_>>().join(" | ")));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
