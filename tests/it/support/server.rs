//! The server that all tests share.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisConnectionInfo};
use std::sync::Arc;
use std::time::Duration;

pub use super::backend::Kind;
use super::{names, rights, sharing};

/// The shared server. Never stopped, flushed or configured by a test; see [`super::private`] for one that may be.
#[derive(Clone)]
pub struct Server {
    url: String,
    /// As somebody who may do everything.
    admin: String,
    kind: Kind,
    /// An engine in memory lives as long as somebody is connected.
    _engine: Option<Arc<tokio::io::DuplexStream>>,
}

impl Server {
    /// What a courier connects to: as a user with the rights that the documentation lists, and no others, where the
    /// server is the tests' own.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// As somebody who may do everything: for programs that are not ours, and for what needs more rights.
    pub fn admin_url(&self) -> &str {
        &self.admin
    }

    /// Where it comes from.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// A plain connection, to look at what a courier left or to put something in its way.
    pub async fn raw(&self) -> MultiplexedConnection {
        raw(&self.admin).await
    }
}

/// The shared server; for `memory://` an engine of this call's own. Panics with what was tried when there is none.
pub async fn shared() -> Server {
    let shared = sharing::shared().await.unwrap_or_else(|why| panic!("{why}"));
    if shared.kind == Kind::Memory {
        let name = names::unique("memory");
        let engine = open_engine(&name);
        return Server {
            url: format!("memory://{name}"),
            admin: format!("memory://{name}"),
            kind: shared.kind,
            _engine: Some(Arc::new(engine)),
        };
    }
    let url = match shared.kind {
        Kind::Binary | Kind::Docker => rights::least_privileged(&shared.url).await,
        _ => shared.url.clone(),
    };
    Server { url, admin: shared.url, kind: shared.kind, _engine: None }
}

/// The shared server; with a Cluster, a single one beside it: for tests whose subject is one connection, as a proxy in
/// front of it. The nodes of a Cluster tell their own addresses, which lead past a proxy.
pub async fn plain() -> Server {
    let shared = sharing::shared().await.unwrap_or_else(|why| panic!("{why}"));
    match shared.plain {
        Some(admin) => {
            Server { url: rights::least_privileged(&admin).await, admin, kind: Kind::Binary, _engine: None }
        }
        None => self::shared().await,
    }
}

/// A plain connection to a URL that the tests gave out.
pub async fn raw(url: &str) -> MultiplexedConnection {
    // The client's own limit of 500 ms is too short for a machine under load.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(5)))
        .set_response_timeout(Some(Duration::from_secs(20)));
    if let Some(name) = url.strip_prefix("memory://") {
        let stream = open_engine(name);
        let opened =
            MultiplexedConnection::new_with_config(&RedisConnectionInfo::default(), stream, config).await;
        let (connection, driver) = opened.expect("the engine in memory answers");
        tokio::spawn(driver);
        return connection;
    }
    let url = &direct(url).await;
    let client = Client::open(url.as_str()).unwrap_or_else(|e| panic!("{url}: {e}"));
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .unwrap_or_else(|e| panic!("cannot connect to {url}: {e}"))
}

/// The server that a URL leads to now: its own, or that of the master that a trio's first sentinel names.
pub async fn direct(url: &str) -> String {
    #[cfg(feature = "sentinel")]
    if let Some(rest) = url.strip_prefix("redis+sentinel://127.0.0.1:") {
        let first =
            rest.split([',', '/']).next().and_then(|port| port.parse().ok()).expect("a sentinel's port");
        let port = Box::pin(super::sentinel::master_of(first)).await;
        return format!("redis://127.0.0.1:{port}");
    }
    #[cfg(feature = "cluster")]
    if url.starts_with("redis+cluster://") {
        return super::cluster::direct(url).await;
    }
    url.to_owned()
}

/// A connection to the engine of that name.
#[cfg(feature = "memory")]
pub fn open_engine(name: &str) -> tokio::io::DuplexStream {
    mcp_courier::memory::open(name)
}

/// A connection to the engine of that name.
#[cfg(not(feature = "memory"))]
pub fn open_engine(_: &str) -> tokio::io::DuplexStream {
    panic!("TEST_REDIS=memory needs the feature `memory`")
}
