//! `--store`: where counters are kept.
//!
//! With TLS (`rediss` in front) a server's certificate must be good for the name that the URL, the sentinels or
//! the cluster call it by, and come from an authority that the system trusts. To trust a private one, name the
//! PEM file of its certificate in `SSL_CERT_FILE` (or a directory in `SSL_CERT_DIR`): what is named there is
//! trusted in place of the system's authorities, and read again at each connection.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError};

/// A parsed store URL. Shown without credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// `memory:`
    Memory,
    /// `redis://`, `rediss://`
    Redis(Login, HostPort),
    /// `redis+unix://`: the path of the socket of a server on this machine.
    Socket(Login, PathBuf),
    /// `redis-cluster://`, `rediss-cluster://`: some of its nodes.
    Cluster(Login, Vec<HostPort>),
    /// `redis-sentinel://`, `rediss-sentinel://`: sentinels, and the name of the primary.
    Sentinel(Login, Vec<HostPort>, String),
}

/// How to speak to a Redis server.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    tls: bool,
    /// `user:password`, percent-encoded, or nothing.
    credentials: String,
    database: u32,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// A name or an address; IPv6 without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

/// Why a store URL is refused. Never shows the URL, which may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store URL {0}")]
pub struct UrlError(String);

impl Login {
    /// The URL of the server at `address`, credentials included: never to be shown.
    pub fn url(&self, address: &HostPort) -> String {
        let at = if self.credentials.is_empty() { "" } else { "@" };
        format!("{}://{}{at}{address}/{}", self.scheme(), self.credentials, self.database)
    }

    /// The name of the user in Redis.
    pub fn user(&self) -> String {
        let named = self.through(Path::new("/")).ok();
        let named = named.and_then(|info| info.redis_settings().username().map(str::to_owned));
        named.filter(|user| !user.is_empty()).unwrap_or_else(|| "default".to_owned())
    }

    /// The URL of a sentinel that asks for no password.
    pub fn anonymous_url(&self, address: &HostPort) -> String {
        format!("{}://{address}/0", self.scheme())
    }

    /// The URL of a sentinel that asks for the password of the servers.
    pub fn sentinel_url(&self, address: &HostPort) -> String {
        Self { database: 0, ..self.clone() }.url(address)
    }

    /// How to connect to the server whose socket is at `path`.
    ///
    /// # Errors
    /// None for a login that was parsed.
    pub fn through(&self, path: &Path) -> Result<ConnectionInfo, RedisError> {
        let nowhere = HostPort { host: "localhost".to_owned(), port: 6379 };
        Ok(self.url(&nowhere).into_connection_info()?.set_addr(ConnectionAddr::Unix(path.to_owned())))
    }

    fn holds_password(&self) -> bool {
        self.credentials.split_once(':').is_some_and(|(_, password)| !password.is_empty())
    }

    const fn scheme(&self) -> &'static str {
        if self.tls { "rediss" } else { "redis" }
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

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl HostPort {
    /// Reads `host:port`, `[v6]:port`, or a host alone where there is a `default` port.
    pub fn parse(text: &str, default: Option<u16>) -> Option<Self> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port.parse().ok()?)),
            _ => (text, None),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._:%".contains(&b);
        (!host.is_empty() && host.bytes().all(plain)).then_some(())?;
        Some(Self { host: host.to_owned(), port: port.or(default)? })
    }
}

impl StoreUrl {
    /// The same with a password that stands elsewhere, such as in a file.
    ///
    /// # Errors
    /// Where there is nobody to show it to, or the URL holds one itself.
    pub fn with_password(mut self, password: &str) -> Result<Self, UrlError> {
        let login = self.login().ok_or_else(|| UrlError("memory: takes no password".to_owned()))?;
        if login.holds_password() {
            return Err(UrlError("holds a password already: give it in one place".to_owned()));
        }
        let encoded: String = password.bytes().map(|byte| format!("%{byte:02X}")).collect();
        login.credentials = format!("{}:{encoded}", login.credentials.trim_end_matches(':'));
        Ok(self)
    }

    /// Whether the URL itself holds a password.
    pub fn holds_password(&self) -> bool {
        self.clone().login().is_some_and(|login| login.holds_password())
    }

    const fn login(&mut self) -> Option<&mut Login> {
        match self {
            Self::Memory => None,
            Self::Redis(login, _)
            | Self::Socket(login, _)
            | Self::Cluster(login, _)
            | Self::Sentinel(login, ..) => Some(login),
        }
    }
}

impl FromStr for StoreUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let wrong = |what: &str| UrlError(what.to_owned());
        if text == "memory:" {
            return Ok(Self::Memory);
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong(KNOWN))?;
        let (tls, kind) = match scheme.strip_prefix("rediss") {
            Some(kind) => (true, kind),
            None => (false, scheme.strip_prefix("redis").ok_or_else(|| wrong(KNOWN))?),
        };
        // A password may hold a `/` by mistake: what stands before the last `@` is credentials. The path of a
        // socket may hold an `@`.
        let at = match kind {
            "+unix" if rest.starts_with('/') => None,
            "+unix" => rest.find("@/"),
            _ => rest.rfind('@'),
        };
        let split = at.and_then(|at| Some((rest.get(..at)?, rest.get(at + 1..)?)));
        let (credentials, rest) = split.unwrap_or(("", rest));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let hosts = |default| -> Result<Vec<HostPort>, UrlError> {
            let parsed = hosts.split(',').map(|host| HostPort::parse(host, Some(default)));
            parsed.collect::<Option<_>>().ok_or_else(|| wrong("names no host, or one that is not host:port"))
        };
        let login = |database: &str| -> Result<Login, UrlError> {
            let database = if database.is_empty() { Ok(0) } else { database.parse() };
            let database =
                database.map_err(|_| wrong("must end with the number of a database, or nothing"))?;
            let login = Login { tls, credentials: credentials.to_owned(), database };
            login
                .through(Path::new("/"))
                .map_err(|_| wrong("holds credentials that are not percent-encoded user:password"))?;
            Ok(login)
        };
        match kind {
            "" => match hosts(6379)?.as_slice() {
                [one] => Ok(Self::Redis(login(path)?, one.clone())),
                _ => Err(wrong("of redis:// takes one host; redis-cluster:// takes several")),
            },
            "+unix" if !tls && rest.starts_with('/') => {
                let (path, query) = rest.split_once('?').unwrap_or((rest, "db="));
                let database = query.strip_prefix("db=").filter(|_| path.len() > 1).ok_or_else(|| {
                    wrong("of a socket must be redis+unix:///path.sock, with ?db= and a number for another database")
                })?;
                Ok(Self::Socket(login(database)?, path.into()))
            }
            "-cluster" if path.is_empty() || path == "0" => Ok(Self::Cluster(login("")?, hosts(6379)?)),
            "-cluster" => Err(wrong("of a cluster takes no database: Redis Cluster has only database 0")),
            "-sentinel" => {
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                if name.is_empty() {
                    return Err(wrong("of sentinels must end with the name of the primary, as in /mymaster"));
                }
                Ok(Self::Sentinel(login(database)?, hosts(26379)?, name.to_owned()))
            }
            _ => Err(wrong(KNOWN)),
        }
    }
}

const KNOWN: &str = "must begin with memory:, redis://, rediss://, redis+unix:///, redis-cluster://, rediss-cluster://, \
                     redis-sentinel:// or rediss-sentinel://";

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |hosts: &[HostPort]| hosts.iter().map(HostPort::to_string).collect::<Vec<_>>().join(",");
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Redis(login, host) => write!(f, "{}://{host}/{}", login.scheme(), login.database),
            Self::Socket(login, path) => write!(f, "redis+unix://{}?db={}", path.display(), login.database),
            Self::Cluster(login, hosts) => write!(f, "{}-cluster://{}", login.scheme(), list(hosts)),
            Self::Sentinel(login, hosts, name) => {
                write!(f, "{}-sentinel://{}/{name}", login.scheme(), list(hosts))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_shown_without_its_credentials() {
        for (text, shown) in [
            ("memory:", "memory:"),
            ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
            ("redis://u:s3cret@redis.example/2", "redis://redis.example:6379/2"),
            ("rediss://:s3cret@[::1]:7000", "rediss://[::1]:7000/0"),
            ("redis+unix:///run/redis.sock", "redis+unix:///run/redis.sock?db=0"),
            ("redis+unix://u:s3cret@/run/a@b.sock?db=2", "redis+unix:///run/a@b.sock?db=2"),
            ("redis-cluster://a:1,b:2", "redis-cluster://a:1,b:2"),
            ("rediss-cluster://u:s3cret@a:1,b", "rediss-cluster://a:1,b:6379"),
            ("redis-sentinel://s1,s2:5/mymaster", "redis-sentinel://s1:26379,s2:5/mymaster"),
        ] {
            let url: StoreUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert!(!format!("{url:?}").contains("s3cret"), "{url:?}");
        }
    }

    #[test]
    fn a_password_may_stand_elsewhere() {
        let odd = "p%:@/ \u{e9}";
        for (text, name) in [
            ("redis://h", None),
            ("redis://shop@h", Some("shop")),
            ("rediss://shop:@h/2", Some("shop")),
            ("redis+unix://shop@/redis.sock", Some("shop")),
            ("redis-cluster://a,b", None),
            ("redis-sentinel://shop@s1,s2/mymaster", Some("shop")),
        ] {
            let url: StoreUrl = text.parse().unwrap();
            assert!(!url.holds_password(), "{text}");
            let url = url.with_password(odd).unwrap();
            assert!(url.holds_password(), "{text}");
            let info = url.clone().login().unwrap().through(Path::new("/")).unwrap();
            assert_eq!(info.redis_settings().password(), Some(odd), "{text}");
            assert_eq!(info.redis_settings().username(), name, "{text}");
            assert!(!url.to_string().contains("p%"), "{url}");
        }
        for text in ["memory:", "redis://u:s3cret@h", "redis-cluster://:s3cret@a"] {
            let error = text.parse::<StoreUrl>().unwrap().with_password("other").unwrap_err();
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        for text in [
            "",
            "memory",
            "http://u:s3cret@x",
            "redis://",
            "redis://u:s3cret@a,b",
            "redis://u:s3cret@a:port",
            "redis://u:s3cret@a/db",
            "redis+unix://u:s3cret@a/redis.sock",
            "redis+unix://u:s3cret@/",
            "redis+unix://u:s3cret@/redis.sock?db=x",
            "redis+unix://u:s3cret@/redis.sock?other=1",
            "rediss+unix://u:s3cret@/redis.sock",
            "redis-cluster://u:s3cret@a/3",
            "redis-sentinel://u:s3cret@a",
            "redis-other://u:s3cret@a",
        ] {
            let error = text.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(!error.contains("s3cret") && error.len() > 20, "{error}");
        }
    }
}
