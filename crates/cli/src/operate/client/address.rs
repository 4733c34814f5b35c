//! The address of a store's admin API: `host:port`, `http://host:port` or `unix:/path.sock`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// An address to connect to. A host name is looked up for each connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AdminAddr {
    /// `host:port`.
    Tcp(String),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl FromStr for AdminAddr {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WANTED: &str =
            "must be host:port, such as 127.0.0.1:9181, http://host:port or unix:/path.sock";
        if text.starts_with("https:") {
            return Err(
                "the admin address speaks plain HTTP: to reach it on another machine, open a tunnel with `ssh -L` or \
                 `kubectl port-forward`, and give the local end",
            );
        }
        if let Some(path) = text.strip_prefix("unix:") {
            // unix:///path is accepted too.
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(WANTED) };
        }
        let authority = text.strip_prefix("http://").unwrap_or(text);
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let (host, port) = authority.rsplit_once(':').ok_or(WANTED)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let plain = |host: &str| {
            !host.is_empty()
                && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        };
        let good = bare.map_or_else(|| plain(host), |v6| v6.parse::<std::net::Ipv6Addr>().is_ok());
        if good && port.parse::<u16>().is_ok_and(|port| port > 0) {
            Ok(Self::Tcp(authority.to_owned()))
        } else {
            Err(WANTED)
        }
    }
}

impl fmt::Display for AdminAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(authority) => f.write_str(authority),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_errors_name_the_form() {
        for (text, address) in [
            ("127.0.0.1:9181", "127.0.0.1:9181"),
            ("http://store-0.shop.svc:9181/", "store-0.shop.svc:9181"),
            ("[::1]:9181", "[::1]:9181"),
            ("unix:/run/admin.sock", "unix:/run/admin.sock"),
            ("unix:///run/admin.sock", "unix:/run/admin.sock"),
        ] {
            assert_eq!(text.parse::<AdminAddr>().unwrap().to_string(), address);
        }
        for wrong in [
            "",
            "localhost",
            ":9181",
            "a b:1",
            "h:0",
            "h:65536",
            "::1:9181",
            "unix:",
            "unix:a",
            "http://h:1/v1",
        ] {
            assert!(wrong.parse::<AdminAddr>().unwrap_err().starts_with("must be"), "{wrong}");
        }
        assert!("https://h:1".parse::<AdminAddr>().unwrap_err().contains("ssh -L"));
    }
}
