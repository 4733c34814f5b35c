//! Requests: their facts, identities, conditions and partitions.

pub(crate) mod allowance;
pub(crate) mod fact;
pub(crate) mod facts;
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
pub(crate) mod tokens;

/// Facts about one request, fetched from the host on demand.
///
/// Each method costs a host call. So only the facts that policies need are fetched, and each at
/// most once for a request. `None` means that the request does not have the fact.
pub trait Request {
    /// `:method`.
    fn method(&self) -> Option<Vec<u8>>;
    /// `:path`, with the query string.
    fn path(&self) -> Option<Vec<u8>>;
    /// `:authority`, with the port.
    fn authority(&self) -> Option<Vec<u8>>;
    /// The values of a header by its lower-case name, in their order; empty if there is none.
    fn header(&self, name: &str) -> Vec<Vec<u8>>;
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
    fn source_address(&self) -> Option<Vec<u8>>;
    /// The name of the Envoy route.
    fn route_name(&self) -> Option<Vec<u8>>;
}
