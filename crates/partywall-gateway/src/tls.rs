//! TLS on both sides, by rustls: certificates and keys from PEM files.

use std::path::Path;
use std::sync::Arc;

use hyper_rustls::ConfigBuilderExt as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::error::Error;

/// Bytes of a file with certificates or a key.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// For clients that connect.
pub(crate) fn acceptor(cert: &Path, key: &Path) -> Result<TlsAcceptor, Error> {
    let chain = certificates(cert)?;
    let wrong = |why: String| Error::Content { path: key.to_owned(), problem: why };
    let pem = read(key)?;
    let private = PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|error| wrong(format!("holds no private key in PEM ({error})")))?;
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| wrong(format!("does not go with {}: {error}", cert.display())))?;
    let mut config = config;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// To replicas whose certificates go back to those in `ca`, without it to the public ones.
pub(crate) fn connector(ca: Option<&Path>) -> Result<TlsConnector, Error> {
    let config = match ca {
        None => ClientConfig::builder().with_webpki_roots().with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| Error::Content {
                    path: path.to_owned(),
                    problem: format!("holds a certificate that cannot be used: {error}"),
                })?;
            }
            ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()
        }
    };
    let mut config = config;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let wrong = |problem: String| Error::Content { path: path.to_owned(), problem };
    let pem = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(wrong("holds no certificate in PEM".to_owned())),
        Err(error) => Err(wrong(format!("is no PEM ({error})"))),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let length = std::fs::metadata(path).map_err(Error::read(path))?.len();
    if length > MAX_FILE_BYTES {
        let problem = format!("has {length} bytes; at most {MAX_FILE_BYTES} are read");
        return Err(Error::Content { path: path.to_owned(), problem });
    }
    std::fs::read(path).map_err(Error::read(path))
}
