//! The facts of a request, read from the host when a policy needs them.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};

use quotagate_quota::exchange::counting::{CONTENT_TYPE, is_grpc};
use quotagate_quota::request::{HeaderValues, Request};

use crate::headers::HeaderMap;
use crate::host;

/// The request of the active stream, in its `on_http_request_headers`.
///
/// Envoy's getter returns only the first value of a header, but the filter must see a second one.
/// So the first header that a policy needs fetches all of them, which costs about as much as two,
/// and later ones cost no host call. Policies need similar facts of every request: if the last one
/// needed several headers, this one fetches all at once.
pub struct Facts {
    headers: OnceCell<HeaderMap>,
    reading: Reading,
    asked: Cell<usize>,
    has_read_route: Cell<bool>,
}

/// How pseudo-headers are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// One by one, until a policy needs another header.
    Single,
    /// From all headers.
    All,
}

impl Facts {
    /// Fetches nothing yet.
    pub fn new(reading: Reading) -> Self {
        Self {
            headers: OnceCell::new(),
            reading,
            asked: Cell::new(0),
            has_read_route: Cell::new(false),
        }
    }

    /// The reading that would have cost the least, for headers of ordinary size.
    pub fn best_reading(&self) -> Reading {
        if self.asked.get() > 1 { Reading::All } else { Reading::Single }
    }

    /// Whether a policy needed the route.
    pub fn has_read_route(&self) -> bool {
        self.has_read_route.get()
    }

    /// Whether a gRPC client sent the request.
    pub fn is_grpc(&self) -> bool {
        match self.headers.get() {
            Some(headers) => headers.values(CONTENT_TYPE).any(is_grpc),
            None => host::is_grpc_request(),
        }
    }

    fn headers(&self) -> &HeaderMap {
        self.headers.get_or_init(host::request_headers)
    }

    fn ask(&self) {
        self.asked.set(self.asked.get() + 1);
    }

    /// A header whose name begins with `:` in HTTP/2, which occurs once.
    fn pseudo_header(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        self.ask();
        if self.reading == Reading::All || self.headers.get().is_some() {
            self.headers().values(name).last().map(Cow::from)
        } else {
            host::request_header(name).map(Cow::from)
        }
    }
}

impl Request for Facts {
    fn method(&self) -> Option<Cow<'_, [u8]>> {
        self.pseudo_header(":method")
    }

    fn path(&self) -> Option<Cow<'_, [u8]>> {
        self.pseudo_header(":path")
    }

    fn authority(&self) -> Option<Cow<'_, [u8]>> {
        self.pseudo_header(":authority")
    }

    fn header(&self, name: &str) -> HeaderValues<'_> {
        self.ask();
        self.headers().values(name).map(Cow::from).collect()
    }

    fn metadata(&self, filter: &str, path: &[Box<str>]) -> Option<Vec<u8>> {
        host::metadata(filter, path)
    }

    fn has_metadata(&self, filter: &str, path: &[Box<str>]) -> bool {
        host::has_metadata(filter, path)
    }

    fn attribute(&self, path: &[&str]) -> Option<Vec<u8>> {
        host::property(path)
    }

    fn source_address(&self) -> Option<Cow<'_, [u8]>> {
        host::property(&["source", "address"]).map(Cow::from)
    }

    fn route_name(&self) -> Option<Cow<'_, [u8]>> {
        self.has_read_route.set(true);
        host::property(&["xds", "route_name"]).map(Cow::from)
    }
}
