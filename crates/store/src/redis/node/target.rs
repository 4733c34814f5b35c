//! Which server a node connects to.

use std::fmt;
use std::path::PathBuf;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, RedisError};

use super::patience::Patience;
use super::sentinel;
use crate::address::HostPort;
use crate::login::{Login, Peer};

/// A server to connect to.
#[derive(Clone, Debug)]
pub enum Target {
    /// The server at this address.
    Address(Login, HostPort),
    /// The node of a Redis Cluster at this address.
    ClusterNode(Login, HostPort),
    /// The server with a Unix socket at this path.
    Socket(Login, PathBuf),
    /// The primary that sentinels name.
    Sentinel {
        /// How to log in to the primary and to the sentinels.
        login: Login,
        /// Where the sentinels listen.
        sentinels: Vec<HostPort>,
        /// The name of the primary.
        name: String,
    },
}

/// How a server is found, and what it is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// It stands alone.
    Single,
    /// Sentinels name it.
    Sentinel,
    /// It is a node of a Redis Cluster.
    Cluster,
}

impl Target {
    /// The address, unless it may change.
    pub const fn address(&self) -> Option<&HostPort> {
        match self {
            Self::Address(_, address) | Self::ClusterNode(_, address) => Some(address),
            Self::Socket(..) | Self::Sentinel { .. } => None,
        }
    }

    /// The name of the store's user in Redis.
    pub fn user(&self) -> String {
        match self {
            Self::Address(login, _) | Self::ClusterNode(login, _) | Self::Socket(login, _) => {
                login.user()
            }
            Self::Sentinel { login, .. } => login.user(),
        }
    }

    /// How the server is found.
    pub const fn topology(&self) -> Topology {
        match self {
            Self::Address(..) | Self::Socket(..) => Topology::Single,
            Self::ClusterNode(..) => Topology::Cluster,
            Self::Sentinel { .. } => Topology::Sentinel,
        }
    }

    /// The servers that it may be now, and how many sentinels name each. The one that most
    /// sentinels name comes first.
    ///
    /// # Errors
    /// When no sentinel names one.
    pub async fn candidates(&self, patience: &Patience) -> Result<Vec<(Self, usize)>, String> {
        let Self::Sentinel { login, sentinels, name } = self else {
            return Ok(vec![(self.clone(), 1)]);
        };
        let primaries = sentinel::primaries(sentinels, login, name, patience).await?;
        let server = |(address, votes)| (Self::Address(login.clone(), address), votes);
        Ok(primaries.into_iter().map(server).collect())
    }

    /// Connects to a server that is not behind sentinels.
    ///
    /// # Errors
    /// Why it cannot connect, without credentials.
    pub async fn connect(
        &self,
        config: &AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, RedisError> {
        match self {
            Self::Address(login, address) | Self::ClusterNode(login, address) => {
                login.connect(address, Peer::Server, config).await
            }
            Self::Socket(login, path) => login.connect_unix(path, config).await,
            Self::Sentinel { .. } => {
                Err((ErrorKind::Client, "ask the sentinels for a server first").into())
            }
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(_, address) | Self::ClusterNode(_, address) => {
                write!(f, "redis at {address}")
            }
            Self::Socket(_, path) => write!(f, "redis at unix:{}", path.display()),
            Self::Sentinel { name, .. } => write!(f, "redis primary {name}"),
        }
    }
}
