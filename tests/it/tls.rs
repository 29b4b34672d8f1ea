//! `rediss://`: certificates of our own, mutual TLS, and refusals that name the cause.

use std::path::Path;
use std::time::Duration;

use mcp_courier::{Courier, Error, Tls};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::support::backend::Kind;
use crate::support::fixture::{Recorder, push, session};
use crate::support::private::{Options, PrivateServer, private_or_skip};
use crate::support::ready::free_port;

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("signed").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate and its key, for a name that is not the authority's own.
    fn certificate(&self, name: &str) -> (String, String) {
        let mut params =
            CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        (certificate.pem(), key.serialize_pem())
    }
}

/// A server that speaks TLS on a port of its own, with its files in `folder`.
async fn tls_server(folder: &Path, ca: &Authority, clients: &str) -> Option<(PrivateServer, u16)> {
    let (certificate, key) = ca.certificate("server");
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("text").to_owned()
    };
    let (ca, cert, key) = (file("ca.pem", &ca.pem), file("cert.pem", &certificate), file("key.pem", &key));
    let port = free_port();
    let extra = [
        "--tls-port",
        &port.to_string(),
        "--tls-ca-cert-file",
        &ca,
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-auth-clients",
        clients,
    ];
    if crate::support::backend::backend().await.ok()?.kind() != Kind::Binary {
        eprintln!("skipped: the server's certificates are files of this machine");
        return None;
    }
    let options = Options { extra: &extra, ..Options::default() };
    match PrivateServer::try_start(options).await? {
        Ok(server) => Some((server, port)),
        Err(why) if built_without_tls(&why) => None,
        Err(why) => panic!("private server: {why}"),
    }
}

/// Whether that is why a server does not start.
fn built_without_tls(why: &str) -> bool {
    let without = why.contains("Failed finding TLS support") || why.contains(">>> 'tls-port ");
    if without {
        eprintln!("skipped: this server was built without TLS");
    }
    without
}

async fn round_trip(courier: &Courier) {
    let s = session("s");
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    courier.push(push(&s, "encrypted")).await.expect("queued");
    sink.wait_for(1).await;
    courier.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn both_connections_are_encrypted_and_trust_the_given_authority_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let ca = Authority::new("test authority");
    let Some((_server, port)) = tls_server(folder.path(), &ca, "no").await else { return };
    for host in ["127.0.0.1", "localhost"] {
        let tls = Tls::new().root_certificate(ca.pem.clone());
        let courier = Courier::builder().tls(tls).connect(format!("rediss://{host}:{port}")).await;
        round_trip(&courier.expect("connected")).await;
    }
    let other = Tls::new().root_certificate(Authority::new("another authority").pem);
    for tls in [other, Tls::new()] {
        let refused = Courier::builder().tls(tls).connect(format!("rediss://127.0.0.1:{port}")).await;
        let why = refused.expect_err("not trusted");
        assert!(matches!(why, Error::Unreachable { .. }) && why.to_string().contains("certificate"), "{why}");
    }
}

#[tokio::test]
async fn mutual_tls_needs_and_accepts_a_client_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    let ca = Authority::new("test authority");
    let Some((_server, port)) = tls_server(folder.path(), &ca, "yes").await else { return };
    let (certificate, key) = ca.certificate("client");
    let trusting = || Tls::new().root_certificate(ca.pem.clone());
    let url = format!("rediss://127.0.0.1:{port}");
    let shown = trusting().client_certificate(certificate, key.clone());
    assert!(!format!("{shown:?}").contains("PRIVATE"), "{shown:?}");
    round_trip(&Courier::builder().tls(shown).connect(&url).await.expect("connected")).await;
    Courier::builder().tls(trusting()).connect(&url).await.expect_err("no client certificate");
    let broken = trusting().client_certificate("not a certificate", key);
    let invalid = Courier::builder().tls(broken).connect(&url).await.expect_err("no certificate at all");
    assert!(matches!(invalid, Error::Invalid { .. } | Error::Unreachable { .. }), "{invalid:?}");
}

/// A server that does not speak TLS is an error, and no panic for want of a crypto provider.
#[tokio::test]
async fn a_server_without_tls_is_an_error() {
    let Some(server) = private_or_skip("plain", Options::default()).await else { return };
    let url = format!("rediss://127.0.0.1:{}", server.port());
    Courier::connect(url).await.expect_err("no TLS there");
}
