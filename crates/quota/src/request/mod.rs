//! What a request is, and what of it counts: facts, identities, conditions, partitions.

pub(crate) mod allowance;
pub(crate) mod fact;
pub(crate) mod facts;
pub(crate) mod host;
pub(crate) mod identity;
pub(crate) mod key;
pub(crate) mod matching;
pub mod naming;
pub(crate) mod network;
mod pairs;
pub(crate) mod partition;
pub(crate) mod path;
pub(crate) mod percent;

/// Facts about one request, fetched from the host on demand.
///
/// Each call costs a host call: only what the policies at hand need is asked for, and each at most once a
/// request. `None` is a fact that the request does not have.
pub trait Request {
    /// `:method`.
    fn method(&self) -> Option<Vec<u8>>;
    /// `:path`, with the query string.
    fn path(&self) -> Option<Vec<u8>>;
    /// `:authority`, with the port.
    fn authority(&self) -> Option<Vec<u8>>;
    /// The values of a header by its lower-case name, in their order; empty where there is none.
    fn header(&self, name: &str) -> Vec<Vec<u8>>;
    /// A member of the request's dynamic metadata: the value at `path` below the namespace `filter`, as the
    /// host's raw bytes (no type comes with them).
    fn metadata(&self, filter: &str, path: &[Box<str>]) -> Option<Vec<u8>>;
    /// A name in the certificate that the client showed.
    fn peer(&self, name: PeerName) -> Option<Vec<u8>>;
    /// The address of the client that Envoy trusts: `1.2.3.4:56` or `[2001:db8::1]:56`.
    fn source_address(&self) -> Option<Vec<u8>>;
    /// The name of the Envoy route.
    fn route_name(&self) -> Option<Vec<u8>>;
}

/// Which name of a client certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerName {
    /// The first subject alternative name that is a URI, such as a SPIFFE ID.
    UriSan,
    /// The first subject alternative name that is a DNS name.
    DnsSan,
    /// The subject, as RFC 2253 writes it.
    Subject,
}

/// The namespace in which Envoy's `jwt_authn` leaves what it has verified.
pub(crate) const JWT_AUTHN: &str = "envoy.filters.http.jwt_authn";
