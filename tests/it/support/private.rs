//! stand-in
use redis::aio::MultiplexedConnection;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
pub struct PrivateServer {
    child: Option<Child>,
    port: u16,
    dir: tempfile::TempDir,
    args: Vec<String>,
}
impl PrivateServer {
    pub async fn start(args: &[&str]) -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut s = Self {
            child: None,
            port,
            dir: tempfile::tempdir().unwrap(),
            args: args.iter().map(|a| a.to_string()).collect(),
        };
        s.start_again().await;
        s
    }
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
    pub fn port(&self) -> u16 {
        self.port
    }
    pub async fn raw(&self) -> MultiplexedConnection {
        redis::Client::open(self.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
    }
    pub async fn start_again(&mut self) {
        self.child = Some(
            Command::new("redis-server")
                .args([
                    "--port",
                    &self.port.to_string(),
                    "--bind",
                    "127.0.0.1",
                    "--save",
                    "",
                    "--dir",
                    self.dir.path().to_str().unwrap(),
                ])
                .args(&self.args)
                .stdout(Stdio::null())
                .spawn()
                .unwrap(),
        );
        for _ in 0..1000 {
            if let Ok(c) = redis::Client::open(self.url()).unwrap().get_multiplexed_async_connection().await {
                let mut c = c;
                if redis::cmd("PING").query_async::<String>(&mut c).await.is_ok() {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no start");
    }
    pub fn sigkill(&mut self) {
        let mut c = self.child.take().unwrap();
        c.kill().unwrap();
        c.wait().unwrap();
    }
}
impl Drop for PrivateServer {
    fn drop(&mut self) {
        if let Some(mut c) = self.child.take() {
            let _ = c.kill();
            let _ = c.wait();
        }
    }
}
