//! Servers in containers, by testcontainers.
//!
//! Dropping a `ContainerAsync` would remove the container only on an orderly end of the test, and never for a static.
//! So a reaper of our own removes it (see [`AtTheEnd`]), and the value that testcontainers hands out is forgotten.

use std::future::Future;
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use testcontainers::bollard::Docker;
use testcontainers::bollard::models::PortBinding;
use testcontainers::bollard::query_parameters::{KillContainerOptions, StopContainerOptions};
use testcontainers::core::{IntoContainerPort, client::docker_client_instance};
use testcontainers::runners::AsyncRunner;
use testcontainers::{GenericImage, ImageExt};
use tokio::runtime::Runtime;

use super::names;
use super::ready::{free_port, wait_ready};
use super::supervisor::AtTheEnd;

/// Removes container `$1` and its anonymous volumes; a label finds strays:
/// `docker ps -aq --filter label=mcp-courier.test`.
pub const REMOVE: &str = r#"docker rm -fv "$1" >/dev/null 2>&1"#;

const LABEL: &str = "mcp-courier.test";

/// The client of testcontainers is one per process and its connections belong to the runtime that opened them. Tests
/// have a runtime each, so the engine is spoken to from one that lives as long as the process.
static ENGINE: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("docker")
        .enable_all()
        .build()
        .expect("a runtime")
});

async fn on_engine<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    ENGINE.spawn(work).await.expect("no panic on the engine's runtime")
}

/// Name and tag: `TEST_REDIS_IMAGE`, else `redis:7.0`.
pub fn image() -> (String, String) {
    let image = std::env::var("TEST_REDIS_IMAGE").ok().filter(|i| !i.is_empty());
    let image = image.unwrap_or_else(|| "redis:7.0".into());
    match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name.into(), tag.into()),
        _ => (image, "latest".into()),
    }
}

/// Whether containers can be started: an engine answers within 2 s, and has the image or can get it. Asked once.
pub async fn available() -> Result<(), String> {
    static ANSWER: OnceLock<Result<(), String>> = OnceLock::new();
    if let Some(known) = ANSWER.get() {
        return known.clone();
    }
    let answer = on_engine(find_engine()).await;
    ANSWER.get_or_init(|| answer).clone()
}

async fn find_engine() -> Result<(), String> {
    let client = docker_client_instance().await.map_err(|e| format!("no Docker engine: {e}"))?;
    match tokio::time::timeout(Duration::from_secs(2), client.ping()).await {
        Ok(Ok(_)) => {}
        Ok(Err(e)) => return Err(format!("no Docker engine answers: {e}")),
        Err(_) => return Err("the Docker engine does not answer in 2 s".into()),
    }
    let cli = std::process::Command::new("docker").arg("--version").output();
    cli.map_err(|e| format!("the `docker` command is needed to remove containers: {e}"))?;
    let (name, tag) = image();
    if client.inspect_image(&format!("{name}:{tag}")).await.is_ok() {
        return Ok(());
    }
    eprintln!("tests: getting image {name}:{tag}");
    let pulled = GenericImage::new(&name, &tag).pull_image();
    match tokio::time::timeout(Duration::from_secs(180), pulled).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(e)) => Err(format!("image {name}:{tag} is neither here nor to be had: {e}")),
        Err(_) => Err(format!("image {name}:{tag} is not here, and getting it takes over 3 minutes")),
    }
}

/// A container of one test's own. Its port on 127.0.0.1 stays the same when it is stopped and started.
#[derive(Debug)]
pub struct Container {
    pub port: u16,
    name: String,
    _reaper: AtTheEnd,
}

impl Container {
    /// Up and serving.
    pub async fn start(options: &[String]) -> Result<Self, String> {
        let mut why = String::new();
        // Another process may take a port between the look at it and its use.
        for _ in 0..5 {
            let name = names::unique("test");
            let reaper = AtTheEnd::run(REMOVE, &[&name]).map_err(|e| format!("sh: {e}"))?;
            match run(&name, free_port(), options).await {
                Ok(port) => return Ok(Self { port, name, _reaper: reaper }),
                Err(e) => why = e,
            }
        }
        Err(why)
    }

    /// SIGKILL, and wait until the engine has noticed.
    pub async fn kill(&self) -> Result<(), String> {
        let name = self.name.clone();
        on_engine(async move {
            let client = docker_client_instance().await.map_err(|e| e.to_string())?;
            let options = KillContainerOptions { signal: "SIGKILL".into() };
            client.kill_container(&name, Some(options)).await.map_err(|e| format!("kill: {e}"))?;
            wait_stopped(&client, &name).await
        })
        .await
    }

    /// SIGTERM, and wait for its end.
    pub async fn stop(&self) -> Result<(), String> {
        self.engine("stop", |client, name| async move {
            let options = StopContainerOptions { t: Some(20), ..StopContainerOptions::default() };
            client.stop_container(&name, Some(options)).await
        })
        .await
    }

    /// Starts it with the data it had, and waits until it serves.
    pub async fn up(&self) -> Result<(), String> {
        self.engine("start", |client, name| async move { client.start_container(&name, None).await }).await?;
        wait_ready(self.port, None, None).await
    }

    /// Freezes it. Its connections stay open.
    pub async fn pause(&self) -> Result<(), String> {
        self.engine("pause", |client, name| async move { client.pause_container(&name).await }).await
    }

    /// Lets it go on.
    pub async fn resume(&self) -> Result<(), String> {
        self.engine("unpause", |client, name| async move { client.unpause_container(&name).await }).await
    }

    async fn engine<F>(
        &self,
        what: &'static str,
        call: impl FnOnce(Docker, String) -> F + Send + 'static,
    ) -> Result<(), String>
    where
        F: Future<Output = Result<(), testcontainers::bollard::errors::Error>> + Send,
    {
        let name = self.name.clone();
        on_engine(async move {
            let client = docker_client_instance().await.map_err(|e| e.to_string())?;
            call(client, name).await.map_err(|e| format!("{what}: {e}"))
        })
        .await
    }
}

/// Ids of the containers that a process started and that are still there, running or not.
pub fn containers_of(pid: u32) -> String {
    let filter = format!("label={LABEL}={pid}");
    let listed = std::process::Command::new("docker").args(["ps", "-aq", "--filter", &filter]).output();
    String::from_utf8_lossy(&listed.expect("docker").stdout).trim().to_owned()
}

async fn wait_stopped(client: &Docker, name: &str) -> Result<(), String> {
    for _ in 0..2000 {
        let seen = client.inspect_container(name, None).await.map_err(|e| format!("inspect: {e}"))?;
        if seen.state.and_then(|s| s.running) == Some(false) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Err(format!("{name} does not stop"))
}

/// Starts a container that somebody else removes. The port it serves on.
pub async fn run(name: &str, port: u16, options: &[String]) -> Result<u16, String> {
    let (container, options) = (name.to_owned(), options.to_vec());
    on_engine(async move {
        let (name, tag) = image();
        // Only words that begin with `--` in front: then the entrypoint of the public image runs the server too.
        let command = ["--protected-mode", "no", "--save", ""].map(str::to_owned).into_iter().chain(options);
        let started = GenericImage::new(name, tag)
            .with_exposed_port(6379.tcp())
            .with_container_name(container)
            .with_label(LABEL, std::process::id().to_string())
            .with_host_config_modifier(move |host| {
                // By default every port would be published on all interfaces.
                host.publish_all_ports = Some(false);
                let here =
                    PortBinding { host_ip: Some("127.0.0.1".into()), host_port: Some(port.to_string()) };
                host.port_bindings = Some([("6379/tcp".to_owned(), Some(vec![here]))].into());
            })
            .with_cmd(command)
            .start()
            .await
            .map_err(|e| format!("container: {e}"))?;
        std::mem::forget(started);
        Ok::<(), String>(())
    })
    .await?;
    // Not through `get_host`: inside a container that would be the gateway, where nothing is published.
    wait_ready(port, None, None).await.map_err(|e| format!("container {name}: {e}"))?;
    Ok(port)
}
