//! The facts about one request. Each is fetched from the host once, when it is first needed.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell, RefCell};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::rc::Rc;

use super::findings::IdentityFindings;
use super::{HeaderValues, Request};
use crate::request::{host, network, pairs, path};

/// The facts about one request. `'c` is the lifetime of the configuration. An empty fact counts as
/// missing.
pub(crate) struct Facts<'c> {
    request: &'c dyn Request,
    method: OnceCell<Option<Cow<'c, [u8]>>>,
    target: OnceCell<Option<Cow<'c, [u8]>>>,
    path: OnceCell<Spelt>,
    other_readings: OnceCell<Vec<Vec<u8>>>,
    host: OnceCell<Option<Cow<'c, [u8]>>>,
    route: OnceCell<Option<Cow<'c, [u8]>>>,
    address: OnceCell<Option<IpAddr>>,
    /// Most requests need none of them.
    memos: OnceCell<Box<Memos<'c>>>,
    /// Empty: the memory in which the next key is written.
    key_scratch: Cell<String>,
    shared: SharedIdentities,
    findings: Cell<IdentityFindings>,
}

/// What was found by a name or a path.
#[derive(Default)]
struct Memos<'c> {
    parameters: Memo<&'c str, Rc<[Vec<u8>]>>,
    metadata: Memo<MetadataPath<'c>, Option<Rc<[u8]>>>,
    lists: Memo<MetadataPath<'c>, Rc<[Rc<[u8]>]>>,
    attributes: Memo<&'static [&'static str], Option<Rc<[u8]>>>,
    resolved: Memo<IdentityId, (Box<str>, Yield)>,
}

/// The most elements of a list that are read.
const MAX_ELEMENTS: usize = 64;

/// Which identity of the configuration: its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdentityId(pub(crate) usize);

/// The answers so far. They are few, so a search from the front is the fastest.
type Memo<K, V> = RefCell<Vec<(K, V)>>;

/// A member of metadata: its filter and its path.
type MetadataPath<'c> = (&'c str, &'c [Box<str>]);

/// A normalized path.
enum Spelt {
    /// This many of the target's first bytes.
    AsGiven(usize),
    /// Another text.
    Anew(Vec<u8>),
}

/// What a source, or an entry of a partition, wrote into a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Yield {
    /// A value, and the client's address if the value was made from it.
    Value(Option<IpAddr>),
    /// Nothing, since there is no value.
    Nothing,
    /// Nothing, since the value was given more than once.
    Ambiguous,
}

/// The identities that several policies count by.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SharedIdentities(u64);

impl SharedIdentities {
    /// How many identities fit.
    pub(crate) const MAX: usize = u64::BITS as usize;

    /// Of these identities, each as often as a policy counts by it.
    pub(crate) fn of(identities: impl Iterator<Item = IdentityId>) -> Self {
        let (mut once, mut more) = (0_u64, 0);
        for bit in identities.map(|IdentityId(index)| 1_u64 << index) {
            more |= once & bit;
            once |= bit;
        }
        Self(more)
    }

    const fn have(self, IdentityId(index): IdentityId) -> bool {
        self.0 & (1 << index) != 0
    }
}

impl<'c> Facts<'c> {
    /// Nothing is fetched yet.
    pub(crate) fn new(request: &'c dyn Request, shared: SharedIdentities) -> Self {
        Self {
            request,
            method: OnceCell::new(),
            target: OnceCell::new(),
            path: OnceCell::new(),
            other_readings: OnceCell::new(),
            host: OnceCell::new(),
            route: OnceCell::new(),
            address: OnceCell::new(),
            memos: OnceCell::new(),
            key_scratch: Cell::default(),
            shared,
            findings: Cell::default(),
        }
    }

    /// The method in upper case.
    pub(crate) fn method(&self) -> Option<&[u8]> {
        let fetch = || {
            let mut method = self.request.method()?;
            if method.iter().any(u8::is_ascii_lowercase) {
                method.to_mut().make_ascii_uppercase();
            }
            present(Some(method))
        };
        self.method.get_or_init(fetch).as_deref()
    }

    /// The path as it was sent, with its query string.
    pub(crate) fn target(&self) -> Option<&[u8]> {
        self.target.get_or_init(|| self.request.path()).as_deref()
    }

    /// The normalized path, without query string and fragment.
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

    /// The other readings of a path with parameters.
    pub(crate) fn other_readings(&self) -> &[Vec<u8>] {
        if matches!(self.path.get(), Some(Spelt::AsGiven(_))) {
            return &[];
        }
        self.other_readings
            .get_or_init(|| self.target().map(path::other_readings).unwrap_or_default())
    }

    /// The host as conditions compare it.
    pub(crate) fn host(&self) -> Option<&[u8]> {
        self.host.get_or_init(|| present(self.request.authority().map(host::normalize))).as_deref()
    }

    /// The name of the Envoy route.
    pub(crate) fn route(&self) -> Option<&[u8]> {
        self.route.get_or_init(|| present(self.request.route_name())).as_deref()
    }

    /// The path, if it was needed before.
    pub(crate) fn known_path(&self) -> Option<Option<&[u8]>> {
        self.target.get()?;
        Some(self.path())
    }

    /// The host, if it was needed before.
    pub(crate) fn known_host(&self) -> Option<Option<&[u8]>> {
        self.host.get().map(Option::as_deref)
    }

    /// The name of the Envoy route, if it was needed before.
    pub(crate) fn known_route(&self) -> Option<Option<&[u8]>> {
        self.route.get().map(Option::as_deref)
    }

    /// The client's address, [canonical](network::canonical). `None` for a Unix socket.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        *self.address.get_or_init(|| parse_address(&self.request.source_address()?))
    }

    /// All values of the header with this lower-case name, in their order, empty ones included,
    /// without surrounding spaces and tabs. [Credentials](super::credentials) have one spelling.
    pub(crate) fn header(&self, name: &str) -> HeaderValues<'c> {
        self.request.header(name).spelt(name)
    }

    /// All values of the query parameter with this decoded name, decoded, in their order, empty
    /// ones included.
    pub(crate) fn parameter(&self, name: &'c str) -> Rc<[Vec<u8>]> {
        remember(&self.memos().parameters, name, || match self.target() {
            Some(target) => pairs::parameters(target, name.as_bytes()).collect(),
            None => Rc::default(),
        })
    }

    /// A member of dynamic metadata, as the host's bytes.
    pub(crate) fn metadata(&self, filter: &'c str, path: &'c [Box<str>]) -> Option<Rc<[u8]>> {
        remember(&self.memos().metadata, (filter, path), || {
            present(self.request.metadata(filter, path)).map(Rc::from)
        })
    }

    /// The first elements of a list in dynamic metadata, as the host's bytes, without those that
    /// the host cannot hand over. Empty if it is no list.
    pub(crate) fn elements(&self, filter: &'c str, path: &'c [Box<str>]) -> Rc<[Rc<[u8]>]> {
        remember(&self.memos().lists, (filter, path), || {
            let element = |position: usize| {
                let last = position.to_string().into_boxed_str();
                let path: Vec<Box<str>> = path.iter().cloned().chain([last]).collect();
                match self.request.metadata(filter, &path) {
                    Some(raw) => Some(Some(Rc::from(raw))),
                    // A null is an element, and not the end of the list.
                    None => self.request.has_metadata(filter, &path).then_some(None),
                }
            };
            (0..MAX_ELEMENTS).map_while(element).flatten().collect()
        })
    }

    /// An attribute of Envoy, as the host's bytes.
    pub(crate) fn attribute(&self, path: &'static [&'static str]) -> Option<Rc<[u8]>> {
        remember(&self.memos().attributes, path, || {
            present(self.request.attribute(path)).map(Rc::from)
        })
    }

    /// Appends the encoded value of an identity. `resolve` does that, once for each identity.
    pub(crate) fn resolved(
        &self,
        identity: IdentityId,
        out: &mut String,
        resolve: impl FnOnce(&mut String) -> Yield,
    ) -> Yield {
        if !self.shared.have(identity) {
            return resolve(out);
        }
        let memo = &self.memos().resolved;
        if let Some((_, (text, known))) = memo.borrow().iter().find(|(known, _)| *known == identity)
        {
            out.push_str(text);
            return *known;
        }
        let start = out.len();
        let found = resolve(out);
        let text = out.get(start..).unwrap_or_default().into();
        memo.borrow_mut().push((identity, (text, found)));
        found
    }

    fn memos(&self) -> &Memos<'c> {
        self.memos.get_or_init(Box::default)
    }

    /// Takes the memory for a key, which is empty. Clear it before you
    /// [keep](Self::keep_key_scratch) it for the next key.
    pub(crate) fn take_key_scratch(&self) -> String {
        self.key_scratch.take()
    }

    /// Keeps memory for the next key.
    pub(crate) fn keep_key_scratch(&self, empty: String) {
        self.key_scratch.set(empty);
    }

    /// The identity of this bit looked for a verified token.
    pub(crate) fn saw_token(&self, bit: u64, found: bool) {
        self.findings.set(self.findings.get().with_token(bit, found));
    }

    /// This identity found a number that is too large to be exact.
    pub(crate) fn saw_rounded(&self, identity: IdentityId) {
        self.findings.set(IdentityFindings { rounded: Some(identity), ..self.findings.get() });
    }

    /// Verified tokens and rounded numbers that identities have found so far.
    pub(crate) fn findings(&self) -> IdentityFindings {
        self.findings.get()
    }
}

/// The remembered answer for `key`, or else the answer of `fetch`.
fn remember<K: PartialEq + Copy, V: Clone>(
    memo: &Memo<K, V>,
    key: K,
    fetch: impl FnOnce() -> V,
) -> V {
    if let Some((_, known)) = memo.borrow().iter().find(|(known, _)| *known == key) {
        return known.clone();
    }
    let value = fetch();
    memo.borrow_mut().push((key, value.clone()));
    value
}

fn present<V: AsRef<[u8]>>(value: Option<V>) -> Option<V> {
    value.filter(|value| !value.as_ref().is_empty())
}

/// `1.2.3.4:56`, `[2001:db8::1]:56`, and either without its port; a zone (`%eth0`) is left out.
fn parse_address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Some(network::canonical(socket.ip()));
    }
    let host = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None => text,
    };
    let address = match host.split_once('%') {
        Some((address, _zone)) => address.parse::<Ipv6Addr>().ok()?.into(),
        None => host.parse::<IpAddr>().ok()?,
    };
    Some(network::canonical(address))
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
            assert_eq!(
                parse_address(text.as_bytes()),
                address.map(|a| a.parse().unwrap()),
                "{text}"
            );
        }
        assert_eq!(parse_address(b"192.0.2.7\xff"), None);
    }
}
