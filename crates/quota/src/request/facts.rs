//! What is known of one request, each fact fetched from the host when it is first needed, and once.

use std::cell::{OnceCell, RefCell};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::rc::Rc;

use super::Request;
use crate::request::identity::{Identity, Lookup};
use crate::request::key::Digester;
use crate::request::matching;

/// The facts of one request; `'c` is the configuration's life. An empty fact is a missing one.
pub(crate) struct Facts<'c, R> {
    request: &'c R,
    method: OnceCell<Option<Vec<u8>>>,
    path: OnceCell<Option<Vec<u8>>>,
    host: OnceCell<Option<Vec<u8>>>,
    route: OnceCell<Option<Vec<u8>>>,
    address: OnceCell<Option<IpAddr>>,
    looked_up: Memo<&'c Lookup, [u8]>,
    identities: Memo<&'c Rc<Identity>, str>,
}

/// Answers known so far: so few that a search from the front is the fastest.
type Memo<K, V> = RefCell<Vec<(K, Option<Rc<V>>)>>;

impl<'c, R: Request> Facts<'c, R> {
    pub(crate) fn new(request: &'c R) -> Self {
        Self {
            request,
            method: OnceCell::new(),
            path: OnceCell::new(),
            host: OnceCell::new(),
            route: OnceCell::new(),
            address: OnceCell::new(),
            looked_up: RefCell::default(),
            identities: RefCell::default(),
        }
    }

    pub(crate) fn method(&self) -> Option<&[u8]> {
        self.method.get_or_init(|| present(self.request.method())).as_deref()
    }

    /// Without query string and fragment.
    pub(crate) fn path(&self) -> Option<&[u8]> {
        self.path
            .get_or_init(|| {
                let mut path = self.request.path()?;
                let end = path.iter().position(|b| matches!(b, b'?' | b'#')).unwrap_or(path.len());
                path.truncate(end);
                present(Some(path))
            })
            .as_deref()
    }

    /// Normalized as hosts are matched.
    pub(crate) fn host(&self) -> Option<&[u8]> {
        self.host.get_or_init(|| present(self.request.authority().map(matching::normalize_host))).as_deref()
    }

    /// The name of the Envoy route.
    pub(crate) fn route(&self) -> Option<&[u8]> {
        self.route.get_or_init(|| present(self.request.route_name())).as_deref()
    }

    /// The client's address: an IPv4 address in IPv6 form is an IPv4 address. `None` also for what is no
    /// address at all, such as a Unix socket.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        *self.address.get_or_init(|| parse_address(&self.request.source_address()?))
    }

    pub(crate) fn look_up(&self, lookup: &'c Lookup) -> Option<Rc<[u8]>> {
        if let Some((_, value)) = self.looked_up.borrow().iter().find(|(known, _)| *known == lookup) {
            return value.clone();
        }
        let value = match lookup {
            Lookup::Header(name) => self.request.header(name).into_iter().next(),
            Lookup::Claim { payload, path } => {
                let path: Vec<_> = std::iter::once(payload).chain(path).cloned().collect();
                self.request.metadata(super::JWT_AUTHN, &path)
            }
        };
        let value: Option<Rc<[u8]>> = present(value).map(Rc::from);
        self.looked_up.borrow_mut().push((lookup, value.clone()));
        value
    }

    /// The encoded entries of an identity.
    pub(crate) fn identity(&self, identity: &'c Rc<Identity>, digester: &Digester) -> Option<Rc<str>> {
        if let Some((_, text)) =
            self.identities.borrow().iter().find(|(known, _)| Rc::ptr_eq(known, identity))
        {
            return text.clone();
        }
        let text = identity.resolve(self, digester);
        self.identities.borrow_mut().push((identity, text.clone()));
        text
    }
}

fn present(value: Option<Vec<u8>>) -> Option<Vec<u8>> {
    value.filter(|value| !value.is_empty())
}

/// `1.2.3.4:56`, `[2001:db8::1]:56`, and either without its port; a zone (`%eth0`) is left out.
fn parse_address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Some(socket.ip().to_canonical());
    }
    let host = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None => text,
    };
    let address = match host.split_once('%') {
        Some((address, _zone)) => address.parse::<Ipv6Addr>().ok()?.into(),
        None => host.parse::<IpAddr>().ok()?,
    };
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_envoy_writes_them() {
        for (text, address) in [
            ("192.0.2.7:80", Some("192.0.2.7")),
            ("192.0.2.7:0", Some("192.0.2.7")),
            ("192.0.2.7", Some("192.0.2.7")),
            ("[2001:db8::1]:80", Some("2001:db8::1")),
            ("[2001:db8::1]", Some("2001:db8::1")),
            ("2001:db8::1", Some("2001:db8::1")),
            ("[fe80::1%eth0]:80", Some("fe80::1")),
            ("[::ffff:192.0.2.7]:80", Some("192.0.2.7")),
            ("::ffff:192.0.2.7", Some("192.0.2.7")),
            ("", None),
            ("/run/envoy.sock", None),
            ("[2001:db8::1", None),
            ("192.0.2.7:80:90", None),
            ("localhost:80", None),
        ] {
            assert_eq!(parse_address(text.as_bytes()), address.map(|a| a.parse().unwrap()), "{text}");
        }
        assert_eq!(parse_address(b"192.0.2.7\xff"), None);
    }
}
