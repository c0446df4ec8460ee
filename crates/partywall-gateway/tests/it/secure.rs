//! TLS on both sides.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use partywall_gateway::gateway::Gateway;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::upstream::Upstream;
use crate::{CHAT, all_available, client, configured};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// A gateway that speaks TLS, in front of `url`.
fn secured(url: String, each: &str) -> Gateway {
    let mut config = configured(&[url], "", each);
    config.listen.cert = Some("cert.pem".into());
    config.listen.key = Some("key.pem".into());
    Gateway::start(config, &fixtures(), None).unwrap()
}

async fn ask(gateway: &Gateway, request: String) -> std::io::Result<String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(fixtures().join("ca.pem")).unwrap()).unwrap();
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = tokio::net::TcpStream::connect(gateway.address()).await?;
    let mut stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[test]
fn clients_and_replicas_speak_tls() {
    let upstream = Upstream::start();
    // The second gateway is the first one's replica.
    let inner = secured(upstream.url(), "");
    all_available(&inner);
    let outer = secured(format!("https://localhost:{}", inner.address().port()), "ca-file = \"ca.pem\"");
    all_available(&outer);
    let length = CHAT.len();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\nconnection: close\r\nx-test: stream 3\r\n\r\n{CHAT}"
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answer = runtime.block_on(ask(&outer, request)).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("data: [DONE]"), "{answer}");
    // Who does not speak it is not answered.
    let mut plain = client::Client::connect(outer.address());
    plain.send("GET", "/health", &[], b"");
    assert!(plain.answer().is_none());
}

#[test]
fn a_replica_whose_certificate_nobody_knows_gets_nothing() {
    let upstream = Upstream::start();
    let inner = secured(upstream.url(), "");
    all_available(&inner);
    let url = format!("https://localhost:{}", inner.address().port());
    let config = configured(&[url], "[health]\npath = \"\"", "");
    let outer = Gateway::start(config, &fixtures(), None).unwrap();
    let answer = client::chat(outer.address(), "", CHAT);
    assert_eq!((answer.status, answer.code().as_str()), (502, "replica_unreachable"));
    assert!(answer.text().contains("TLS"), "{}", answer.text());
    assert!(upstream.seen().is_empty());
}

#[test]
fn files_that_are_no_certificates_are_said_to_be_none() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("cert.pem", "nothing"), ("key.pem", "nothing")] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let mut config = configured(&[], "", "");
    config.listen.cert = Some("cert.pem".into());
    config.listen.key = Some("key.pem".into());
    let error = Gateway::start(config.clone(), folder.path(), None).err().unwrap().to_string();
    assert!(error.contains("cert.pem holds no certificate"), "{error}");
    config.listen.cert = Some("missing.pem".into());
    let error = Gateway::start(config, folder.path(), None).err().unwrap().to_string();
    assert!(error.contains("cannot read") && error.contains("missing.pem"), "{error}");
}
