//! A server of the test's own, to kill, freeze, flush and configure.

use redis::aio::MultiplexedConnection;

use super::backend::{Backend, Kind, backend};
use super::binary::Process;
use super::docker::Container;
use super::server;

/// How a private server is started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Every write is on the disk before it is answered, so that SIGKILL loses nothing.
    pub appendonly: bool,
    /// More options, as on the command line (`["--maxmemory", "1mb"]`).
    pub extra: &'a [&'a str],
    /// `extra` names files of this machine, which a server in a container does not see.
    pub local_files: bool,
}

/// A process or a container with the life of this value, on 127.0.0.1. Its port and data survive `stop` and
/// `sigkill`.
#[derive(Debug)]
pub struct PrivateServer(Which);

#[derive(Debug)]
enum Which {
    Process(Process),
    Container(Container),
}

impl PrivateServer {
    /// `None` where there cannot be one: the server is somebody else's, or there is none but the engine in memory, or
    /// it would be in a container and needs files of this machine.
    pub async fn start(options: Options<'_>) -> Option<Self> {
        Some(Self::try_start(options).await?.unwrap_or_else(|why| panic!("private server: {why}")))
    }

    /// The same; why it does not start is for the caller to judge.
    pub async fn try_start(options: Options<'_>) -> Option<Result<Self, String>> {
        let mut words: Vec<String> = Vec::new();
        if options.appendonly {
            words.extend(["--appendonly", "yes", "--appendfsync", "always"].map(str::to_owned));
        }
        words.extend(options.extra.iter().map(|&w| w.to_owned()));
        let started = match backend().await.unwrap_or_else(|why| panic!("{why}")) {
            Backend::Binary(program) | Backend::Sentinel(program) | Backend::Cluster(program) => {
                Process::start(&program, &words).await.map(Which::Process)
            }
            Backend::Docker if options.local_files => return None,
            Backend::Docker => Container::start(&words).await.map(Which::Container),
            Backend::Url(_) | Backend::Memory => return None,
        };
        Some(started.map(Self))
    }

    /// What a courier connects to.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        match &self.0 {
            Which::Process(p) => p.port,
            Which::Container(c) => c.port,
        }
    }

    /// Process or container. Files and sockets of the server can be reached only in the first case.
    pub fn kind(&self) -> Kind {
        match &self.0 {
            Which::Process(_) => Kind::Binary,
            Which::Container(_) => Kind::Docker,
        }
    }

    /// A plain connection.
    pub async fn raw(&self) -> MultiplexedConnection {
        server::raw(&self.url()).await
    }

    /// SIGKILL; returns when the process is gone.
    pub async fn sigkill(&self) {
        let done = match &self.0 {
            Which::Process(p) => p.order("kill").await.map(drop),
            Which::Container(c) => c.kill().await,
        };
        done.unwrap_or_else(|why| panic!("{why}"));
    }

    /// SIGTERM; returns when the process is gone.
    pub async fn stop(&self) {
        let done = match &self.0 {
            Which::Process(p) => p.order("stop").await.map(drop),
            Which::Container(c) => c.stop().await,
        };
        done.unwrap_or_else(|why| panic!("{why}"));
    }

    /// Again on the same port with the same data; returns when it serves.
    pub async fn start_again(&self) {
        let done = match &self.0 {
            Which::Process(p) => p.up().await,
            Which::Container(c) => c.up().await,
        };
        done.unwrap_or_else(|why| panic!("{why}"));
    }

    /// Freezes it: connections stay open, nothing is answered.
    pub async fn pause(&self) {
        let done = match &self.0 {
            Which::Process(p) => p.order("pause").await.map(drop),
            Which::Container(c) => c.pause().await,
        };
        done.unwrap_or_else(|why| panic!("{why}"));
    }

    /// Ends a pause.
    pub async fn resume(&self) {
        let done = match &self.0 {
            Which::Process(p) => p.order("resume").await.map(drop),
            Which::Container(c) => c.resume().await,
        };
        done.unwrap_or_else(|why| panic!("{why}"));
    }
}

/// A private server, or a line that says why this test does nothing:
/// `let Some(server) = private_or_skip("name", Options::default()).await else { return };`
pub async fn private_or_skip(test: &str, options: Options<'_>) -> Option<PrivateServer> {
    let server = PrivateServer::start(options).await;
    if server.is_none() {
        eprintln!(
            "{test}: skipped: needs a private server{}",
            if options.local_files { " on this machine" } else { "" }
        );
    }
    server
}
