//! TLS, for `pulsar+ssl://`: rustls with ring.

use crate::{Error, Result};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as RustlsError, RootCertStore,
    SignatureScheme,
};

/// What the client trusts, and what it shows.
#[derive(Debug, Clone)]
pub struct TlsOptions {
    roots: Roots,
    client: Option<(PathBuf, PathBuf)>,
    verify_hostname: bool,
    allow_insecure: bool,
}

#[derive(Debug, Clone)]
enum Roots {
    Public,
    File(PathBuf),
    Pem(Vec<u8>),
}

impl Default for TlsOptions {
    /// Trusts the public authorities (those of Mozilla) and verifies names.
    fn default() -> Self {
        Self {
            roots: Roots::Public,
            client: None,
            verify_hostname: true,
            allow_insecure: false,
        }
    }
}

impl TlsOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the certificates in this file of PEM instead (`tlsTrustCertsFilePath`).
    #[must_use]
    pub fn trust_certs_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.roots = Roots::File(path.into());
        self
    }

    /// Trusts the certificates in this PEM instead.
    #[must_use]
    pub fn trust_certs_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.roots = Roots::Pem(pem.into());
        self
    }

    /// Shows this certificate (a file of PEM, its chain behind it) and holds its key.
    #[must_use]
    pub fn client_certificate(
        mut self,
        certificates: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.client = Some((certificates.into(), key.into()));
        self
    }

    /// Whether the broker's certificate must be for the name in its address (`tlsHostnameVerificationEnable`); true unless said
    /// otherwise.
    #[must_use]
    pub fn verify_hostname(mut self, verify: bool) -> Self {
        self.verify_hostname = verify;
        self
    }

    /// Whether any certificate will do (`tlsAllowInsecureConnection`): encrypted, but with whomever. For tests.
    #[must_use]
    pub fn allow_insecure(mut self, allow: bool) -> Self {
        self.allow_insecure = allow;
        self
    }

    /// Reads the files and makes a connector of them.
    ///
    /// # Errors
    /// [`Error::Tls`] if a file cannot be read, or what is in it cannot be used.
    pub fn connector(&self) -> Result<Connector> {
        let provider = Arc::new(ring::default_provider());
        let roots = Arc::new(self.root_store()?);
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(fault)?;
        let strict = (!self.allow_insecure)
            .then(|| {
                WebPkiServerVerifier::builder_with_provider(
                    Arc::clone(&roots),
                    Arc::clone(&provider),
                )
                .build()
            })
            .transpose()
            .map_err(fault)?;
        let builder = match strict {
            Some(verifier) if self.verify_hostname => builder.with_webpki_verifier(verifier),
            inner => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Lenient { inner, provider })),
        };
        let config = match &self.client {
            None => builder.with_no_client_auth(),
            Some((certificates, key)) => {
                let chain = read_certificates(certificates)?;
                let key = PrivateKeyDer::from_pem_file(key).map_err(|error| {
                    Error::Tls(format!("the key in {}: {error}", key.display()))
                })?;
                builder.with_client_auth_cert(chain, key).map_err(fault)?
            }
        };
        Ok(Connector(TlsConnector::from(Arc::new(config))))
    }

    fn root_store(&self) -> Result<RootCertStore> {
        let mut store = RootCertStore::empty();
        let certificates = match &self.roots {
            _ if self.allow_insecure => return Ok(store),
            Roots::Public => {
                store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
                return Ok(store);
            }
            Roots::File(path) => read_certificates(path)?,
            Roots::Pem(pem) => CertificateDer::pem_slice_iter(pem)
                .collect::<std::result::Result<_, _>>()
                .map_err(|error| Error::Tls(format!("the trusted certificates: {error}")))?,
        };
        for certificate in certificates {
            store.add(certificate).map_err(fault)?;
        }
        if store.is_empty() {
            return Err(Error::Tls(
                "there is no certificate to trust in what was given".to_owned(),
            ));
        }
        Ok(store)
    }
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| Error::Tls(format!("the certificates in {}: {error}", path.display())))
}

fn fault(error: impl fmt::Display) -> Error {
    Error::Tls(error.to_string())
}

/// Makes TLS sessions.
#[derive(Clone)]
pub struct Connector(TlsConnector);

impl Connector {
    /// A session over this stream, with a broker of this name or address.
    ///
    /// # Errors
    /// [`Error::Tls`] if the name cannot be one, or no session comes about.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        host: &str,
    ) -> Result<TlsStream<S>> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(bare.to_owned())
            .map_err(|_| Error::Tls(format!("{host} is neither a host's name nor its address")))?;
        let session = self.0.connect(name, stream).await;
        session.map_err(|error| Error::Tls(format!("no session with {host}: {error}")))
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}

/// Takes a certificate for another name, and without an inner verifier any certificate. Signatures are always checked.
#[derive(Debug)]
struct Lenient {
    inner: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, RustlsError> {
        let Some(inner) = &self.inner else {
            return Ok(ServerCertVerified::assertion());
        };
        // The chain is verified first, the name last: this fault says that all else is right.
        match inner.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            Err(RustlsError::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signature,
            algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::server::WebPkiClientVerifier;

    struct Authority {
        issuer: Issuer<'static, KeyPair>,
        pem: String,
    }

    fn authority() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Authority { issuer, pem }
    }

    impl Authority {
        /// A certificate for this name, and its key, in PEM.
        fn issue(&self, name: &str) -> (String, String) {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &self.issuer).unwrap();
            (certificate.pem(), key.serialize_pem())
        }
    }

    fn server(authority: &Authority, name: &str, asks_client: bool) -> TlsAcceptor {
        let (certificate, key) = authority.issue(name);
        let chain = CertificateDer::pem_slice_iter(certificate.as_bytes())
            .collect::<Result<_, _>>()
            .unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if asks_client {
            let roots = TlsOptions::new()
                .trust_certs_pem(authority.pem.as_str())
                .root_store()
                .unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .unwrap();
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap()))
    }

    /// Whether four bytes go to a server and back.
    fn talks(acceptor: &TlsAcceptor, options: &TlsOptions, host: &str) -> Result<()> {
        let connector = options.connector()?;
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(async {
                let (ours, theirs) = duplex(64 << 10);
                let serve = async {
                    let mut stream = acceptor.accept(theirs).await?;
                    let mut four = [0; 4];
                    stream.read_exact(&mut four).await?;
                    stream.write_all(&four).await?;
                    stream.shutdown().await
                };
                let talk = async {
                    let mut stream = connector.connect(ours, host).await?;
                    stream.write_all(b"ping").await.map_err(fault)?;
                    let mut four = [0; 4];
                    stream.read_exact(&mut four).await.map_err(fault)?;
                    assert_eq!(&four, b"ping");
                    Ok(())
                };
                let (_, talked) = tokio::join!(serve, talk);
                talked
            })
    }

    #[test]
    fn a_broker_is_known_by_its_authority_and_its_name() {
        let authority = authority();
        let acceptor = server(&authority, "broker.test", false);
        let trusting = TlsOptions::new().trust_certs_pem(authority.pem.as_str());
        talks(&acceptor, &trusting, "broker.test").unwrap();
        talks(&acceptor, &trusting, "127.0.0.1").unwrap_err();
        talks(&acceptor, &trusting, "other.test").unwrap_err();
        talks(
            &acceptor,
            &trusting.clone().verify_hostname(false),
            "other.test",
        )
        .unwrap();
        let strange = TlsOptions::new().trust_certs_pem(super::tests::authority().pem);
        talks(&acceptor, &strange, "broker.test").unwrap_err();
        talks(
            &acceptor,
            &strange.clone().verify_hostname(false),
            "broker.test",
        )
        .unwrap_err();
        talks(&acceptor, &TlsOptions::new(), "broker.test").unwrap_err();
        talks(&acceptor, &strange.allow_insecure(true), "whoever").unwrap();
    }

    #[test]
    fn a_client_shows_its_certificate() {
        let authority = authority();
        let acceptor = server(&authority, "broker.test", true);
        let trusting = TlsOptions::new().trust_certs_pem(authority.pem.as_str());
        talks(&acceptor, &trusting, "broker.test").unwrap_err();
        let directory = tempfile::tempdir().unwrap();
        let (certificate, key) = authority.issue("client.test");
        let (certificates, key_file) = (
            directory.path().join("client.pem"),
            directory.path().join("client.key"),
        );
        std::fs::write(&certificates, certificate).unwrap();
        std::fs::write(&key_file, key).unwrap();
        let showing = trusting.client_certificate(&certificates, &key_file);
        talks(&acceptor, &showing, "broker.test").unwrap();
        let missing = showing.client_certificate(directory.path().join("none"), key_file);
        assert!(
            missing
                .connector()
                .unwrap_err()
                .to_string()
                .contains("none")
        );
    }

    #[test]
    fn nothing_to_trust_is_refused_when_built() {
        TlsOptions::new()
            .trust_certs_pem("no certificate")
            .connector()
            .unwrap_err();
        TlsOptions::new()
            .trust_certs_file("/no/such/file")
            .connector()
            .unwrap_err();
    }
}
