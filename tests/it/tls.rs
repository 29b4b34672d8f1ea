//! `rediss://`: certificates of our own, mutual TLS, and refusals that name the cause.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mcp_courier::{Courier, Credentials, Error, Tls};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::support::backend::Kind;
use crate::support::fixture::{Recorder, push, session};
use crate::support::private::{Options, PrivateServer, private_or_skip};
use crate::support::ready::free_port;
use crate::support::server;
use crate::support::wait::wait_until;

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

/// Options of a server with a certificate of `ca`, its files in `folder`; `clients`: whether it wants certificates too.
fn server_options(folder: &Path, ca: &Authority, clients: &str) -> Vec<String> {
    let (certificate, key) = ca.certificate("server");
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("text").to_owned()
    };
    let (ca, cert, key) = (file("ca.pem", &ca.pem), file("cert.pem", &certificate), file("key.pem", &key));
    let options = ["--tls-ca-cert-file", &ca, "--tls-cert-file", &cert, "--tls-key-file", &key];
    options.into_iter().chain(["--tls-auth-clients", clients]).map(str::to_owned).collect()
}

/// A server that speaks TLS on a port of its own, with its files in `folder`.
async fn tls_server(folder: &Path, ca: &Authority, clients: &str) -> Option<(PrivateServer, u16)> {
    let port = free_port();
    let mut extra = vec!["--tls-port".to_owned(), port.to_string()];
    extra.extend(server_options(folder, ca, clients));
    let extra: Vec<&str> = extra.iter().map(String::as_str).collect();
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

/// A program for a topology with TLS, where there is one.
#[cfg(any(feature = "sentinel", feature = "cluster"))]
async fn program() -> Option<std::path::PathBuf> {
    match crate::support::backend::backend().await.ok()?.kind() {
        Kind::Url | Kind::Memory => None,
        _ => crate::support::binary::find().ok(),
    }
}

/// A provider of one user's secret, and how often it was asked.
#[cfg(any(feature = "sentinel", feature = "cluster"))]
fn provider(
    secret: &'static str,
) -> (Arc<AtomicUsize>, impl Fn() -> std::future::Ready<Result<Credentials, String>>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    (asked, move || {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(Credentials::password(secret)))
    })
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

/// F45, F49: sentinels and servers over TLS with client certificates, each kind with a provider of its own that is asked
/// at every connect; secrets show nowhere.
#[cfg(feature = "sentinel")]
#[tokio::test]
async fn f45_sentinels_and_servers_are_asked_over_tls_with_credentials_of_their_own() {
    use crate::support::sentinel::{Setup, Trio};
    let Some(program) = program().await else { return };
    let (folder, ca) = (tempfile::tempdir().expect("a folder"), Authority::new("test authority"));
    let options = server_options(folder.path(), &ca, "yes");
    let setup = Setup { tls: &options, passwords: Some(("of-servers", "of-sentinels")), ..Setup::default() };
    let trio = match Trio::start(&program, setup).await {
        Ok(trio) => trio,
        Err(why) if built_without_tls(&why) => return,
        Err(why) => panic!("trio: {why}"),
    };
    let (certificate, key) = ca.certificate("client");
    let tls = Tls::new().root_certificate(ca.pem.clone()).client_certificate(certificate, key);
    let ((servers, of_servers), (sentinels, of_sentinels)) =
        (provider("of-servers"), provider("of-sentinels"));
    let builder = || Courier::builder().tls(tls.clone()).heartbeat(Duration::from_millis(300));
    let courier = builder()
        .credentials(of_servers)
        .sentinel_credentials(of_sentinels)
        .connect(trio.tls_url())
        .await
        .expect("connected");
    let (s, sink) = (session("s"), Recorder::new());
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    courier.push(push(&s, "1")).await.expect("queued");
    sink.wait_for(1).await;
    let asked = || (servers.load(Ordering::Relaxed), sentinels.load(Ordering::Relaxed));
    assert_eq!(asked(), (2, 2), "once for each connection");

    // All cut: both kinds are asked again.
    let master = format!("redis://:of-servers@127.0.0.1:{}", trio.servers[0].port);
    let mut raw = server::raw(&master).await;
    for kind in ["normal", "pubsub"] {
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("TYPE").arg(kind).exec_async(&mut raw).await.expect("killed");
    }
    courier.push(push(&s, "2")).await.expect("queued");
    assert_eq!(sink.wait_for(2).await, ["1", "2"]);
    assert!(asked().0 >= 3 && asked().1 >= 3, "{:?}", asked());
    courier.shutdown(Duration::from_secs(5)).await;

    let url =
        trio.tls_url().replace("sentinel://", "sentinel://:of-servers@") + "?sentinel_pass=of-sentinels";
    round_trip(&builder().connect(&url).await.expect("the URL may say both as well")).await;
    let (_, wrong) = provider("wr0ng");
    let refused = builder().sentinel_credentials(wrong).connect(&url).await.expect_err("sentinels refuse");
    assert!(matches!(&refused, Error::Refused { code, .. } if code == "WRONGPASS"), "{refused:?}");
    let stranger = Tls::new().root_certificate(ca.pem.clone());
    let refused = Courier::builder().tls(stranger).connect(&url).await.expect_err("no client certificate");
    let shown = format!("{courier:?} {refused} {refused:?}");
    assert!(!shown.contains("of-s") && !shown.contains("wr0ng"), "{shown}");
}

/// A failover is followed over TLS: the sentinels name the new master by its TLS port.
#[cfg(feature = "sentinel")]
#[tokio::test]
async fn a_failover_is_followed_over_tls() {
    use crate::support::sentinel::{Setup, Trio};
    let Some(program) = program().await else { return };
    let (folder, ca) = (tempfile::tempdir().expect("a folder"), Authority::new("test authority"));
    let options = server_options(folder.path(), &ca, "yes");
    let trio = match Trio::start(&program, Setup { tls: &options, ..Setup::default() }).await {
        Ok(trio) => trio,
        Err(why) if built_without_tls(&why) => return,
        Err(why) => panic!("trio: {why}"),
    };
    let (certificate, key) = ca.certificate("client");
    let tls = Tls::new().root_certificate(ca.pem.clone()).client_certificate(certificate, key);
    let courier = Courier::builder()
        .tls(tls)
        .heartbeat(Duration::from_millis(300))
        .deadline(Duration::from_secs(30))
        .connect(trio.tls_url())
        .await
        .expect("connected");
    let (s, sink) = (session("s"), Recorder::new());
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    courier.push(push(&s, "before")).await.expect("queued");
    sink.wait_for(1).await;
    trio.failover().await;
    // Sentinel cuts the old master's clients when it makes a replica of it.
    wait_until("both connections to be opened again", Duration::from_secs(30), || async {
        let metrics = courier.metrics();
        if metrics.reconnects >= 2 { Ok(()) } else { Err(format!("{metrics:?}")) }
    })
    .await;
    courier.push(push(&s, "after")).await.expect("queued");
    wait_until("delivery by the new master", Duration::from_secs(20), || async {
        if sink.bodies().iter().any(|b| b == "after") {
            Ok(())
        } else {
            Err(format!("{:?}", courier.health()))
        }
    })
    .await;
    courier.shutdown(Duration::from_secs(5)).await;
}

/// F45: every master of a Cluster over TLS with a client certificate; the provider is asked for each connection to each.
#[cfg(feature = "cluster")]
#[tokio::test]
async fn f45_every_master_of_a_cluster_is_asked_over_tls() {
    use crate::support::cluster::Cluster;
    let Some(program) = program().await else { return };
    let (folder, ca) = (tempfile::tempdir().expect("a folder"), Authority::new("test authority"));
    let options = server_options(folder.path(), &ca, "yes");
    let cluster = Cluster::start_with(&program, Duration::from_secs(60), &[], &options).await;
    let cluster = match cluster {
        Ok(cluster) => cluster,
        Err(why) if built_without_tls(&why) => return,
        Err(why) => panic!("cluster: {why}"),
    };
    for node in &cluster.nodes {
        let rule = ["ACL", "SETUSER", "app", "on", ">of-servers", "~*", "&*", "+@all"];
        cluster.ask::<String>(node.port, &rule).await.expect("a user");
    }
    let (certificate, key) = ca.certificate("client");
    let tls = Tls::new().root_certificate(ca.pem.clone()).client_certificate(certificate, key);
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let courier = Courier::builder()
        .tls(tls)
        .credentials(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Ok(Credentials::user("app", "of-servers")))
        })
        .connect(cluster.tls_url())
        .await
        .expect("connected");
    let sink = Recorder::new();
    let sessions: Vec<_> = (0..30).map(|n| session(&format!("s{n}"))).collect();
    for s in &sessions {
        courier.subscribers().ensure_running(s, sink.clone()).await.expect("claimed");
        courier.push(push(s, "x")).await.expect("queued");
    }
    sink.wait_for(30).await;
    for node in &cluster.nodes[..3] {
        let list: String = cluster.ask(node.port, &["CLIENT", "LIST"]).await.expect("CLIENT LIST");
        assert!(list.lines().any(|l| l.contains(" user=app ")), "{}: {list}", node.port);
    }
    assert!(asked.load(Ordering::Relaxed) >= 4, "{asked:?}");
    courier.shutdown(Duration::from_secs(5)).await;
}

/// F49: any characters in a password, in the URL and beside it; what is wrong is named with the host and without the
/// secret.
#[tokio::test]
async fn f49_a_password_of_any_characters_is_accepted_and_never_shown() {
    let secret: &'static str = "p#a/s@s:w%o+r=d s3cret";
    let extra = ["--requirepass", secret];
    let Some(server) = private_or_skip("f49", Options { extra: &extra, ..Options::default() }).await else {
        return;
    };
    let host = format!("127.0.0.1:{}", server.port());
    let encoded = "p%23a%2Fs%40s%3Aw%25o%2Br%3Dd%20s3cret";
    for url in [format!("redis://:{encoded}@{host}"), format!("redis://default:{encoded}@{host}/0")] {
        round_trip(&Courier::connect(url).await.expect("in the URL, encoded")).await;
    }
    let beside =
        || Courier::builder().credentials(move || std::future::ready(Ok(Credentials::password(secret))));
    round_trip(&beside().connect(format!("redis://{host}")).await.expect("beside the URL, as it is")).await;
    let mut errors = Vec::new();
    for url in [
        format!("redis://:{encoded}x@{host}"),
        format!("redis://default:{encoded}@{host}/zero"),
        format!("redis://default:{encoded}@{host}#insecure"),
        format!("rediss://:{encoded}@{host}"),
        format!("rediss://:{encoded}@127.0.0.1:1"),
        // Not encoded: whatever the parser makes of it, nothing is shown.
        format!("redis://:{secret}@{host}"),
    ] {
        let e = Courier::connect(&url).await.expect_err("not like this");
        assert!(!format!("{e} {e:?}").contains("s3cret"), "{e:?}");
        errors.push(e);
    }
    assert!(matches!(&errors[0], Error::Refused { code, .. } if code == "WRONGPASS"), "{:?}", errors[0]);
    assert!(matches!(&errors[1], Error::Invalid { what: "url", .. }), "{:?}", errors[1]);
    assert!(matches!(&errors[2], Error::Invalid { what: "url", .. }), "{:?}", errors[2]);
    assert!(matches!(&errors[3], Error::Unreachable { address, .. } if *address == host), "{:?}", errors[3]);
    assert!(errors[4].to_string().contains("127.0.0.1:1"), "{}", errors[4]);
}
