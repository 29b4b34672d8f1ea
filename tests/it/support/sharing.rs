//! One server for all tests.
//!
//! `cargo test` runs all tests in one process: a static holds the server. `cargo nextest` runs each test in a process
//! of its own: the first one starts the server, the others read its URL from a file that bears the run's id, and it
//! lives as long as the runner.

use std::fs::File;
use std::path::Path;
use std::sync::OnceLock;

use super::backend::{Backend, Kind, backend};
use super::binary::{self, Process};
use super::docker::{self, Container};
use super::names;
use super::ready::{free_port, wait_ready};
use super::supervisor::{AtTheEnd, outlast};

/// The shared server's URL and where it comes from.
#[derive(Clone, Debug)]
pub struct Shared {
    pub url: String,
    pub kind: Kind,
    /// A single server beside it, for what a Cluster cannot do.
    pub plain: Option<String>,
}

/// What keeps the server up until the process ends. Only held, never looked at.
#[derive(Debug)]
enum Held {
    Nothing,
    Process(#[allow(dead_code)] Process),
    Container(#[allow(dead_code)] Container),
    #[cfg(feature = "sentinel")]
    Trio(#[allow(dead_code)] super::sentinel::Trio),
    #[cfg(feature = "cluster")]
    Cluster(#[allow(dead_code)] super::cluster::Cluster, #[allow(dead_code)] Process),
}

fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}")
}

/// The server that all tests share, started by whoever comes first.
pub async fn shared() -> Result<Shared, String> {
    static SHARED: OnceLock<Result<(Shared, Held), String>> = OnceLock::new();
    let find = || {
        // On a thread and a runtime of its own: the runtime of the test that happens to be first ends with that test.
        let worker = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map_err(|e| e.to_string())?.block_on(find())
        });
        worker.join().unwrap_or_else(|_| Err("starting the shared server panicked".into()))
    };
    SHARED.get_or_init(find).as_ref().map(|(shared, _)| shared.clone()).map_err(Clone::clone)
}

async fn find() -> Result<(Shared, Held), String> {
    let backend = backend().await?;
    let kind = backend.kind();
    let run = std::env::var("NEXTEST_RUN_ID").ok();
    #[cfg_attr(not(feature = "cluster"), allow(unused_mut))]
    let mut plain = None;
    let (url, held) = match (backend, run) {
        (Backend::Url(url), _) => (url, Held::Nothing),
        (Backend::Memory, _) => ("memory://".to_owned(), Held::Nothing),
        #[cfg(feature = "sentinel")]
        (Backend::Sentinel(program), None) => {
            let trio = super::sentinel::Trio::start(&program, super::sentinel::Setup::default()).await?;
            (trio.url(), Held::Trio(trio))
        }
        #[cfg(feature = "cluster")]
        (Backend::Cluster(program), None) => {
            let timeout = std::time::Duration::from_secs(30);
            let cluster = super::cluster::Cluster::start(&program, timeout, &[]).await?;
            let beside = Process::start(&program, &[]).await?;
            plain = Some(url(beside.port));
            (cluster.url(), Held::Cluster(cluster, beside))
        }
        (Backend::Cluster(_), _) => {
            return Err(
                "TEST_REDIS=cluster needs the feature `cluster`, and `cargo test`: the processes of \
                        nextest cannot share several servers"
                    .into(),
            );
        }
        (Backend::Sentinel(_), _) => {
            return Err(
                "TEST_REDIS=sentinel needs the feature `sentinel`, and `cargo test`: the processes of \
                        nextest cannot share several servers"
                    .into(),
            );
        }
        (backend, Some(run)) => (of_the_run(&backend, &run).await?, Held::Nothing),
        (Backend::Docker, None) => {
            let container = Container::start(&[]).await?;
            (url(container.port), Held::Container(container))
        }
        (Backend::Binary(program), None) => {
            let process = Process::start(&program, &[]).await?;
            (url(process.port), Held::Process(process))
        }
    };
    Ok((Shared { url, kind, plain }, held))
}

/// The server of this run of nextest. Its folder goes with it.
#[allow(
    clippy::incompatible_msrv,
    reason = "File::lock is newer than the library's oldest compiler; tests are not"
)]
async fn of_the_run(backend: &Backend, run: &str) -> Result<String, String> {
    let run: String = run.chars().filter(char::is_ascii_alphanumeric).collect();
    let folder = std::env::temp_dir().join(format!("mcp-courier-{:?}-{run}", backend.kind()).to_lowercase());
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let lock = File::create(folder.join("lock")).map_err(|e| format!("{}: {e}", folder.display()))?;
    // Held until this function returns.
    lock.lock().map_err(|e| format!("{}: {e}", folder.display()))?;
    let file = folder.join("port");
    if let Some(port) = std::fs::read_to_string(&file).ok().and_then(|p| p.parse::<u16>().ok()) {
        wait_ready(port, None, None).await.map_err(|e| format!("the shared server is gone: {e}"))?;
        return Ok(url(port));
    }
    let port = start_for_the_run(backend, &folder).await?;
    std::fs::write(&file, port.to_string()).map_err(|e| format!("{}: {e}", file.display()))?;
    Ok(url(port))
}

async fn start_for_the_run(backend: &Backend, folder: &Path) -> Result<u16, String> {
    let runner = std::os::unix::process::parent_id();
    let port = free_port();
    match backend {
        Backend::Binary(program) => {
            let command = binary::command(program, folder, port, &[]);
            outlast(runner, folder, &command).map_err(|e| format!("sh: {e}"))?;
            wait_ready(port, None, Some(&folder.join("log"))).await?;
            Ok(port)
        }
        _ => {
            let name = names::unique("run");
            let text = format!(r#"{}; rm -rf "$2""#, docker::REMOVE);
            AtTheEnd::of(runner, &text, &[&name, &folder.display().to_string()])
                .map_err(|e| format!("sh: {e}"))?;
            docker::run(&name, port, &[]).await
        }
    }
}
