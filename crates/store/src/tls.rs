//! TLS with certificates in files, for a listener and for a client.
//!
//! Certificates are renewed on disk, in Kubernetes by the swap of a link. A listener reads its
//! files again and again ([`ServerTls`]), and a client reads them for each connection
//! ([`TlsFiles::connect`]). Both speak HTTP/2 only.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::spawn_blocking;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

/// How often a listener reads its files.
const EVERY: Duration = Duration::from_secs(1);
/// The protocol that both sides agree on.
const HTTP2: &[u8] = b"h2";

/// The files of one side, in PEM, and what it demands of its peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Its own certificate and those up to its authority, and the private key. A listener needs
    /// them.
    pub own: Option<(PathBuf, PathBuf)>,
    /// The authorities of its peer. Without the file, a client trusts those that the system trusts,
    /// and a listener asks for no certificate.
    pub authority: Option<PathBuf>,
    /// The DNS name or IP address that the certificate of its peer must have. Without it, a client
    /// demands the name that it connects to.
    pub peer: Option<String>,
}

/// What is wrong with the files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TlsFault(String);

/// The TLS of a listener, by the files as they were when they were last good.
///
/// Call order: [`open`](Self::open) reads the files, [`keep_read`](Self::keep_read) reads them
/// again, [`accept`](Self::accept) is called for each connection.
#[derive(Debug)]
pub struct ServerTls {
    files: TlsFiles,
    state: RwLock<ServerState>,
}

#[derive(Debug)]
struct ServerState {
    texts: PemTexts,
    config: Arc<ServerConfig>,
    /// What the log said last of the files.
    complaint: Option<TlsFault>,
}

/// What the files hold.
#[derive(PartialEq, Eq)]
struct PemTexts {
    own: Option<(Vec<u8>, Vec<u8>)>,
    authority: Option<Vec<u8>>,
}

impl TlsFiles {
    /// Makes `stream` a TLS connection to `host`, by the files as they are now.
    ///
    /// # Errors
    /// When a file is wrong, or the peer is.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        host: &str,
        stream: S,
    ) -> io::Result<client::TlsStream<S>> {
        let own = self.clone();
        let config = spawn_blocking(move || own.read().and_then(|texts| own.client(&texts)));
        let config = config.await?.map_err(io::Error::other)?;
        let name = self.peer.as_deref().unwrap_or(host);
        let name = server_name(name).map_err(io::Error::other)?;
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// Reads all files once, so that a fault in one shows before the first connection.
    ///
    /// # Errors
    /// The first fault.
    pub fn check_client(&self) -> Result<(), TlsFault> {
        self.client(&self.read()?).map(drop)
    }

    fn read(&self) -> Result<PemTexts, TlsFault> {
        self.peer.as_deref().map(server_name).transpose()?;
        let read = |path: &PathBuf| {
            let text = fs::read(path);
            text.map_err(|error| fault(path, format!("cannot be read: {error}")))
        };
        let own = self.own.as_ref();
        let own = own.map(|(chain, key)| Ok((read(chain)?, read(key)?))).transpose()?;
        Ok(PemTexts { own, authority: self.authority.as_ref().map(read).transpose()? })
    }

    fn client(&self, texts: &PemTexts) -> Result<ClientConfig, TlsFault> {
        let roots = match self.authorities(texts)? {
            Some(roots) => roots,
            None => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                roots
            }
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsFault(error.to_string()))?
            .with_root_certificates(roots);
        let mut config = match self.identity(texts)? {
            Some((path, chain, key)) => {
                let builder = builder.with_client_auth_cert(chain, key);
                builder.map_err(|error| fault(path, format!("cannot be used: {error}")))?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(config)
    }

    fn server(&self, texts: &PemTexts) -> Result<ServerConfig, TlsFault> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsFault(error.to_string()))?;
        let builder = match self.authorities(texts)? {
            Some(roots) => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
                        .build()
                        .map_err(|error| TlsFault(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
            None => builder.with_no_client_auth(),
        };
        let Some((path, chain, key)) = self.identity(texts)? else {
            return Err(TlsFault("TLS needs a certificate and its private key".to_owned()));
        };
        let config = builder.with_single_cert(chain, key);
        let mut config = config.map_err(|error| fault(path, format!("cannot be used: {error}")))?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(config)
    }

    fn authorities(&self, texts: &PemTexts) -> Result<Option<RootCertStore>, TlsFault> {
        let (Some(path), Some(text)) = (&self.authority, &texts.authority) else {
            return Ok(None);
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(path, text)? {
            let added = roots.add(certificate);
            added.map_err(|error| fault(path, format!("holds a wrong certificate: {error}")))?;
        }
        Ok(Some(roots))
    }

    #[allow(clippy::type_complexity, reason = "Used at two places here")]
    fn identity(
        &self,
        texts: &PemTexts,
    ) -> Result<Option<(&Path, Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>, TlsFault>
    {
        let (Some((path, key_path)), Some((chain, key))) = (&self.own, &texts.own) else {
            return Ok(None);
        };
        // The reason could show a part of the key.
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_| fault(key_path, "must hold a private key in PEM"))?;
        Ok(Some((path, certificates(path, chain)?, key)))
    }
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// The first fault.
    pub fn open(files: TlsFiles) -> Result<Self, TlsFault> {
        let texts = files.read()?;
        let config = Arc::new(files.server(&texts)?);
        let state = RwLock::new(ServerState { texts, config, complaint: None });
        Ok(Self { files, state })
    }

    /// Uses renewed files from now on. Wrong ones are logged once, and those before stay in use.
    pub fn read_again(&self) {
        let read = self.files.read().and_then(|texts| {
            if self.state.read().unwrap_or_else(PoisonError::into_inner).texts == texts {
                return Ok(None);
            }
            let config = Arc::new(self.files.server(&texts)?);
            Ok(Some(ServerState { texts, config, complaint: None }))
        });
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(Some(renewed)) => {
                *state = renewed;
                tracing::info!("new connections get the renewed certificate");
            }
            Ok(None) => state.complaint = None,
            Err(fault) => {
                if state.complaint.as_ref() != Some(&fault) {
                    tracing::warn!("{fault}; the certificate before stays in use");
                }
                state.complaint = Some(fault);
            }
        }
    }

    /// Reads the files every second. Never returns.
    pub async fn keep_read(self: &Arc<Self>) {
        loop {
            tokio::time::sleep(EVERY).await;
            let own = Arc::clone(self);
            // A slow disk delays no call. After a panic the certificate stays as it is.
            let _ = spawn_blocking(move || own.read_again()).await;
        }
    }

    /// Makes `stream` a TLS connection.
    ///
    /// # Errors
    /// When the peer does not speak TLS, or shows no certificate that is demanded.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> io::Result<server::TlsStream<S>> {
        let config = {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(&state.config)
        };
        let stream = TlsAcceptor::from(config).accept(stream).await?;
        // A chain to the authority is proved already, if there is an authority.
        if let (Some(name), Some(_)) = (&self.files.peer, &self.files.authority) {
            let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let certificate = certificate.ok_or_else(|| io::Error::other("no certificate"))?;
            let certificate = ParsedCertificate::try_from(certificate).map_err(io::Error::other)?;
            let name = server_name(name).map_err(io::Error::other)?;
            verify_server_name(&certificate, &name).map_err(io::Error::other)?;
        }
        Ok(stream)
    }
}

impl std::fmt::Debug for PemTexts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PemTexts(..)")
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsFault> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let found = found.map_err(|error| fault(path, format!("must hold PEM: {error}")))?;
    if found.is_empty() {
        return Err(fault(path, "holds no certificate: it must be a certificate in PEM"));
    }
    Ok(found)
}

fn server_name(name: &str) -> Result<ServerName<'static>, TlsFault> {
    let found = ServerName::try_from(name.to_owned());
    found.map_err(|_| TlsFault(format!("{name:?} must be a DNS name or an IP address")))
}

fn fault(path: &Path, text: impl std::fmt::Display) -> TlsFault {
    TlsFault(format!("{} {text}", path.display()))
}
