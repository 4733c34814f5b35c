//! Requests: their facts, identities, conditions and partitions.

use std::borrow::Cow;
use std::{mem, slice};

pub(crate) mod allowance;
pub mod continuity;
pub(crate) mod credentials;
pub(crate) mod fact;
pub(crate) mod facts;
pub(crate) mod findings;
pub(crate) mod host;
pub(crate) mod identity;
pub(crate) mod index;
pub(crate) mod key;
pub(crate) mod matching;
pub mod naming;
pub(crate) mod network;
pub(crate) mod pairs;
pub(crate) mod partition;
pub(crate) mod path;
pub(crate) mod percent;
pub(crate) mod source;

/// Facts about one request, fetched from the host on demand.
///
/// Each method may cost a host call. So only the facts that policies need are fetched, and each but
/// a header at most once for a request. `None` means that the request does not have the fact.
pub trait Request {
    /// `:method`.
    fn method(&self) -> Option<Cow<'_, [u8]>>;
    /// `:path`, with the query string.
    fn path(&self) -> Option<Cow<'_, [u8]>>;
    /// `:authority`, with the port.
    fn authority(&self) -> Option<Cow<'_, [u8]>>;
    /// The values of a header by its lower-case name, in their order. Several policies may ask for
    /// the same one, so keep the headers once they are fetched.
    fn header(&self, name: &str) -> HeaderValues<'_>;
    /// A member of the request's dynamic metadata: the value at `path` below the namespace
    /// `filter`, as the host's raw bytes (no type comes with them).
    fn metadata(&self, filter: &str, path: &[Box<str>]) -> Option<Vec<u8>>;
    /// Whether the metadata has a member at `path`, also one whose value
    /// [`metadata`](Self::metadata) cannot hand over, such as `null`.
    fn has_metadata(&self, filter: &str, path: &[Box<str>]) -> bool {
        self.metadata(filter, path).is_some()
    }
    /// An attribute of Envoy by its path, such as `connection`, `requested_server_name`: the value
    /// as the host's raw bytes.
    fn attribute(&self, path: &[&str]) -> Option<Vec<u8>>;
    /// The address of the client that Envoy trusts: `1.2.3.4:56` or `[2001:db8::1]:56`.
    fn source_address(&self) -> Option<Cow<'_, [u8]>>;
    /// The name of the Envoy route.
    fn route_name(&self) -> Option<Cow<'_, [u8]>>;
}

/// The values of a header, in their order. A header with one value takes no memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HeaderValues<'r> {
    /// There is no such header.
    #[default]
    None,
    /// One value.
    One(Cow<'r, [u8]>),
    /// Several values.
    Several(Vec<Cow<'r, [u8]>>),
}

impl<'r> HeaderValues<'r> {
    /// All values.
    pub fn as_slice(&self) -> &[Cow<'r, [u8]>] {
        match self {
            Self::None => &[],
            Self::One(value) => slice::from_ref(value),
            Self::Several(values) => values,
        }
    }

    /// Each value in the spelling of the header with this lower-case name.
    pub(crate) fn spelt(mut self, name: &str) -> Self {
        match &mut self {
            Self::None => {}
            Self::One(value) => spell_header(name, value),
            Self::Several(values) => values.iter_mut().for_each(|value| spell_header(name, value)),
        }
        self
    }
}

/// Gives a value the spelling of the header with this lower-case name.
pub(crate) fn spell_header(name: &str, value: &mut Cow<'_, [u8]>) {
    pairs::trim_value(value);
    if credentials::are_in(name) {
        *value = credentials::normalize(mem::take(value));
    }
}

impl<'r> IntoIterator for HeaderValues<'r> {
    type Item = Cow<'r, [u8]>;
    type IntoIter =
        std::iter::Chain<std::option::IntoIter<Cow<'r, [u8]>>, std::vec::IntoIter<Cow<'r, [u8]>>>;

    fn into_iter(self) -> Self::IntoIter {
        let (first, rest) = match self {
            Self::None => (None, Vec::new()),
            Self::One(value) => (Some(value), Vec::new()),
            Self::Several(values) => (None, values),
        };
        first.into_iter().chain(rest)
    }
}

impl<'r> FromIterator<Cow<'r, [u8]>> for HeaderValues<'r> {
    fn from_iter<I: IntoIterator<Item = Cow<'r, [u8]>>>(values: I) -> Self {
        let mut values = values.into_iter();
        match (values.next(), values.next()) {
            (None, _) => Self::None,
            (Some(only), None) => Self::One(only),
            (Some(first), Some(second)) => {
                Self::Several([first, second].into_iter().chain(values).collect())
            }
        }
    }
}
