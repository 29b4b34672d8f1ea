//! Where the server is, and how a connection to each kind of topology is opened.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionInfo, PushInfo};

use super::failure::from_redis;
use super::{Credentials, Provider, Tls};
use crate::{Error, Result};

/// A server's address, checked.
#[derive(Clone)]
pub(crate) struct Endpoint {
    /// For people: no user, no password.
    pub(crate) address: String,
    pub(super) credentials: Option<Provider>,
    /// Of sentinels, which are other servers with other users.
    pub(super) sentinel_credentials: Option<Provider>,
    /// Another server may take this one's place: looked for more often.
    pub(super) replaceable: bool,
    pub(super) kind: Kind,
}

#[derive(Clone)]
pub(super) enum Kind {
    Server(Box<redis::Client>),
    #[cfg(feature = "sentinel")]
    Sentinel(Arc<super::sentinel::Sentinel>),
    #[cfg(feature = "cluster")]
    Cluster(Arc<Nodes>),
    #[cfg(feature = "memory")]
    Memory(crate::memory::Memory),
}

/// Where a Cluster is entered, and how its nodes are reached.
#[cfg(feature = "cluster")]
pub(super) struct Nodes {
    pub(super) seeds: Vec<Place>,
    /// A node that was checked to be usable; every other differs in its address only.
    pub(super) client: redis::Client,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Endpoint({})", self.address)
    }
}

/// A server's host and port.
pub(crate) type Place = (String, u16);

/// Where pushed frames go. Called inside the connection's driver: it must not block.
pub(crate) type PushHandler = Arc<dyn Fn(PushInfo) + Send + Sync>;

impl Endpoint {
    /// Asks this provider each time a connection is opened, instead of what the URL says.
    pub(crate) fn credentials(mut self, servers: Option<Provider>, sentinels: Option<Provider>) -> Self {
        self.credentials = servers;
        self.sentinel_credentials = sentinels;
        self
    }

    /// Longest pause between two tries to connect. Where another server takes over, looking often costs the one that is
    /// gone nothing, and ends the outage with the failover.
    pub(super) fn longest_pause(&self) -> Duration {
        Duration::from_millis(if self.replaceable { 500 } else { 700 })
    }

    /// Whether another server may take this one's place.
    pub(super) fn is_replaceable(&self) -> bool {
        self.replaceable
    }

    /// Whether sessions are spread over several servers.
    pub(crate) fn is_cluster(&self) -> bool {
        match &self.kind {
            #[cfg(feature = "cluster")]
            Kind::Cluster(_) => true,
            _ => false,
        }
    }

    /// Where a Cluster is entered.
    #[cfg(feature = "cluster")]
    pub(super) fn seeds(&self) -> &[Place] {
        match &self.kind {
            Kind::Cluster(nodes) => &nodes.seeds,
            _ => &[],
        }
    }

    /// One node of a Cluster.
    #[cfg(feature = "cluster")]
    pub(super) fn node(&self, place: &Place) -> Self {
        let kind = match &self.kind {
            Kind::Cluster(nodes) => Kind::Server(Box::new(nodes.at(place))),
            other => other.clone(),
        };
        let address = format!("{}:{}", place.0, place.1);
        let credentials = self.credentials.clone();
        Self { address, credentials, sentinel_credentials: None, replaceable: true, kind }
    }

    /// Ends when another server has taken the place of the one that a connection was opened to, as far as anybody of this
    /// process has heard.
    pub(super) async fn replaced(&self, _opened: Option<&Place>) {
        #[cfg(feature = "sentinel")]
        if let (Kind::Sentinel(sentinel), Some(place)) = (&self.kind, _opened) {
            return sentinel.replaced(place).await;
        }
        std::future::pending().await
    }

    /// Has somebody ask whether it is still the right server, where there is somebody to ask.
    pub(super) async fn look(&self, _timeout: Duration) {
        #[cfg(feature = "sentinel")]
        if let Kind::Sentinel(sentinel) = &self.kind {
            // Without them there is no answer, and that is no news.
            if let Ok(credentials) = self.sentinel_credentials().await {
                sentinel.look(_timeout, credentials.as_ref()).await;
            }
        }
    }

    #[cfg(feature = "sentinel")]
    async fn sentinel_credentials(&self) -> Result<Option<Credentials>> {
        match &self.sentinel_credentials {
            Some(provider) => credentials_of(provider).await.map(Some),
            None => Ok(None),
        }
    }

    /// Opens one connection. `on_push` hears pushed frames and the connection's end. Says where it leads, when that was
    /// asked for.
    pub(crate) async fn open(
        &self,
        timeout: Duration,
        on_push: PushHandler,
    ) -> Result<(MultiplexedConnection, Option<Place>)> {
        // No response timeout of the client's own: each call has a deadline here.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(None)
            .set_push_sender(move |info: PushInfo| {
                on_push(info);
                Ok::<(), std::convert::Infallible>(())
            });
        let opening = async {
            match &self.kind {
                Kind::Server(client) => self.open_server((**client).clone(), &config).await.map(nowhere),
                #[cfg(feature = "sentinel")]
                Kind::Sentinel(sentinel) => {
                    let credentials = self.sentinel_credentials().await?;
                    let open = |client| self.open_server(client, &config);
                    let opened = sentinel.open_master(timeout, credentials.as_ref(), open);
                    opened.await.map(|(connection, place)| (connection, Some(place)))
                }
                // Any node will do: only where messages are published to all of them.
                #[cfg(feature = "cluster")]
                Kind::Cluster(nodes) => {
                    let start = fastrand::usize(..nodes.seeds.len().max(1));
                    let seeds = nodes.seeds.iter().cycle().skip(start).take(nodes.seeds.len());
                    let mut opened = Err(Error::Closed { op: "connect" });
                    for seed in seeds {
                        opened = self.open_server(nodes.at(seed), &config).await;
                        if opened.is_ok() {
                            break;
                        }
                    }
                    opened.map(nowhere)
                }
                #[cfg(feature = "memory")]
                Kind::Memory(memory) => {
                    let info =
                        redis::RedisConnectionInfo::default().set_protocol(redis::ProtocolVersion::RESP3);
                    let (connection, driver) =
                        MultiplexedConnection::new_with_config(&info, memory.connect(), config)
                            .await
                            .map_err(|e| from_redis("connect", &self.address, &e, false))?;
                    tokio::spawn(driver);
                    Ok(nowhere(connection))
                }
            }
        };
        match tokio::time::timeout(timeout, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(Error::Timeout {
                op: "connect",
                address: self.address.clone(),
                after: timeout,
                ambiguous: false,
            }),
        }
    }

    async fn open_server(
        &self,
        client: redis::Client,
        config: &AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection> {
        let failed = |e| from_redis("connect", &self.address, &e, false);
        let client = self.with_credentials(client).await?;
        client.get_multiplexed_async_connection_with_config(config).await.map_err(failed)
    }

    async fn with_credentials(&self, client: redis::Client) -> Result<redis::Client> {
        let Some(provider) = &self.credentials else { return Ok(client) };
        let info = with(client.get_connection_info().clone(), &credentials_of(provider).await?);
        redis::Client::open(info).map_err(|e| from_redis("connect", &self.address, &e, false))
    }
}

/// A connection to the one place where it can lead.
fn nowhere(connection: MultiplexedConnection) -> (MultiplexedConnection, Option<Place>) {
    (connection, None)
}

async fn credentials_of(provider: &Provider) -> Result<Credentials> {
    let refused = |why: String| Error::Refused { op: "connect", code: "CREDENTIALS".into(), message: why };
    provider.ask().await.map_err(refused)
}

/// The same server as somebody else.
pub(super) fn with(info: ConnectionInfo, credentials: &Credentials) -> ConnectionInfo {
    let mut redis = info.redis_settings().clone().set_password(&credentials.password);
    if let Some(user) = &credentials.user {
        redis = redis.set_username(user);
    }
    info.set_redis_settings(redis)
}

#[cfg(feature = "cluster")]
impl Nodes {
    fn at(&self, place: &Place) -> redis::Client {
        let info = self.client.get_connection_info().clone();
        let addr = moved(info.addr(), place);
        // Settings that were usable for one address are for another one.
        redis::Client::open(info.set_addr(addr)).unwrap_or_else(|_| self.client.clone())
    }
}

/// The same kind of address elsewhere.
#[cfg(any(feature = "sentinel", feature = "cluster"))]
pub(super) fn moved(addr: &redis::ConnectionAddr, (host, port): &Place) -> redis::ConnectionAddr {
    use redis::ConnectionAddr::{Tcp, TcpTls};
    match addr.clone() {
        TcpTls { insecure, tls_params, .. } => {
            TcpTls { host: host.clone(), port: *port, insecure, tls_params }
        }
        _ => Tcp(host.clone(), *port),
    }
}

/// A client for one server, with the certificates when the address speaks TLS.
#[cfg(feature = "tls")]
pub(super) fn client(info: ConnectionInfo, tls: &Tls) -> redis::RedisResult<redis::Client> {
    use redis::{ClientTlsConfig, ConnectionAddr, TlsCertificates};
    if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
        return redis::Client::open(info);
    }
    // rustls panics at the first handshake when nobody chose a provider. One that the program chose is kept.
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let certificates = TlsCertificates {
        client_tls: tls
            .client
            .clone()
            .map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key }),
        root_cert: tls.root.clone(),
    };
    redis::Client::build_with_tls(info, certificates)
}

/// A client for one server.
#[cfg(not(feature = "tls"))]
pub(super) fn client(info: ConnectionInfo, _: &Tls) -> redis::RedisResult<redis::Client> {
    redis::Client::open(info)
}

#[cfg(all(test, feature = "tls"))]
mod tests {
    use rustls::crypto::{CryptoProvider, ring};

    /// F49: whichever the program installed, and whoever of us needs one first.
    #[test]
    fn f49_a_crypto_provider_that_the_program_chose_is_kept() {
        let _ = ring::default_provider().install_default();
        let chosen = CryptoProvider::get_default().expect("installed").clone();
        let info = redis::IntoConnectionInfo::into_connection_info("rediss://127.0.0.1:1").expect("a URL");
        super::client(info, &super::Tls::new()).expect("usable");
        assert!(std::sync::Arc::ptr_eq(&chosen, CryptoProvider::get_default().expect("still there")));
    }
}
