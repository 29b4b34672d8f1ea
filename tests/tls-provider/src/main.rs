//! Opens a `rediss://` connection to a listener that does not speak TLS: the handshake must begin, and fail with an
//! error. Without a crypto provider it panics.

use mcp_courier::{Courier, Error};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let hello = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.expect("accepted");
        let mut first = [0; 1];
        client.read_exact(&mut first).await.expect("a byte");
        client.write_all(b"-ERR no TLS here\r\n").await.expect("answered");
        first[0]
    });
    let refused = Courier::connect(format!("rediss://127.0.0.1:{port}")).await.expect_err("no TLS there");
    assert!(matches!(refused, Error::Unreachable { .. }), "{refused:?}");
    assert_eq!(hello.await.expect("no panic"), 0x16, "a TLS handshake record");
    println!("a TLS handshake began without a provider chosen by the program: {refused}");
}
