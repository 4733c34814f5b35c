//! What a request is, read from the host when asked.

use std::cell::{Cell, OnceCell};

use quotagate_quota::request::Request;

use crate::headers::HeaderMap;
use crate::host;

/// The request of the active stream, in its `on_http_request_headers`.
///
/// The host's getter tells the first value of a header only, and a second one must be seen. So the first header
/// that is asked for fetches all of them, for about the price of two, and each later one costs no host call. The
/// policies ask for much the same of each request: where they asked for several the last time, pseudo-headers
/// are taken out of all of them from the beginning.
pub struct Facts {
    headers: OnceCell<HeaderMap>,
    reading: Reading,
    asked: Cell<usize>,
}

/// How pseudo-headers are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Each by itself, as long as no header is asked for.
    Single,
    /// Out of all headers.
    All,
}

impl Facts {
    /// Nothing is fetched yet.
    pub fn new(reading: Reading) -> Self {
        Self { headers: OnceCell::new(), reading, asked: Cell::new(0) }
    }

    /// What would have cost the least, of headers of ordinary size.
    pub fn best_reading(&self) -> Reading {
        if self.asked.get() > 1 { Reading::All } else { Reading::Single }
    }

    fn headers(&self) -> &HeaderMap {
        self.headers.get_or_init(host::request_headers)
    }

    fn ask(&self) {
        self.asked.set(self.asked.get() + 1);
    }

    /// A header that HTTP/2 begins with `:`, and that is there once.
    fn pseudo_header(&self, name: &str) -> Option<Vec<u8>> {
        self.ask();
        if self.reading == Reading::All || self.headers.get().is_some() {
            self.headers().values(name).pop()
        } else {
            host::request_header(name)
        }
    }
}

impl Request for Facts {
    fn method(&self) -> Option<Vec<u8>> {
        self.pseudo_header(":method")
    }

    fn path(&self) -> Option<Vec<u8>> {
        self.pseudo_header(":path")
    }

    fn authority(&self) -> Option<Vec<u8>> {
        self.pseudo_header(":authority")
    }

    fn header(&self, name: &str) -> Vec<Vec<u8>> {
        self.ask();
        self.headers().values(name)
    }

    fn metadata(&self, filter: &str, path: &[Box<str>]) -> Option<Vec<u8>> {
        let mut keys = vec!["metadata", "filter_metadata", filter];
        keys.extend(path.iter().map(AsRef::<str>::as_ref));
        host::property(&keys)
    }

    fn attribute(&self, path: &[&str]) -> Option<Vec<u8>> {
        host::property(path)
    }

    fn source_address(&self) -> Option<Vec<u8>> {
        host::property(&["source", "address"])
    }

    fn route_name(&self) -> Option<Vec<u8>> {
        host::property(&["xds", "route_name"])
    }
}
