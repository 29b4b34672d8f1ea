//! The examples as a user runs them: servers, a worker and a client, each a process.

use super::running::Running;
use crate::support::fixture::Fixture;

/// A tool hands its work to a worker in another process, which reports progress and asks the user; the client is at either
/// of two servers.
#[tokio::test]
async fn server_worker_and_client_in_three_processes() {
    let t = Fixture::new("mcp_processes").await;
    let url = t.server.url().to_owned();
    if url.starts_with("memory:") {
        eprintln!("skipped: processes cannot share memory://");
        return;
    }
    let server = |t: &Fixture| Running::start("mcp_server", &["127.0.0.1:0", &url, &t.prefix]);
    let (Some(mut a), Some(mut b), Some(mut worker)) =
        (server(&t), server(&t), Running::start("mcp_worker", &[&url, &t.prefix]))
    else {
        eprintln!("skipped: the examples are not built (cargo build --examples --features rmcp)");
        return;
    };
    let urls = [a.line("listening on ").await, b.line("listening on ").await];
    worker.line("waiting for jobs").await;
    for (at, pages, said) in [
        (0, "12", "a report of 12 pages about queues"),
        (1, "7", "a report of 7 pages about queues"),
        // So many that the worker asks twice.
        (1, "60", "a report of 60 pages about queues"),
        (0, "", "stopped: declined"),
    ] {
        let client = Running::start("mcp_client", &[&urls[at], pages]).expect("it is built");
        let lines = client.end().await;
        for begin in ["answer: started ", "heard: collecting sources", "asked: ", &format!("heard: {said}")] {
            assert!(lines.iter().any(|line| line.starts_with(begin)), "no line {begin:?}: {lines:?}");
        }
        let asked = lines.iter().filter(|line| line.starts_with("asked: ")).count();
        assert_eq!(asked, if pages == "60" { 2 } else { 1 }, "{lines:?}");
    }
    worker.interrupt().await;
    a.interrupt().await;
    b.interrupt().await;
    t.finish().await;
}
