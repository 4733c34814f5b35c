//! What is known of one request, each fact fetched from the host when it is first needed, and once.

use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::rc::Rc;

use super::Request;
use crate::request::fact::{Fact, Found, Lookup};
use crate::request::{host, pairs, path};

/// The facts of one request; `'c` is the configuration's life. An empty fact is a missing one.
pub(crate) struct Facts<'c, R> {
    request: &'c R,
    method: OnceCell<Option<Vec<u8>>>,
    target: OnceCell<Option<Vec<u8>>>,
    path: OnceCell<Spelt>,
    other_readings: OnceCell<Vec<Vec<u8>>>,
    host: OnceCell<Option<Vec<u8>>>,
    route: OnceCell<Option<Vec<u8>>>,
    address: OnceCell<Option<IpAddr>>,
    headers: Memo<&'c str, Rc<[Vec<u8>]>>,
    found: Memo<&'c Lookup, Found>,
    /// By the place of the identity in memory.
    resolved: Memo<*const (), Resolved>,
}

/// Answers known so far: so few that a search from the front is the fastest.
type Memo<K, V> = RefCell<Vec<(K, V)>>;

/// A path in its one spelling.
enum Spelt {
    /// So many of the target's first bytes.
    AsGiven(usize),
    Anew(Vec<u8>),
}

/// What an identity is in a request.
#[derive(Clone, Debug)]
pub(crate) enum Resolved {
    /// It has a value.
    Value {
        /// Its encoded entries.
        text: Rc<str>,
        /// The client's whole address, where the value was made of it.
        address: Option<IpAddr>,
    },
    /// No source yields one.
    Missing,
    /// The client gave it more than once.
    Ambiguous,
}

impl<'c, R: Request> Facts<'c, R> {
    pub(crate) fn new(request: &'c R) -> Self {
        Self {
            request,
            method: OnceCell::new(),
            target: OnceCell::new(),
            path: OnceCell::new(),
            other_readings: OnceCell::new(),
            host: OnceCell::new(),
            route: OnceCell::new(),
            address: OnceCell::new(),
            headers: RefCell::default(),
            found: RefCell::default(),
            resolved: RefCell::default(),
        }
    }

    /// In upper case.
    pub(crate) fn method(&self) -> Option<&[u8]> {
        let fetch = || {
            let mut method = self.request.method()?;
            method.make_ascii_uppercase();
            present(Some(method))
        };
        self.method.get_or_init(fetch).as_deref()
    }

    /// The path as it was sent, with its query string.
    fn target(&self) -> Option<&[u8]> {
        self.target.get_or_init(|| self.request.path()).as_deref()
    }

    /// In its one spelling, without query string and fragment.
    pub(crate) fn path(&self) -> Option<&[u8]> {
        let target = self.target()?;
        let spelt = self.path.get_or_init(|| match path::normalize(target) {
            Cow::Borrowed(path) => Spelt::AsGiven(path.len()),
            Cow::Owned(path) => Spelt::Anew(path),
        });
        let path = match spelt {
            Spelt::AsGiven(len) => target.get(..*len)?,
            Spelt::Anew(path) => path,
        };
        (!path.is_empty()).then_some(path)
    }

    /// What else the path may mean, where it has parameters.
    pub(crate) fn other_readings(&self) -> &[Vec<u8>] {
        self.other_readings.get_or_init(|| self.target().map(path::other_readings).unwrap_or_default())
    }

    /// Normalized as hosts are matched.
    pub(crate) fn host(&self) -> Option<&[u8]> {
        self.host.get_or_init(|| present(self.request.authority().map(host::normalize))).as_deref()
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

    /// All values of the header of this lower-case name, in their order, also empty ones; without the spaces
    /// and tabs around them, which are no part of a value.
    pub(crate) fn header(&self, name: &'c str) -> Rc<[Vec<u8>]> {
        remember(&self.headers, name, || {
            let mut values = self.request.header(name);
            for value in &mut values {
                let trimmed = pairs::trim(value);
                if trimmed.len() < value.len() {
                    *value = trimmed.to_vec();
                }
            }
            values.into()
        })
    }

    /// The one value of `fact`.
    pub(crate) fn look_up(&self, fact: &'c Fact) -> Found {
        let found = remember(&self.found, &fact.lookup, || match &fact.lookup {
            Lookup::Header(name) => Found::only(self.header(name).iter().map(Vec::as_slice)),
            Lookup::Cookie(name) => pairs::cookie(&self.header("cookie"), name.as_bytes()),
            Lookup::Query(name) => {
                self.target().map_or(Found::Missing, |target| pairs::parameter(target, name.as_bytes()))
            }
            Lookup::Metadata { filter, path } => Found::present(self.request.metadata(filter, path)),
            Lookup::Peer(name) => Found::present(self.request.peer(*name)),
        });
        match (&fact.lookup, found) {
            (Lookup::Metadata { .. }, Found::Value(raw)) => {
                fact.kind.text(&raw).map_or(Found::Missing, Found::Value)
            }
            (_, found) => found,
        }
    }

    /// What `resolve` makes of these facts: found out once for each identity, which is told by its place.
    pub(crate) fn resolved(&self, identity: *const (), resolve: impl FnOnce() -> Resolved) -> Resolved {
        remember(&self.resolved, identity, resolve)
    }
}

/// What `memo` knows of `key`, or what `fetch` finds.
fn remember<K: PartialEq + Copy, V: Clone>(memo: &Memo<K, V>, key: K, fetch: impl FnOnce() -> V) -> V {
    if let Some((_, known)) = memo.borrow().iter().find(|(known, _)| *known == key) {
        return known.clone();
    }
    let value = fetch();
    memo.borrow_mut().push((key, value.clone()));
    value
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
