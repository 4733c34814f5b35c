//! Where a server listens.

use std::fmt;

/// A host and a TCP port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// A name or an address; IPv6 without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl HostPort {
    /// Reads `host:port`, `[v6]:port`, or a host alone if there is a `default` port.
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
