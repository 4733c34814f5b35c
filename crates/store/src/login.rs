//! How the store logs in to Redis and to its sentinels.
//!
//! Files are read for each connection, so that a new password or certificate is in use with the
//! next connection. Open connections stay as they are.

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::FutureExt;
use percent_encoding::percent_decode_str;
use redis::aio::MultiplexedConnection;
use redis::io::AsyncDNSResolver;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, RedisError, RedisFuture, TlsCertificates,
};
use tokio::net::lookup_host;
use tokio::task::spawn_blocking;

use crate::address::HostPort;
use crate::secret::PasswordFile;

/// How to connect and log in to the servers of a store URL.
#[derive(Clone, Default)]
pub struct Login {
    /// Whether to use TLS.
    pub tls: bool,
    /// The store's user and password.
    pub credentials: Credentials,
    /// The user and password for sentinels. Without them the store does not log in there, except
    /// with `credentials` to a sentinel that asks for a password.
    pub sentinel: Option<Credentials>,
    /// The certificate for servers that ask for one.
    pub certificate: Option<ClientCertificate>,
    /// The file with the authorities of servers, in PEM, instead of those that the system trusts.
    pub authority: Option<PathBuf>,
    /// The name for which the certificates of servers must be valid, instead of their address.
    pub server_name: Option<String>,
    /// The number of the database.
    pub database: u32,
}

/// A user and a password.
#[derive(Clone, Default)]
pub struct Credentials {
    /// The user. Without one, Redis checks the password of the user `default`.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Password>,
}

/// A text is not percent-encoded `user:password`.
#[derive(Debug, thiserror::Error)]
#[error("not percent-encoded user:password")]
pub struct NotCredentials;

/// A password, or the file that holds it.
#[derive(Clone)]
pub enum Password {
    /// The password itself.
    Text(String),
    /// The file that holds it.
    File(Arc<PasswordFile>),
}

/// The files of a client certificate.
#[derive(Clone, Debug)]
pub struct ClientCertificate {
    /// The certificate and the certificates up to its authority, in PEM.
    pub chain: PathBuf,
    /// Its private key, in PEM.
    pub key: PathBuf,
}

/// Which credentials a server gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A server with counters: its own.
    Server,
    /// A sentinel: those for sentinels, if there are any.
    Sentinel,
    /// A sentinel that asks for a password: those of the servers.
    GuardedSentinel,
}

impl Login {
    /// The name of the user in Redis.
    pub fn user(&self) -> String {
        self.credentials
            .user
            .clone()
            .filter(|user| !user.is_empty())
            .unwrap_or_else(|| "default".to_owned())
    }

    /// Reads the files of the client certificate and of the authorities.
    ///
    /// # Errors
    /// The first file that cannot be read, and why.
    pub fn certificates(&self) -> Result<TlsCertificates, String> {
        let read = |path: &PathBuf| {
            fs::read(path)
                .map_err(|error: io::Error| format!("{} cannot be read: {error}", path.display()))
        };
        let client_tls = self.certificate.as_ref().map(|ClientCertificate { chain, key }| {
            Ok::<_, String>(ClientTlsConfig { client_cert: read(chain)?, client_key: read(key)? })
        });
        let client_tls = client_tls.transpose()?;
        Ok(TlsCertificates {
            client_tls,
            root_cert: self.authority.as_ref().map(read).transpose()?,
        })
    }

    /// Connects to the server at `address`.
    ///
    /// # Errors
    /// Why it cannot connect, without credentials.
    pub async fn connect(
        &self,
        address: &HostPort,
        peer: Peer,
        config: &AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, RedisError> {
        let scheme = if self.tls { "rediss" } else { "redis" };
        let database = if peer == Peer::Server { self.database } else { 0 };
        let host = self.server_name.as_ref().unwrap_or(&address.host).clone();
        let named = HostPort { host, port: address.port };
        let to = format!("{scheme}://{named}/{database}").into_connection_info()?;
        let credentials = match peer {
            Peer::Server | Peer::GuardedSentinel => Some(&self.credentials),
            Peer::Sentinel => self.sentinel.as_ref(),
        };
        match &self.server_name {
            Some(_) => {
                self.open(to, credentials, &config.clone().set_dns_resolver(At(address.clone())))
                    .await
            }
            None => self.open(to, credentials, config).await,
        }
    }

    /// Connects to the server with a Unix socket at `path`.
    ///
    /// # Errors
    /// Why it cannot connect, without credentials.
    pub async fn connect_unix(
        &self,
        path: &Path,
        config: &AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, RedisError> {
        let to = format!("redis://localhost/{}", self.database).into_connection_info()?;
        let to = to.set_addr(ConnectionAddr::Unix(path.to_owned()));
        self.open(to, Some(&self.credentials), config).await
    }

    async fn open(
        &self,
        to: ConnectionInfo,
        credentials: Option<&Credentials>,
        config: &AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, RedisError> {
        // A user with few rights may not name its library.
        let mut settings = to.redis_settings().clone().set_skip_set_lib_name();
        if let Some(Credentials { user, password }) = credentials {
            if let Some(user) = user {
                settings = settings.set_username(user);
            }
            if let Some(password) = password {
                settings = settings.set_password(password.read().await?);
            }
        }
        // Small commands leave at once, without waiting for the answer to the one before.
        let at_once = TcpSettings::default().set_nodelay(true);
        let to = to.set_tcp_settings(at_once).set_redis_settings(settings);
        let client = if self.certificate.is_some() || self.authority.is_some() {
            let own = self.clone();
            Client::build_with_tls(to, blocking(move || own.certificates()).await?)?
        } else {
            Client::open(to)?
        };
        client.get_multiplexed_async_connection_with_config(config).await
    }
}

impl Credentials {
    /// Reads `user:password`, percent-encoded.
    ///
    /// # Errors
    /// When it is something else. The error never shows the text.
    pub fn parse(text: &str) -> Result<Self, NotCredentials> {
        // These end the credentials of a URL. A password that contains one must be percent-encoded.
        if text.contains(['/', '?', '#']) {
            return Err(NotCredentials);
        }
        let (user, password) = text.split_once(':').unwrap_or((text, ""));
        let decode = |text: &str| match percent_decode_str(text).decode_utf8() {
            Ok(text) => Ok((!text.is_empty()).then(|| text.into_owned())),
            Err(_) => Err(NotCredentials),
        };
        Ok(Self { user: decode(user)?, password: decode(password)?.map(Password::Text) })
    }
}

impl Password {
    async fn read(&self) -> Result<String, RedisError> {
        match self {
            Self::Text(password) => Ok(password.clone()),
            Self::File(file) => {
                let file = Arc::clone(file);
                blocking(move || {
                    file.read()
                        .map(|password| password.0.clone())
                        .map_err(|error| error.to_string())
                })
                .await
            }
        }
    }
}

/// Reads files on a thread where a slow disk delays no call.
async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, RedisError> {
    let wrong = |detail: String| {
        RedisError::from((ErrorKind::InvalidClientConfig, "cannot log in", detail))
    };
    let read = spawn_blocking(read).await.map_err(|error| wrong(error.to_string()))?;
    read.map_err(wrong)
}

/// Resolves every name to this address, so that a certificate can be checked for another name.
struct At(HostPort);

impl AsyncDNSResolver for At {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        _name: &'b str,
        _port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        async move {
            let found: Vec<_> = lookup_host((self.0.host.as_str(), self.0.port)).await?.collect();
            Ok(Box::new(found.into_iter()) as Box<dyn Iterator<Item = SocketAddr> + Send>)
        }
        .boxed()
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("tls", &self.tls)
            .field("database", &self.database)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_percent_encoded() {
        let read = |text: &str| {
            let Credentials { user, password } = Credentials::parse(text).unwrap();
            let password = password.map(|password| match password {
                Password::Text(text) => text,
                Password::File(_) => unreachable!(),
            });
            (user, password)
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(read(""), (None, None));
        assert_eq!(read("shop"), (text("shop"), None));
        assert_eq!(read("shop:"), (text("shop"), None));
        assert_eq!(read(":p%25%3A%40%2F"), (None, text("p%:@/")));
        assert_eq!(read("shop:s3cret"), (text("shop"), text("s3cret")));
        for wrong in ["u:s3c/ret", "u:s3c?ret", "u:s3c#ret", "h/0?client_cert=/run/s3c"] {
            let error = Credentials::parse(wrong).err().unwrap().to_string();
            assert!(!error.contains("s3c"), "{error}");
        }
    }
}
