//! Certificates made at test time, and clients that show them.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};
use serde_json::{Value, json};

use crate::{edits, yaml};

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    file: PathBuf,
}

/// The holder of a certificate.
#[derive(Debug, Clone, Default)]
pub struct Holder {
    names: Vec<String>,
    uris: Vec<String>,
    subject: Vec<(DnType, String)>,
}

/// A certificate with its key.
pub struct Certificate {
    der: CertificateDer<'static>,
    pem: String,
    key: KeyPair,
}

impl Holder {
    /// A holder with these DNS names and IP addresses.
    #[must_use]
    pub fn names(names: &[&str]) -> Self {
        Self { names: names.iter().map(|&name| name.to_owned()).collect(), ..Self::default() }
    }

    /// Adds this URI, such as `spiffe://example.org/ns/shop/sa/cart`.
    #[must_use]
    pub fn uri(mut self, uri: &str) -> Self {
        self.uris.push(uri.to_owned());
        self
    }

    /// Adds this to the subject, after what was given before.
    #[must_use]
    pub fn subject(mut self, kind: DnType, value: &str) -> Self {
        self.subject.push((kind, value.to_owned()));
        self
    }
}

impl Authority {
    /// A new one whose certificate lies in `directory` as `NAME.pem`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn new(directory: &Path, name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        let file = directory.join(format!("{name}.pem"));
        fs::write(&file, certificate.pem())?;
        Ok(Self { issuer: Issuer::new(params, key), certificate: certificate.der().clone(), file })
    }

    /// The path of its certificate.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// A certificate for this holder.
    ///
    /// # Errors
    /// When a certificate cannot hold one of the names.
    pub fn issue(&self, holder: &Holder) -> Result<Certificate> {
        let mut params = CertificateParams::new(holder.names.clone())?;
        for uri in &holder.uris {
            params.subject_alt_names.push(SanType::URI(uri.as_str().try_into()?));
        }
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in &holder.subject {
            params.distinguished_name.push(kind.clone(), value.as_str());
        }
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Certificate { der: certificate.der().clone(), pem: certificate.pem(), key })
    }

    /// A client that trusts only servers of this authority, and shows this certificate if a server
    /// requires one.
    ///
    /// # Errors
    /// When key and certificate do not belong together.
    pub fn client(&self, own: Option<&Certificate>) -> Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone())?;
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let config = match own {
            None => builder.with_no_client_auth(),
            Some(own) => builder.with_client_auth_cert(vec![own.der.clone()], own.private_key())?,
        };
        Ok(Arc::new(config))
    }

    /// A server with this certificate, whose clients need one of this authority. It speaks HTTP/2.
    ///
    /// # Errors
    /// When key and certificate do not belong together.
    pub fn server(&self, own: &Certificate) -> Result<Arc<ServerConfig>> {
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone())?;
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients.build()?)
            .with_single_cert(vec![own.der.clone()], own.private_key())?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }

    /// Makes Envoy's listener speak TLS as in `envoy/mtls.yaml`, as `localhost` with a certificate
    /// of this authority. Clients need one of it too.
    ///
    /// # Errors
    /// When no certificate can be made.
    pub fn listener(&self) -> Result<impl Fn(&mut Value) -> Result<()> + use<>> {
        let [certificate, key] =
            ["server.pem", "server.key"].map(|name| self.file.with_file_name(name));
        self.issue(&Holder::names(&["localhost", "*.shop.example"]))?.write(&certificate, &key)?;
        let snippet = edits::snippet_around("mtls.yaml")?;
        let files = [
            ("/tls_certificates/0/certificate_chain/filename", certificate),
            ("/tls_certificates/0/private_key/filename", key),
            ("/validation_context/trusted_ca/filename", self.file.clone()),
        ];
        Ok(move |config: &mut Value| {
            snippet(config)?;
            let chain = "/static_resources/listeners/0/filter_chains/0/transport_socket";
            let tls = yaml::at(config, &format!("{chain}/typed_config/common_tls_context"))?;
            files.iter().try_for_each(|(path, file)| {
                *yaml::at(tls, path)? = json!(file);
                Ok(())
            })
        })
    }
}

impl Certificate {
    fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()))
    }

    /// Writes certificate and key as PEM.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, certificate: &Path, key: &Path) -> Result<()> {
        fs::write(certificate, &self.pem)?;
        Ok(fs::write(key, self.key.serialize_pem())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        envoy::{Envoy, EnvoyOptions},
        http::{Client, Request},
        upstream::Upstream,
    };

    #[test]
    fn only_clients_of_the_authority_are_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let [authority, stranger] =
            ["authority", "stranger"].map(|name| Authority::new(directory.path(), name).unwrap());
        let upstream = Upstream::start().unwrap();
        let options = EnvoyOptions::new(upstream.port(), 1).bare();
        let envoy = Envoy::start(&options.edit(authority.listener().unwrap())).unwrap();
        let status = |own: Option<&Certificate>| -> Result<u16> {
            let mut client = Client::connect_tls(envoy.port(), &authority.client(own)?)?;
            Ok(client.send(&Request::get("/"))?.status)
        };
        let holder =
            Holder::default().uri("spiffe://example.org/cart").subject(DnType::CommonName, "cart");
        assert_eq!(status(Some(&authority.issue(&holder).unwrap())).unwrap(), 200);
        assert!(status(Some(&stranger.issue(&holder).unwrap())).is_err());
        assert!(status(None).is_err());
    }
}
