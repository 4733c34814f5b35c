//! How a connection to the right Redis server is made: by its address, or through Sentinel.

use std::cmp::Reverse;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, RedisError, cmd};

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

    /// Whom the store logs in as.
    pub fn user(&self) -> String {
        match self {
            Self::Fixed(login, _) | Self::Socket(login, _) | Self::Sentinel { login, .. } => login.user(),
        }
    }

    /// Whether sentinels say where the server is.
    pub const fn is_found_by_sentinels(&self) -> bool {
        matches!(self, Self::Sentinel { .. })
    }

    /// The servers that it may be now, and how many sentinels name each: the most often named comes first.
    ///
    /// # Errors
    /// When no sentinel names one.
    pub async fn candidates(&self, config: &AsyncConnectionConfig) -> Result<Vec<(Self, usize)>, RedisError> {
        let Self::Sentinel { login, sentinels, name } = self else { return Ok(vec![(self.clone(), 1)]) };
        let ask = async |at: usize, sentinel| (at, primary(sentinel, login, name, config).await);
        let mut answers: FuturesUnordered<_> =
            sentinels.iter().enumerate().map(|(at, sentinel)| ask(at, sentinel)).collect();
        let mut last = RedisError::from((ErrorKind::EmptySentinelList, "no sentinel"));
        // A server, how many sentinels name it, and the position of the first of them.
        let mut candidates: Vec<(Self, usize, usize)> = Vec::new();
        while let Some((at, answer)) = answers.next().await {
            let found = match answer {
                Ok(address) => Self::Fixed(login.clone(), address),
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            match candidates.iter_mut().find(|(known, ..)| known.address() == found.address()) {
                Some((_, named, first)) => (*named, *first) = (*named + 1, at.min(*first)),
                None => candidates.push((found, 1, at)),
            }
            // Nobody waits for sentinels that are gone where the others agree.
            if candidates.iter().any(|(_, named, _)| *named > sentinels.len() / 2) {
                break;
            }
        }
        candidates.sort_by_key(|(_, named, first)| (Reverse(*named), *first));
        let candidates: Vec<_> = candidates.into_iter().map(|(found, named, _)| (found, named)).collect();
        if candidates.is_empty() { Err(last) } else { Ok(candidates) }
    }

    /// Connects to a server that is no matter of sentinels.
    ///
    /// # Errors
    /// What kept it from connecting, without credentials.
    pub async fn dial(&self, config: &AsyncConnectionConfig) -> Result<MultiplexedConnection, RedisError> {
        match self {
            Self::Fixed(login, address) => login.connect(address, Peer::Server, config).await,
            Self::Socket(login, path) => login.connect_unix(path, config).await,
            Self::Sentinel { .. } => Err((ErrorKind::Client, "sentinels are asked first").into()),
        }
    }
}

/// The primary that a sentinel names.
async fn primary(
    sentinel: &HostPort,
    login: &Login,
    name: &str,
    config: &AsyncConnectionConfig,
) -> Result<HostPort, RedisError> {
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
    Ok(HostPort { host, port })
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
