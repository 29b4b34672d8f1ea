//! Where the server is: URLs, and how a connection to each kind is opened.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo};

use super::failure::from_redis;
use super::{Provider, Tls};
use crate::{Error, Result};

/// A server's address, checked.
#[derive(Clone)]
pub(crate) struct Endpoint {
    /// For people: no user, no password.
    pub(crate) address: String,
    credentials: Option<Provider>,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Server(Box<redis::Client>),
    #[cfg(feature = "memory")]
    Memory(crate::memory::Memory),
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Endpoint({})", self.address)
    }
}

/// Where pushed frames go. Called inside the connection's driver: it must not block.
pub(crate) type PushHandler = Arc<dyn Fn(PushInfo) + Send + Sync>;

impl Endpoint {
    /// Checks a URL. Nothing is connected yet.
    pub(crate) fn parse(text: &str, tls: &Tls) -> Result<Self> {
        let bad = |why: String| Error::invalid("url", why);
        let scheme = text.split_once("://").map(|(scheme, _)| scheme).ok_or_else(|| {
            bad("has no scheme; use memory://, redis://host:port/db, rediss://… or redis+unix:///path".into())
        })?;
        match scheme {
            "memory" => return Self::memory(&text["memory://".len()..]),
            "redis" | "valkey" | "redis+unix" | "valkey+unix" | "unix" => {}
            "rediss" | "valkeys" if cfg!(feature = "tls") => {}
            "rediss" | "valkeys" => {
                return Err(bad(format!("{scheme}:// needs the feature `tls` of mcp-courier")));
            }
            "redis+sentinel" | "redis+cluster" => {
                return Err(bad(format!("{scheme}:// is not supported by this version")));
            }
            other => {
                let known = "memory, redis, rediss, redis+unix";
                return Err(bad(format!("unknown scheme {:?}; known ones: {known}", crop(other))));
            }
        }
        // The parser's own words could repeat the password, so they are not shown.
        let parsed = ::url::Url::parse(text).map_err(|e| bad(format!("cannot be parsed: {e}")))?;
        let unix = scheme.ends_with("unix");
        let allowed: &[&str] = if unix { &["db", "user", "pass"] } else { &[] };
        if let Some((name, _)) = parsed.query_pairs().find(|(name, _)| !allowed.contains(&&**name)) {
            return Err(bad(format!("unknown option {:?}", crop(&name))));
        }
        if let Some(fragment) = parsed.fragment() {
            return Err(bad(format!("unknown option {:?} after #", crop(fragment))));
        }
        if !unix && parsed.host_str().is_none_or(str::is_empty) {
            return Err(bad("has no host".into()));
        }
        let db = parsed.path().trim_matches('/');
        if !unix && !db.is_empty() && !db.bytes().all(|b| b.is_ascii_digit()) {
            return Err(bad(format!("the database after the host must be a number, not {:?}", crop(db))));
        }
        let info = redis::IntoConnectionInfo::into_connection_info(parsed.clone())
            .map_err(|e| bad(format!("cannot be used: {}", e.category())))?;
        let address = if unix {
            parsed.path().to_owned()
        } else {
            format!("{}:{}", parsed.host_str().unwrap_or_default(), parsed.port().unwrap_or(6379))
        };
        let redis = info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP3);
        let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
        let info = info.set_redis_settings(redis).set_tcp_settings(tcp);
        let client = open(info, tls).map_err(|e| bad(format!("cannot be used: {e}")))?;
        Ok(Self { address, credentials: None, kind: Kind::Server(Box::new(client)) })
    }

    #[cfg(feature = "memory")]
    fn memory(name: &str) -> Result<Self> {
        if name.contains(['/', '?', '#', '@']) {
            return Err(Error::invalid(
                "url",
                "memory:// takes a plain name or nothing, as in memory://shared",
            ));
        }
        let memory = if name.is_empty() {
            crate::memory::Memory::private()
        } else {
            crate::memory::Memory::named(name)
        };
        Ok(Self { address: format!("memory://{name}"), credentials: None, kind: Kind::Memory(memory) })
    }

    #[cfg(not(feature = "memory"))]
    fn memory(_: &str) -> Result<Self> {
        Err(Error::invalid("url", "memory:// needs the feature `memory` of mcp-courier"))
    }

    /// Asks this provider each time a connection is opened, instead of what the URL says.
    pub(crate) fn credentials(mut self, provider: Option<Provider>) -> Self {
        self.credentials = provider;
        self
    }

    async fn with_credentials(&self, client: &redis::Client) -> Result<redis::Client> {
        let Some(provider) = &self.credentials else { return Ok(client.clone()) };
        let refused =
            |why: String| Error::Refused { op: "connect", code: "CREDENTIALS".into(), message: why };
        let credentials = provider.ask().await.map_err(refused)?;
        let info = client.get_connection_info().clone();
        let mut redis = info.redis_settings().clone().set_password(credentials.password);
        if let Some(user) = credentials.user {
            redis = redis.set_username(user);
        }
        redis::Client::open(info.set_redis_settings(redis))
            .map_err(|e| from_redis("connect", &self.address, &e, false))
    }

    /// Opens one connection. `on_push` hears pushed frames and the connection's end.
    pub(crate) async fn open(
        &self,
        timeout: Duration,
        on_push: PushHandler,
    ) -> Result<MultiplexedConnection> {
        // No response timeout of the client's own: each call has a deadline here.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(None)
            .set_push_sender(move |info: PushInfo| {
                on_push(info);
                Ok::<(), std::convert::Infallible>(())
            });
        let failed = |e| from_redis("connect", &self.address, &e, false);
        let opening = async {
            match &self.kind {
                Kind::Server(client) => {
                    let client = self.with_credentials(client).await?;
                    client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)
                }
                #[cfg(feature = "memory")]
                Kind::Memory(memory) => {
                    let info =
                        redis::RedisConnectionInfo::default().set_protocol(redis::ProtocolVersion::RESP3);
                    let (connection, driver) =
                        MultiplexedConnection::new_with_config(&info, memory.connect(), config)
                            .await
                            .map_err(failed)?;
                    tokio::spawn(driver);
                    Ok(connection)
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
}

#[cfg(feature = "tls")]
fn open(info: redis::ConnectionInfo, tls: &Tls) -> redis::RedisResult<redis::Client> {
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

#[cfg(not(feature = "tls"))]
fn open(info: redis::ConnectionInfo, _: &Tls) -> redis::RedisResult<redis::Client> {
    redis::Client::open(info)
}

fn crop(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(url: &str) -> String {
        Endpoint::parse(url, &Tls::new()).expect_err(url).to_string()
    }

    #[test]
    fn wrong_urls_are_refused_by_name_and_never_show_a_password() {
        assert!(why("localhost:6379").contains("no scheme"));
        assert!(why("http://localhost").contains("unknown scheme"));
        assert!(why("redis://localhost/zero").contains("must be a number"));
        assert!(why("redis://localhost/0?retry=1").contains("unknown option \"retry\""));
        assert!(why("redis://localhost/0#insecure").contains("insecure"));
        assert!(why("redis://:6379").contains("url"));
        assert!(!cfg!(feature = "memory") || why("memory://a/b").contains("plain name"));
        assert!(why("redis+cluster://a,b").contains("not supported"));
        for url in ["redis://u:s3cret@h:port/0", "redis://u:s3cret@h/x", "ftp://u:s3cret@h"] {
            assert!(!why(url).contains("s3cret"), "{url}");
        }
        let fine = Endpoint::parse("redis://u:s3cret@h:1/2", &Tls::new()).expect("valid");
        assert_eq!(fine.address, "h:1");
        assert!(!format!("{fine:?}").contains("s3cret"));
    }

    #[test]
    fn special_characters_in_a_password_are_percent_encoded() {
        for password in ["%23%20%2F%3A%40%25%2B%3D", "plain"] {
            let url = format!("redis://user:{password}@127.0.0.1:6379/0");
            Endpoint::parse(&url, &Tls::new()).expect("valid");
        }
    }
}
