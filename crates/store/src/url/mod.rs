//! The store URL of `--store`: where counters are kept.
//!
//! Parameters follow a `?`. Secrets are in files that the parameters name.
//!
//! With TLS (`rediss`) the certificate of a server must be valid for the name that the URL, the
//! sentinels or the cluster call the server by, or for the parameter `server_name`. The system must
//! trust the certificate's authority. To trust a private authority instead, name the PEM file of
//! its certificate in the parameter `ca_cert` or in `SSL_CERT_FILE`, or a directory in
//! `SSL_CERT_DIR`. All are read again for each connection.

mod error;
mod parameters;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

pub use self::error::UrlError;
use self::parameters::Parameters;
use crate::address::HostPort;
use crate::login::{Credentials, Login, Password};
use crate::secret::PasswordFile;

/// A parsed store URL. Shown without credentials.
#[derive(Clone, Debug)]
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

impl StoreUrl {
    /// Adds the password in `file`, which is read for each connection.
    ///
    /// # Errors
    /// When the URL holds a password itself, or takes none.
    pub fn with_password_file(mut self, file: PasswordFile) -> Result<Self, UrlError> {
        if self.holds_password() {
            return Err(UrlError("holds a password already: give it in one place".to_owned()));
        }
        let login =
            self.login_mut().ok_or_else(|| UrlError("memory: takes no password".to_owned()))?;
        login.credentials.password = Some(Password::File(Arc::new(file)));
        Ok(self)
    }

    /// Logs in to sentinels with this user and password. Other URLs stay as they are.
    #[must_use]
    pub fn with_sentinel_login(mut self, user: Option<&str>, password: &str) -> Self {
        if let Self::Sentinel(login, ..) = &mut self {
            let password = Some(Password::Text(password.to_owned()));
            login.sentinel = Some(Credentials { user: user.map(str::to_owned), password });
        }
        self
    }

    /// Whether the URL itself holds a password.
    pub fn holds_password(&self) -> bool {
        self.login()
            .is_some_and(|login| matches!(login.credentials.password, Some(Password::Text(_))))
    }

    /// Reads the files that its parameters name, so that a fault in one shows before the first
    /// connection.
    ///
    /// # Errors
    /// The first file that cannot be used, and why.
    pub fn read_files(&self) -> Result<(), UrlError> {
        let Some(login) = self.login() else { return Ok(()) };
        if let Some(Credentials { password: Some(Password::File(file)), .. }) = &login.sentinel {
            file.read().map_err(|error| {
                UrlError(format!("names a sentinel_password_file that cannot be used: {error}"))
            })?;
        }
        login.certificates().map_err(|error| {
            UrlError(format!("names a certificate that cannot be used: {error}"))
        })?;
        Ok(())
    }

    const fn login(&self) -> Option<&Login> {
        match self {
            Self::Memory => None,
            Self::Redis(login, _)
            | Self::Socket(login, _)
            | Self::Cluster(login, _)
            | Self::Sentinel(login, ..) => Some(login),
        }
    }

    const fn login_mut(&mut self) -> Option<&mut Login> {
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
        // A Secret that was made from a file ends with a line break.
        let text = text.trim_ascii();
        if text == "memory:" {
            return Ok(Self::Memory);
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| UrlError::new(KNOWN))?;
        let (tls, kind) = match scheme.strip_prefix("rediss") {
            Some(kind) => (true, kind),
            None => (false, scheme.strip_prefix("redis").ok_or_else(|| UrlError::new(KNOWN))?),
        };
        // Everything before the last `@` is credentials, even if a password contains a `/` by
        // mistake. The path of a socket may contain an `@`.
        let at = match kind {
            "+unix" if rest.starts_with('/') => None,
            "+unix" => rest.find("@/"),
            _ => rest.rfind('@'),
        };
        let split = at.and_then(|at| Some((rest.get(..at)?, rest.get(at + 1..)?)));
        let (credentials, rest) = split.unwrap_or(("", rest));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let parameters = Parameters::parse(query, scheme, kind, tls)?;
        let credentials = Credentials::parse(credentials).map_err(|_| {
            UrlError::new("holds credentials that are not percent-encoded user:password (in a parameter, write @ as %40)")
        })?;
        let login = |database: &str| -> Result<Login, UrlError> {
            let database = if database.is_empty() { Ok(0) } else { database.parse() };
            let database = database
                .map_err(|_| UrlError::new("must end with the number of a database, or nothing"))?;
            Ok(Login {
                tls,
                credentials: credentials.clone(),
                sentinel: parameters.sentinel()?,
                certificate: parameters.certificate()?,
                authority: parameters.get("ca_cert").map(PathBuf::from),
                server_name: parameters.server_name()?,
                database,
            })
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let hosts = |default| {
            hosts.split(',').map(|host| named_host(host, default)).collect::<Result<Vec<_>, _>>()
        };
        match kind {
            "" => match hosts(6379)?.as_slice() {
                [one] => Ok(Self::Redis(login(path)?, one.clone())),
                _ => {
                    Err(UrlError::new("of redis:// takes one host; redis-cluster:// takes several"))
                }
            },
            "+unix" if !tls && rest.starts_with('/') && rest.len() > 1 => {
                Ok(Self::Socket(login(parameters.get("db").unwrap_or_default())?, rest.into()))
            }
            "+unix" => Err(UrlError::new(
                "of a socket is redis+unix:///path.sock, with ?db= and a number for another database",
            )),
            "-cluster" if path.is_empty() || path == "0" => {
                Ok(Self::Cluster(login("")?, hosts(6379)?))
            }
            "-cluster" => Err(UrlError::new(
                "of a cluster takes no database: Redis Cluster has only database 0",
            )),
            "-sentinel" => {
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                if name.is_empty() {
                    return Err(UrlError::new(
                        "of sentinels must end with the name of the primary, as in /mymaster",
                    ));
                }
                Ok(Self::Sentinel(login(database)?, hosts(26379)?, name.to_owned()))
            }
            _ => Err(UrlError::new(KNOWN)),
        }
    }
}

/// A host of a URL. A bare IPv6 address is refused, because its last group could be a port.
fn named_host(text: &str, default: u16) -> Result<HostPort, UrlError> {
    if !text.starts_with('[') && text.matches(':').count() > 1 {
        return Err(UrlError(format!(
            "names an IPv6 address without brackets: write it as [::1]:{default}, or as [::1] for port {default}"
        )));
    }
    HostPort::parse(text, Some(default))
        .ok_or_else(|| UrlError::new("names no host, or one that is not host:port"))
}

const KNOWN: &str = "must begin with memory:, redis://, rediss://, redis+unix:///, redis-cluster://, rediss-cluster://, \
                     redis-sentinel:// or rediss-sentinel://";

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |hosts: &[HostPort]| {
            hosts.iter().map(HostPort::to_string).collect::<Vec<_>>().join(",")
        };
        let scheme = |login: &Login| if login.tls { "rediss" } else { "redis" };
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Redis(login, host) => write!(f, "{}://{host}/{}", scheme(login), login.database),
            Self::Socket(login, path) => {
                write!(f, "redis+unix://{}?db={}", path.display(), login.database)
            }
            Self::Cluster(login, hosts) => write!(f, "{}-cluster://{}", scheme(login), list(hosts)),
            Self::Sentinel(login, hosts, name) => {
                write!(f, "{}-sentinel://{}/{name}", scheme(login), list(hosts))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_shown_without_credentials() {
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
    fn white_space_around_a_url_is_no_part_of_it() {
        for text in ["memory:\n", " redis://h/2\r\n", "redis-sentinel://s/mymaster\n"] {
            let url: StoreUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), text.trim().parse::<StoreUrl>().unwrap().to_string());
        }
    }

    #[test]
    fn password_can_come_from_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("password");
        std::fs::write(&file, "s3cret\n").unwrap();
        for text in [
            "redis://h",
            "redis://shop@h",
            "rediss://shop:@h/2",
            "redis+unix://shop@/redis.sock",
            "redis-cluster://a,b",
            "redis-sentinel://shop@s1,s2/mymaster",
        ] {
            let url: StoreUrl = text.parse().unwrap();
            assert!(!url.holds_password(), "{text}");
            let url = url.with_password_file(PasswordFile::open(&file).unwrap()).unwrap();
            assert!(!format!("{url} {url:?}").contains("s3cret"), "{url:?}");
        }
        for text in ["memory:", "redis://u:s3cret@h", "redis-cluster://:s3cret@a"] {
            let error = text
                .parse::<StoreUrl>()
                .unwrap()
                .with_password_file(PasswordFile::new(&file))
                .unwrap_err();
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn ipv6_address_needs_brackets() {
        for text in [
            "redis://::1:6379/0",
            "redis://fe80::1",
            "redis-cluster://a:1,2001:db8::1",
            "redis-sentinel://::1/m",
        ] {
            let error = text.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(error.contains("write it as [::1]:"), "{text}: {error}");
        }
        let shown =
            "redis-cluster://[::1]:7000,[2001:db8::1]".parse::<StoreUrl>().unwrap().to_string();
        assert_eq!(shown, "redis-cluster://[::1]:7000,[2001:db8::1]:6379");
    }

    #[test]
    fn faults_are_named_without_the_password() {
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
