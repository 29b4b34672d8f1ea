//! Which server the tests use, decided once per process.

use std::path::PathBuf;
use std::sync::OnceLock;

use super::{binary, docker};

/// Where the server comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `REDIS_URL`: somebody else's server. Tests keep to their prefix and never flush, configure or stop it.
    Url,
    /// A container.
    Docker,
    /// A child process.
    Binary,
    /// Child processes: a master, a replica, three sentinels.
    Sentinel,
    /// Child processes: three masters, three replicas.
    Cluster,
    /// The engine inside the process; no server at all.
    Memory,
}

/// The decision, with what it takes to act on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    Url(String),
    Docker,
    Binary(PathBuf),
    Sentinel(PathBuf),
    Cluster(PathBuf),
    Memory,
}

impl Backend {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Url(_) => Kind::Url,
            Self::Docker => Kind::Docker,
            Self::Binary(_) => Kind::Binary,
            Self::Sentinel(_) => Kind::Sentinel,
            Self::Cluster(_) => Kind::Cluster,
            Self::Memory => Kind::Memory,
        }
    }
}

fn env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

/// The backend of this process. What was named must work; what is only found may be passed over, aloud.
pub async fn backend() -> Result<Backend, String> {
    static CHOICE: OnceLock<Result<Backend, String>> = OnceLock::new();
    if let Some(choice) = CHOICE.get() {
        return choice.clone();
    }
    let choice = choose().await;
    CHOICE
        .get_or_init(|| {
            if let Ok(backend) = &choice {
                eprintln!("tests: server from {backend:?}");
            }
            choice
        })
        .clone()
}

async fn choose() -> Result<Backend, String> {
    match env("TEST_REDIS").as_deref() {
        Some("url") => {
            let url = env("REDIS_URL").ok_or("TEST_REDIS=url, but REDIS_URL is not set")?;
            Ok(Backend::Url(url))
        }
        Some("docker") => {
            docker::available().await.map_err(|why| format!("TEST_REDIS=docker, but {why}"))?;
            Ok(Backend::Docker)
        }
        Some("binary") => {
            binary::find().map(Backend::Binary).map_err(|why| format!("TEST_REDIS=binary, but {why}"))
        }
        Some("sentinel") => {
            binary::find().map(Backend::Sentinel).map_err(|why| format!("TEST_REDIS=sentinel, but {why}"))
        }
        Some("cluster") => {
            binary::find().map(Backend::Cluster).map_err(|why| format!("TEST_REDIS=cluster, but {why}"))
        }
        Some("memory") => Ok(Backend::Memory),
        Some(other) => {
            Err(format!("TEST_REDIS={other}: use url, docker, binary, sentinel, cluster or memory"))
        }
        None => find().await,
    }
}

/// `REDIS_URL`, else `TEST_REDIS_SERVER`, else Docker, else a program on `PATH`.
async fn find() -> Result<Backend, String> {
    if let Some(url) = env("REDIS_URL") {
        return Ok(Backend::Url(url));
    }
    if env("TEST_REDIS_SERVER").is_some() {
        return binary::find().map(Backend::Binary);
    }
    let no_docker = match docker::available().await {
        Ok(()) => return Ok(Backend::Docker),
        Err(why) => why,
    };
    match binary::find() {
        Ok(program) => {
            eprintln!("tests: Docker passed over: {no_docker}");
            Ok(Backend::Binary(program))
        }
        Err(no_binary) => Err(format!(
            "These tests need Redis or Valkey, and none was found.\n\
             Tried: REDIS_URL is not set; Docker: {no_docker}; program: {no_binary}.\n\
             One of these helps:\n\
             - start Docker (the image is {}, or TEST_REDIS_IMAGE);\n\
             - install a server, as with `apt install redis-server`, or name one in TEST_REDIS_SERVER;\n\
             - set REDIS_URL to a server that the tests may write to, under prefixes of their own.\n\
             TEST_REDIS=memory runs what needs no server.",
            {
                let (name, tag) = docker::image();
                format!("{name}:{tag}")
            }
        )),
    }
}
