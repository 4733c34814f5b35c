//! How a connection to the right Redis server is made: by its address, or through Sentinel.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, RedisError, Value, cmd};

use crate::login::{Login, Peer};
use crate::url::HostPort;

/// The longest that one connection may take to be made.
pub const DIAL: Duration = Duration::from_secs(1);
/// The longest that it may take where sentinels are asked first.
const DIAL_THROUGH_SENTINEL: Duration = Duration::from_secs(2);
/// The longest that one sentinel may take to connect, and to answer: the next one is asked then.
const SENTINEL: Duration = Duration::from_millis(300);

/// A server to connect to.
#[derive(Clone, Debug)]
pub enum Target {
    /// The server of this address.
    Fixed(Login, HostPort),
    /// The server whose Unix socket is at this path.
    Socket(Login, PathBuf),
    /// The primary that these sentinels name.
    Sentinel {
        /// How to log in to the primary and to sentinels.
        login: Login,
        /// Where the sentinels listen.
        sentinels: Vec<HostPort>,
        /// The name of the primary.
        name: String,
    },
}

impl Target {
    /// The address, where it is always the same.
    pub const fn address(&self) -> Option<&HostPort> {
        match self {
            Self::Fixed(_, address) => Some(address),
            Self::Socket(..) | Self::Sentinel { .. } => None,
        }
    }

    /// The longest that connecting may take, name resolution and log-in included.
    pub const fn patience(&self) -> Duration {
        match self {
            Self::Fixed(..) | Self::Socket(..) => DIAL,
            Self::Sentinel { .. } => DIAL_THROUGH_SENTINEL,
        }
    }

    /// Connects, and makes sure that the server named by sentinels is a primary.
    ///
    /// # Errors
    /// What kept it from connecting, without credentials.
    pub async fn dial(&self, config: &AsyncConnectionConfig) -> Result<MultiplexedConnection, RedisError> {
        match self {
            Self::Fixed(login, address) => login.connect(address, Peer::Server, config).await,
            Self::Socket(login, path) => login.connect_unix(path, config).await,
            Self::Sentinel { login, sentinels, name } => {
                let mut last = RedisError::from((ErrorKind::EmptySentinelList, "no sentinel"));
                for sentinel in sentinels {
                    match through(sentinel, login, name, config).await {
                        Ok(connection) => return Ok(connection),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }
}

async fn through(
    sentinel: &HostPort,
    login: &Login,
    name: &str,
    config: &AsyncConnectionConfig,
) -> Result<MultiplexedConnection, RedisError> {
    let mut ask = cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let brief = config.clone().set_connection_timeout(Some(SENTINEL)).set_response_timeout(Some(SENTINEL));
    let connected = login.connect(sentinel, Peer::Sentinel, &brief).await;
    let asked = match connected {
        Ok(mut connection) => ask.query_async(&mut connection).await,
        Err(error) => Err(error),
    };
    let answer: Option<(String, u16)> = match asked {
        Ok(answer) => answer,
        // Credentials of its own were shown already: those of the servers are none of its business.
        Err(error) if error.code() == Some("NOAUTH") && login.sentinel.is_none() => {
            ask.query_async(&mut login.connect(sentinel, Peer::GuardedSentinel, &brief).await?).await?
        }
        Err(error) => return Err(error),
    };
    let Some((host, port)) = answer else {
        let detail = format!("{name}, asked {sentinel}");
        return Err((ErrorKind::MasterNameNotFoundBySentinel, "unknown primary", detail).into());
    };
    let primary = HostPort { host, port };
    let mut connection = login.connect(&primary, Peer::Server, config).await?;
    let role: Vec<Value> = cmd("ROLE").query_async(&mut connection).await?;
    if matches!(role.first(), Some(Value::BulkString(role)) if role == b"master") {
        Ok(connection)
    } else {
        Err((ErrorKind::Client, "not a primary", primary.to_string()).into())
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(_, address) => write!(f, "redis at {address}"),
            Self::Socket(_, path) => write!(f, "redis at unix:{}", path.display()),
            Self::Sentinel { name, .. } => write!(f, "redis primary {name}"),
        }
    }
}
