//! URLs: checked before anything is connected, and never shown with what is secret in them.

use redis::ConnectionInfo;

use super::Tls;
use super::endpoint::{Endpoint, Kind, client};
use crate::{Error, Result};

fn bad(why: impl Into<String>) -> Error {
    Error::invalid("url", why)
}

impl Endpoint {
    /// Checks a URL. Nothing is connected yet.
    pub(crate) fn parse(text: &str, tls: &Tls) -> Result<Self> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| {
            bad("has no scheme; use memory://, redis://host:port/db, rediss://…, redis+unix:///path, \
                 redis+sentinel://host,host/name or redis+cluster://host,host")
        })?;
        match scheme {
            "memory" => Self::memory(rest),
            "redis" | "valkey" | "redis+unix" | "valkey+unix" | "unix" => Self::server(text, tls),
            "rediss" | "valkeys" => {
                needs_tls(scheme)?;
                Self::server(text, tls)
            }
            "redis+sentinel" | "valkey+sentinel" => Self::sentinel(scheme, rest, "redis", tls),
            "rediss+sentinel" | "valkeys+sentinel" => {
                needs_tls(scheme)?;
                Self::sentinel(scheme, rest, "rediss", tls)
            }
            "redis+cluster" | "valkey+cluster" => Self::cluster(scheme, rest, "redis", tls),
            "rediss+cluster" | "valkeys+cluster" => {
                needs_tls(scheme)?;
                Self::cluster(scheme, rest, "rediss", tls)
            }
            other => {
                let known = "memory, redis, rediss, redis+unix, redis+sentinel, rediss+sentinel, redis+cluster, \
                             rediss+cluster";
                Err(bad(format!("unknown scheme {}; known ones: {known}", quote(other, other))))
            }
        }
    }

    fn of(address: String, replaceable: bool, kind: Kind) -> Self {
        Self { address, credentials: None, sentinel_credentials: None, replaceable, kind }
    }

    fn server(text: &str, tls: &Tls) -> Result<Self> {
        let (info, address) = server(text)?;
        let client = client(info, tls).map_err(|e| bad(format!("cannot be used: {e}")))?;
        Ok(Self::of(address, false, Kind::Server(Box::new(client))))
    }

    #[cfg(feature = "sentinel")]
    fn sentinel(_: &str, rest: &str, plain: &str, tls: &Tls) -> Result<Self> {
        let many = Many::split(rest, &["sentinel_user", "sentinel_pass"])?;
        let mut path = many.path.splitn(2, '/');
        let name = percent_encoding::percent_decode_str(path.next().unwrap_or_default());
        let name = name.decode_utf8().map_err(|_| bad("the master's name is not UTF-8"))?.into_owned();
        if name.is_empty() {
            return Err(bad("names no master; use redis+sentinel://host,host/name/db"));
        }
        let db = path.next().unwrap_or_default();
        let (mut sentinels, mut master) = (Vec::new(), None);
        for host in many.hosts("26379") {
            let (info, address) = server(&format!("{plain}://{host}"))?;
            let mut settings = info.redis_settings().clone();
            if let Some(user) = many.option("sentinel_user") {
                settings = settings.set_username(user);
            }
            if let Some(password) = many.option("sentinel_pass") {
                settings = settings.set_password(password);
            }
            sentinels.push((address, info.set_redis_settings(settings)));
            if master.is_none() {
                master = Some(server(&format!("{plain}://{}{host}/{db}", many.user))?.0);
            }
        }
        let master = master.ok_or_else(|| bad("has no host"))?;
        // Certificates that cannot be used show here, and not at the first failover.
        client(master.clone(), tls).map_err(|e| bad(format!("cannot be used: {e}")))?;
        let hosts: Vec<&str> = sentinels.iter().map(|(address, _)| address.as_str()).collect();
        let address = format!("master {:?} of sentinels {}", crop(&name), hosts.join(","));
        let sentinel = super::sentinel::Sentinel::new(name, sentinels, master, tls.clone());
        let kind = Kind::Sentinel(std::sync::Arc::new(sentinel));
        Ok(Self::of(address, true, kind))
    }

    #[cfg(not(feature = "sentinel"))]
    fn sentinel(scheme: &str, _: &str, _: &str, _: &Tls) -> Result<Self> {
        Err(bad(format!("{scheme}:// needs the feature `sentinel` of mcp-courier")))
    }

    #[cfg(feature = "cluster")]
    fn cluster(_: &str, rest: &str, plain: &str, tls: &Tls) -> Result<Self> {
        let many = Many::split(rest, &[])?;
        if !matches!(many.path, "" | "0") {
            return Err(bad(format!("a Cluster has database 0 only, not {:?}", crop(many.path))));
        }
        let (mut seeds, mut first) = (Vec::new(), None);
        for host in many.hosts("6379") {
            let (info, address) = server(&format!("{plain}://{}{host}", many.user))?;
            let (redis::ConnectionAddr::Tcp(host, port) | redis::ConnectionAddr::TcpTls { host, port, .. }) =
                info.addr().clone()
            else {
                return Err(bad(format!("{:?} is no host and port", crop(&address))));
            };
            seeds.push((host, port));
            first.get_or_insert(info);
        }
        let first = first.ok_or_else(|| bad("has no host"))?;
        let client = client(first, tls).map_err(|e| bad(format!("cannot be used: {e}")))?;
        let hosts: Vec<String> = seeds.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        let address = format!("cluster at {}", hosts.join(","));
        let kind = Kind::Cluster(std::sync::Arc::new(super::endpoint::Nodes { seeds, client }));
        Ok(Self::of(address, true, kind))
    }

    #[cfg(not(feature = "cluster"))]
    fn cluster(scheme: &str, _: &str, _: &str, _: &Tls) -> Result<Self> {
        Err(bad(format!("{scheme}:// needs the feature `cluster` of mcp-courier")))
    }

    #[cfg(feature = "memory")]
    fn memory(name: &str) -> Result<Self> {
        if name.contains(['/', '?', '#', '@']) {
            return Err(bad("memory:// takes a plain name or nothing, as in memory://shared"));
        }
        let memory = if name.is_empty() {
            crate::memory::Memory::private()
        } else {
            crate::memory::Memory::named(name)
        };
        let address = format!("memory://{name}");
        Ok(Self::of(address, false, Kind::Memory(memory)))
    }

    #[cfg(not(feature = "memory"))]
    fn memory(_: &str) -> Result<Self> {
        Err(bad("memory:// needs the feature `memory` of mcp-courier"))
    }
}

fn needs_tls(scheme: &str) -> Result<()> {
    if cfg!(feature = "tls") {
        return Ok(());
    }
    Err(bad(format!("{scheme}:// needs the feature `tls` of mcp-courier")))
}

/// One server's settings, and its address for people.
fn server(text: &str) -> Result<(ConnectionInfo, String)> {
    // The parser's own words could repeat the password, so they are not shown.
    let parsed = ::url::Url::parse(text).map_err(|e| bad(format!("cannot be parsed: {e}")))?;
    // A password with a character that was not encoded ends the host too early.
    let behind = &parsed[::url::Position::BeforePath..];
    let unix = parsed.scheme().ends_with("unix");
    let allowed: &[&str] = if unix { &["db", "user", "pass"] } else { &[] };
    if let Some((name, _)) = parsed.query_pairs().find(|(name, _)| !allowed.contains(&&**name)) {
        return Err(unknown_option(&name, behind));
    }
    if let Some(fragment) = parsed.fragment() {
        return Err(bad(format!("unknown option {} after #", quote(fragment, behind))));
    }
    if !unix && parsed.host_str().is_none_or(str::is_empty) {
        return Err(bad("has no host"));
    }
    let db = parsed.path().trim_matches('/');
    if !unix && !db.is_empty() && !db.bytes().all(|b| b.is_ascii_digit()) {
        return Err(bad(format!("the database after the host must be a number, not {}", quote(db, behind))));
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
    Ok((info.set_redis_settings(redis).set_tcp_settings(tcp), address))
}

/// What stands after the scheme of a URL with several hosts: `[user[:password]@]host[:port],…[/path][?options]`.
#[cfg(any(feature = "sentinel", feature = "cluster"))]
struct Many<'a> {
    /// With its `@`, or empty.
    user: &'a str,
    hosts: &'a str,
    path: &'a str,
    #[cfg_attr(not(feature = "sentinel"), allow(dead_code))]
    options: Vec<(String, String)>,
}

#[cfg(any(feature = "sentinel", feature = "cluster"))]
impl<'a> Many<'a> {
    fn split(rest: &'a str, allowed: &[&str]) -> Result<Self> {
        if let Some((_, fragment)) = rest.split_once('#') {
            return Err(bad(format!("unknown option {} after #", quote(fragment, rest))));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if path.contains('@') {
            // What stands there would be shown as the master's name.
            return Err(bad(format!("has an @ behind the hosts {}", quote(path, path))));
        }
        let at = authority.rfind('@').map_or(0, |at| at + 1);
        let options: Vec<(String, String)> =
            ::url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        if let Some((name, _)) = options.iter().find(|(name, _)| !allowed.contains(&name.as_str())) {
            return Err(unknown_option(name, query));
        }
        Ok(Self {
            user: &authority[..at],
            hosts: &authority[at..],
            path: path.trim_end_matches('/'),
            options,
        })
    }

    /// Each with a port.
    fn hosts(&self, port: &str) -> impl Iterator<Item = String> {
        self.hosts.split(',').map(move |host| {
            // A colon within brackets belongs to an IPv6 address.
            let has_port = host.rsplit(']').next().is_some_and(|end| end.contains(':'));
            if has_port || host.is_empty() { host.to_owned() } else { format!("{host}:{port}") }
        })
    }

    #[cfg(feature = "sentinel")]
    fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

fn unknown_option(name: &str, behind: &str) -> Error {
    bad(format!("unknown option {}", quote(name, behind)))
}

/// A part of a URL for an error. Not shown when the URL has an `@` where none belongs: the part may be a piece of a
/// password then.
fn quote(part: &str, url: &str) -> String {
    if url.contains('@') {
        return "(not shown: it may be a piece of a password; encode / ? # @ in it as %2F %3F %23 %40)"
            .into();
    }
    format!("{:?}", crop(part))
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
        for url in [
            "redis://u:s3cret@h:port/0",
            "redis://u:s3cret@h/x",
            "ftp://u:s3cret@h",
            "redis+sentinel://u:s3cret@h:port,i/name",
            "redis+sentinel://u:s3cret@h",
            "redis+cluster://u:s3cret@h/1",
            "redis+cluster://u:s3cret@h:port",
        ] {
            assert!(!why(url).contains("s3cret"), "{url}");
        }
        for url in [
            "redis+sentinel://u:12/s3cret@h,i/name",
            "redis+sentinel://u:12?s3cret@h,i/name",
            "redis+sentinel://u:12#s3cret@h,i/name",
            "redis+cluster://u:12/s3cret@h,i",
            "redis://u:12/s3cret@h",
            "redis://u:12#s3cret@h",
            "redis://u:12?s3cret&x@h",
            "redis://u:12/3?s3cret@h",
        ] {
            assert!(!why(url).contains("s3cret") && why(url).contains("encode"), "{url}: {}", why(url));
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

    #[cfg(feature = "cluster")]
    #[test]
    fn cluster_urls_name_nodes_and_no_database() {
        let url = "redis+cluster://u:p%40s3cret@a,b:1,[::1]";
        let endpoint = Endpoint::parse(url, &Tls::new()).expect("valid");
        assert_eq!(endpoint.address, "cluster at a:6379,b:1,::1:6379");
        assert_eq!(endpoint.seeds().len(), 3);
        assert!(!format!("{endpoint:?}").contains("s3cret"));
        assert!(why("redis+cluster://a/1").contains("database 0 only"));
        assert!(why("redis+cluster://a,,b").contains("no host"));
        assert!(why("redis+cluster://").contains("no host"));
        assert!(why("redis+cluster://a?x=1").contains("unknown option"));
    }

    #[cfg(feature = "sentinel")]
    #[test]
    fn sentinel_urls_name_hosts_a_master_a_database_and_two_kinds_of_credentials() {
        let url =
            "redis+sentinel://u:p%40s3cret@a,b:1,[::1]/my%20master/3?sentinel_user=w&sentinel_pass=s3cret";
        let endpoint = Endpoint::parse(url, &Tls::new()).expect("valid");
        assert_eq!(endpoint.address, "master \"my master\" of sentinels a:26379,b:1,[::1]:26379");
        let Kind::Sentinel(sentinel) = &endpoint.kind else { panic!("{endpoint:?}") };
        assert!(!format!("{endpoint:?} {sentinel:?}").contains("s3cret"));

        assert!(why("redis+sentinel://a,b").contains("names no master"));
        assert!(why("redis+sentinel://a,b/").contains("names no master"));
        assert!(why("redis+sentinel://a,,b/m").contains("no host"));
        assert!(why("redis+sentinel:///m").contains("no host"));
        assert!(why("redis+sentinel://a/m/x").contains("must be a number"));
        assert!(why("redis+sentinel://a/m?db=1").contains("unknown option \"db\""));
        assert!(why("redis+sentinel://a/m#x").contains("unknown option"));
    }
}
