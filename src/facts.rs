//! What a request is, read from the host when asked.

use quotagate_quota::request::{PeerName, Request};

use crate::host;

/// The request of the active stream, in its `on_http_request_headers`.
pub struct Facts;

impl Request for Facts {
    fn method(&self) -> Option<Vec<u8>> {
        host::request_header(":method")
    }

    fn path(&self) -> Option<Vec<u8>> {
        host::request_header(":path")
    }

    fn authority(&self) -> Option<Vec<u8>> {
        host::request_header(":authority")
    }

    fn header(&self, name: &str) -> Vec<Vec<u8>> {
        host::request_header(name).into_iter().collect()
    }

    fn metadata(&self, filter: &str, path: &[Box<str>]) -> Option<Vec<u8>> {
        let mut keys = vec!["metadata", "filter_metadata", filter];
        keys.extend(path.iter().map(AsRef::<str>::as_ref));
        host::property(&keys)
    }

    fn peer(&self, name: PeerName) -> Option<Vec<u8>> {
        let name = match name {
            PeerName::UriSan => "uri_san_peer_certificate",
            PeerName::DnsSan => "dns_san_peer_certificate",
            PeerName::Subject => "subject_peer_certificate",
        };
        host::property(&["connection", name])
    }

    fn source_address(&self) -> Option<Vec<u8>> {
        host::property(&["source", "address"])
    }

    fn route_name(&self) -> Option<Vec<u8>> {
        host::property(&["xds", "route_name"])
    }
}
