//! Where the server listens: a TCP address or a Unix socket.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixSocket, UnixStream};

use crate::tls::ServerTls;

/// Most connections that wait to be accepted; the system may allow fewer. When a store restarts,
/// the workers of all Envoys connect at once. A worker whose connection is refused retries only
/// after a second.
const BACKLOG: u32 = 4096;

/// An address to listen on: `host:port` (port 0: any free one) or `unix:/path.sock`.
///
/// `0.0.0.0`, `[::]` and a port without a host (`:9180`) are all addresses of the machine, of IPv4
/// and of IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddr {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// Why an address is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be host:port, such as 127.0.0.1:9180, or unix:/path.sock")]
pub struct ListenAddrError;

impl FromStr for ListenAddr {
    type Err = ListenAddrError;

    fn from_str(text: &str) -> Result<Self, ListenAddrError> {
        match text.strip_prefix("unix:") {
            Some("") => Err(ListenAddrError),
            Some(path) => Ok(Self::Unix(path.into())),
            None => {
                let any =
                    text.strip_prefix(':').map(|port| format!("{}:{port}", Ipv4Addr::UNSPECIFIED));
                let text = any.as_deref().unwrap_or(text);
                let mut found = text.to_socket_addrs().map_err(|_| ListenAddrError)?;
                found.next().map(Self::Tcp).ok_or(ListenAddrError)
            }
        }
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A bound address. The file of a Unix socket is removed when this is dropped.
#[derive(Debug)]
pub struct Listener {
    inner: Inner,
    address: ListenAddr,
    pub(super) tls: Option<Arc<ServerTls>>,
    pub(super) age: Option<ConnectionAge>,
}

/// How long a connection may exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionAge {
    /// The age at which it is asked to close, give or take a tenth.
    pub most: Duration,
    /// The time that it then has.
    pub grace: Duration,
}

/// From where a connection comes. [`Connections`](super::Connections) adds it to the extensions of
/// each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAddress {
    /// From this TCP address.
    Tcp(SocketAddr),
    /// Through the Unix socket.
    Unix,
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix => f.write_str("unix"),
        }
    }
}

#[derive(Debug)]
enum Inner {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Whether other processes may bind the same port.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sharing {
    Alone,
    Shared,
}

/// Binds an address. All addresses of IPv4 are those of IPv6, too, unless the machine has none.
fn bind_tcp(wanted: SocketAddr, sharing: Sharing) -> io::Result<TcpSocket> {
    if wanted.ip() == Ipv4Addr::UNSPECIFIED {
        let both = SocketAddr::from((Ipv6Addr::UNSPECIFIED, wanted.port()));
        match bind_one(both, sharing) {
            Err(error)
                if !matches!(
                    error.kind(),
                    io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied
                ) => {}
            bound => return bound,
        }
    }
    bind_one(wanted, sharing)
}

fn bind_one(address: SocketAddr, sharing: Sharing) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        SockRef::from(&socket).set_only_v6(false)?;
    }
    // Connections of an earlier process may still linger on the port.
    socket.set_reuseaddr(true)?;
    if sharing == Sharing::Shared {
        socket.set_reuseport(true)?;
    }
    socket.bind(address)?;
    Ok(socket)
}

/// An accepted connection.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Listener {
    /// Binds `address`. Replaces the file of a Unix socket if nothing listens on it.
    ///
    /// # Errors
    /// When the address is in use or not allowed.
    pub async fn bind(address: &ListenAddr) -> io::Result<Self> {
        Self::bind_for(address, Sharing::Alone).await
    }

    /// Binds `address` like [`bind`](Self::bind). Other processes of this user that share it, too,
    /// may have bound it already.
    ///
    /// # Errors
    /// When the address is in use or not allowed.
    pub async fn bind_shared(address: &ListenAddr) -> io::Result<Self> {
        Self::bind_for(address, Sharing::Shared).await
    }

    async fn bind_for(address: &ListenAddr, sharing: Sharing) -> io::Result<Self> {
        match address {
            ListenAddr::Tcp(wanted) => {
                let listener = bind_tcp(*wanted, sharing)?.listen(BACKLOG)?;
                let port = listener.local_addr()?.port();
                let address = ListenAddr::Tcp(SocketAddr::new(wanted.ip(), port));
                Ok(Self { inner: Inner::Tcp(listener), address, tls: None, age: None })
            }
            ListenAddr::Unix(path) => {
                let stale = std::fs::symlink_metadata(path)
                    .is_ok_and(|file| file.file_type().is_socket())
                    && UnixStream::connect(path)
                        .await
                        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
                if stale {
                    std::fs::remove_file(path)?;
                }
                let socket = UnixSocket::new_stream()?;
                socket.bind(path)?;
                let listener = socket.listen(BACKLOG)?;
                let (inner, address) = (Inner::Unix(listener), address.clone());
                Ok(Self { inner, address, tls: None, age: None })
            }
        }
    }

    /// Speaks TLS on all connections, if this is given.
    #[must_use]
    pub fn tls(mut self, tls: Option<ServerTls>) -> Self {
        self.tls = tls.map(Arc::new);
        self
    }

    /// Closes connections at this age, if one is given.
    #[must_use]
    pub const fn age(mut self, age: Option<ConnectionAge>) -> Self {
        self.age = age;
        self
    }

    /// The bound address, with the port that the system chose.
    pub const fn address(&self) -> &ListenAddr {
        &self.address
    }

    /// Waits for a connection. Returns it, and who made it.
    ///
    /// # Errors
    /// Why accepting failed: because of that connection, or of the process (too many open files).
    pub async fn accept(&self) -> io::Result<(Box<dyn Stream>, PeerAddress)> {
        match &self.inner {
            Inner::Tcp(listener) => {
                let (stream, mut address) = listener.accept().await?;
                stream.set_nodelay(true)?;
                // On a socket for both families, callers by IPv4 have addresses of IPv6.
                address.set_ip(address.ip().to_canonical());
                Ok((Box::new(stream), PeerAddress::Tcp(address)))
            }
            Inner::Unix(listener) => Ok((Box::new(listener.accept().await?.0), PeerAddress::Unix)),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let ListenAddr::Unix(path) = &self.address
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::debug!("cannot remove {}: {error}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for (text, shown) in [
            ("127.0.0.1:9180", "http://127.0.0.1:9180"),
            ("[::1]:0", "http://[::1]:0"),
            (":9180", "http://0.0.0.0:9180"),
            ("unix:/run/q.sock", "unix:/run/q.sock"),
        ] {
            assert_eq!(text.parse::<ListenAddr>().unwrap().to_string(), shown);
        }
        for bad in ["", ":", "unix:", "9180", "127.0.0.1", "127.0.0.1:port", "/run/q.sock"] {
            assert!(bad.parse::<ListenAddr>().is_err(), "{bad:?}");
        }
    }

    async fn is_reached_at(listener: &Listener, host: &str) -> bool {
        let ListenAddr::Tcp(address) = listener.address() else { panic!() };
        let connected = TcpStream::connect((host, address.port())).await;
        let Ok(_client) = connected else { return false };
        let (_, peer) = listener.accept().await.unwrap();
        let PeerAddress::Tcp(peer) = peer else { panic!("{peer}") };
        assert_eq!(peer.ip().to_string(), host);
        true
    }

    #[tokio::test]
    async fn all_addresses_are_those_of_both_families() {
        for (text, hosts) in [
            ("0.0.0.0:0", &["127.0.0.1", "::1"][..]),
            ("[::]:0", &["127.0.0.1", "::1"]),
            (":0", &["127.0.0.1", "::1"]),
            ("127.0.0.1:0", &["127.0.0.1"]),
            ("[::1]:0", &["::1"]),
        ] {
            let listener = Listener::bind(&text.parse().unwrap()).await.unwrap();
            for host in ["127.0.0.1", "::1"] {
                let reached = is_reached_at(&listener, host).await;
                assert_eq!(reached, hosts.contains(&host), "{text} at {host}");
            }
        }
    }

    #[tokio::test]
    async fn only_shared_ports_are_bound_twice() {
        let shared = Listener::bind_shared(&":0".parse().unwrap()).await.unwrap();
        Listener::bind_shared(shared.address()).await.unwrap();
        let alone = Listener::bind(&":0".parse().unwrap()).await.unwrap();
        for error in [
            Listener::bind(shared.address()).await.unwrap_err(),
            Listener::bind(alone.address()).await.unwrap_err(),
            Listener::bind_shared(alone.address()).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        }
    }
}
