//! Reads the variables of xDS.

use std::time::Duration;

use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};

use super::reader::VariableReader;
use crate::messages::MAX_MESSAGE;
use crate::rules::SharedDomains;
use crate::xds::{Backoff, XdsOptions, is_server};

/// The server, and how to talk to it.
pub(super) fn options(reader: &VariableReader<'_>, shared: SharedDomains) -> XdsOptions {
    let url = "CONFIG_GRPC_XDS_SERVER_URL";
    let server = reader.text(url, "localhost:18000");
    // What remains of a name that gRPC resolves by DNS.
    let server = server.trim_start_matches("dns:").trim_start_matches('/');
    if !is_server(server) {
        // Without the value, which may hold a password.
        reader.fault(url, "must be host:port, without scheme, path and credentials");
    }
    let metadata = reader.pairs("CONFIG_GRPC_XDS_NODE_METADATA", '=');
    let jitters = reader.given("XDS_CLIENT_BACKOFF_JITTER").is_none()
        || reader.boolean("XDS_CLIENT_BACKOFF_JITTER");
    let jitter = reader.number("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", 0.5, 0.0..=1.0);
    let seconds = Duration::from_secs;
    XdsOptions {
        server: server.to_owned(),
        node: reader.text("CONFIG_GRPC_XDS_NODE_ID", "default").to_owned(),
        metadata: metadata.into_iter().map(|(name, to)| (name.to_owned(), to.to_owned())).collect(),
        headers: headers(reader),
        tls: reader.boolean("CONFIG_GRPC_XDS_SERVER_USE_TLS").then(|| {
            reader.tls([
                "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
                "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
                "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
                "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
            ])
        }),
        max_message: match reader.number("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", 0, 0..=1 << 30) {
            0 => MAX_MESSAGE,
            most => most,
        },
        retry: reader.duration("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", seconds(3)),
        backoff: Backoff {
            first: reader.duration("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", seconds(1)),
            longest: reader.duration("XDS_CLIENT_BACKOFF_MAX_INTERVAL", seconds(60)),
            jitter: if jitters { jitter } else { 0.0 },
        },
        shared,
    }
}

fn headers(reader: &VariableReader<'_>) -> MetadataMap {
    let variable = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS";
    let mut headers = MetadataMap::new();
    for (name, value) in reader.pairs(variable, ':') {
        let pair = (name.parse::<AsciiMetadataKey>(), value.trim().parse::<AsciiMetadataValue>());
        let (Ok(name), Ok(mut value)) = pair else {
            reader.fault(variable, "must be names and values of headers, such as x-name:value");
            continue;
        };
        // Such as a token, which no log may show.
        value.set_sensitive(true);
        headers.append(name, value);
    }
    headers
}
