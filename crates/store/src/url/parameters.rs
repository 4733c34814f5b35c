//! The parameters of a store URL, after the `?`.

use std::path::Path;
use std::sync::Arc;

use super::error::UrlError;
use crate::address::HostPort;
use crate::login::{ClientCertificate, Credentials, Password};
use crate::secret::PasswordFile;

/// The name of each parameter, and the kinds of URL that take it (the part of the scheme after
/// `redis` or `rediss`).
const PARAMETERS: [(&str, &[&str]); 7] = [
    ("db", &["+unix"]),
    ("client_cert", &["", "-cluster", "-sentinel"]),
    ("client_key", &["", "-cluster", "-sentinel"]),
    ("ca_cert", &["", "-cluster", "-sentinel"]),
    ("server_name", &["", "-cluster", "-sentinel"]),
    ("sentinel_user", &["-sentinel"]),
    ("sentinel_password_file", &["-sentinel"]),
];

/// The parameters that need TLS.
const OF_TLS: [&str; 4] = ["client_cert", "client_key", "ca_cert", "server_name"];

/// The parameters of one URL.
pub struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Reads the query of a URL that begins with `scheme`: `redis`, or `rediss` with `tls`, and
    /// `kind`.
    ///
    /// # Errors
    /// The first parameter that is unknown or wrong. The error never shows a value, which may be a
    /// misplaced password.
    pub fn parse(query: &str, scheme: &str, kind: &str, tls: bool) -> Result<Self, UrlError> {
        let of_kind = |(_, kinds): &&(&str, &[&str])| kinds.contains(&kind);
        let known: Vec<&str> = PARAMETERS.iter().filter(of_kind).map(|(name, _)| *name).collect();
        let mut found: Vec<(String, String)> = Vec::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if !known.contains(&name.as_ref()) {
                let plain =
                    value.is_empty() || !name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
                let name = if plain { "such parameter" } else { name.as_ref() };
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(UrlError(format!(
                    "takes no {name}: the parameters of {scheme}:// are {known}"
                )));
            }
            if value.is_empty() || found.iter().any(|(other, _)| *other == name) {
                return Err(UrlError(format!("needs one value for {name}")));
            }
            if !tls && OF_TLS.contains(&name.as_ref()) {
                return Err(UrlError(format!("takes {name} with TLS only: begin it with rediss")));
            }
            found.push((name.into_owned(), value.into_owned()));
        }
        Ok(Self(found))
    }

    /// The value of the parameter `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The name for which the certificates of servers must be valid.
    ///
    /// # Errors
    /// When it is not the name of a host.
    pub fn server_name(&self) -> Result<Option<String>, UrlError> {
        let name = self.get("server_name").map(|name| {
            // A port is not part of the name.
            let host = HostPort::parse(name, Some(0))
                .filter(|host| host.host == name && !name.contains('%'));
            host.map(|host| host.host)
                .ok_or_else(|| UrlError::new("needs the name of a host for server_name"))
        });
        name.transpose()
    }

    /// The files of the client certificate.
    ///
    /// # Errors
    /// When a part is missing.
    pub fn certificate(&self) -> Result<Option<ClientCertificate>, UrlError> {
        match (self.get("client_cert"), self.get("client_key")) {
            (None, None) => Ok(None),
            (Some(chain), Some(key)) => {
                Ok(Some(ClientCertificate { chain: chain.into(), key: key.into() }))
            }
            _ => Err(UrlError::new("needs client_cert and client_key together")),
        }
    }

    /// The credentials for sentinels.
    ///
    /// # Errors
    /// When a part is missing.
    pub fn sentinel(&self) -> Result<Option<Credentials>, UrlError> {
        let user = self.get("sentinel_user").map(str::to_owned);
        match self.get("sentinel_password_file") {
            Some(file) => {
                let file = Arc::new(PasswordFile::new(Path::new(file)));
                Ok(Some(Credentials { user, password: Some(Password::File(file)) }))
            }
            None if user.is_some() => {
                Err(UrlError::new("needs sentinel_password_file beside sentinel_user"))
            }
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::StoreUrl;

    #[test]
    fn parameters_name_files_and_a_server() {
        let url = "rediss-sentinel://shop@s1/mymaster/2?sentinel_user=watch&sentinel_password_file=/run/s%40c\
                   &client_cert=/tls.crt&client_key=/tls.key&ca_cert=/ca.crt&server_name=redis.internal";
        let StoreUrl::Sentinel(login, _, name) = url.parse().unwrap() else { panic!("{url}") };
        assert_eq!((name.as_str(), login.database), ("mymaster", 2));
        assert_eq!(login.server_name.as_deref(), Some("redis.internal"));
        assert_eq!(login.authority, Some("/ca.crt".into()));
        let certificate = login.certificate.unwrap();
        assert_eq!((certificate.chain, certificate.key), ("/tls.crt".into(), "/tls.key".into()));
        let Some(Credentials { user, password: Some(Password::File(file)) }) = login.sentinel
        else {
            panic!()
        };
        assert_eq!(
            (user.as_deref(), format!("{file:?}").contains("/run/s@c")),
            (Some("watch"), true)
        );
        let missing = "redis-sentinel://s1/m?sentinel_password_file=/no/such/file"
            .parse::<StoreUrl>()
            .unwrap();
        let error = missing.read_files().unwrap_err().to_string();
        assert!(
            error.contains(
                "sentinel_password_file that cannot be used: /no/such/file cannot be read"
            ),
            "{error}"
        );
    }

    #[test]
    fn unknown_and_misplaced_parameters_are_refused() {
        for (text, says) in [
            (
                "redis-sentinel://s1/mymaster?sentinel_password=s3cret",
                "takes no sentinel_password: the parameters of redis-sentinel:// are client_cert, client_key, \
                 ca_cert, server_name, sentinel_user, sentinel_password_file",
            ),
            ("redis-sentinel://s1/mymaster?s3cret", "takes no such parameter"),
            ("redis-sentinel://s1/mymaster?S3=s3cret", "takes no such parameter"),
            (
                "redis://h?db=3",
                "takes no db: the parameters of redis:// are client_cert, client_key, ca_cert, server_name",
            ),
            ("redis://h/0?timeout=s3cret", "takes no timeout"),
            ("redis-cluster://a,b?sentinel_user=s3cret", "takes no sentinel_user"),
            (
                "redis+unix:///redis.sock?other=s3cret",
                "takes no other: the parameters of redis+unix:// are db",
            ),
            ("rediss://h?client_cert=/s3cret", "needs client_cert and client_key together"),
            (
                "redis://h?server_name=s3cret",
                "takes server_name with TLS only: begin it with rediss",
            ),
            ("rediss://h?server_name=s3cret&server_name=b", "needs one value for server_name"),
            ("rediss://h?server_name=s3cret/1", "needs the name of a host for server_name"),
            ("rediss://h?server_name=s3cret:1", "needs the name of a host for server_name"),
            ("rediss://h?server_name=", "needs one value for server_name"),
            (
                "redis-sentinel://s1/m?sentinel_user=s3cret",
                "needs sentinel_password_file beside sentinel_user",
            ),
            ("rediss://h?client_cert=/s3cret@x&client_key=/k", "write @ as %40"),
        ] {
            let error = text.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("s3cret"), "{text}: {error}");
        }
    }
}
