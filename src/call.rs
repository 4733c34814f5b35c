//! Calls to the store: how they leave, and how the host reports their ends.

use std::time::Duration;

use proxy_wasm::hostcalls;
use proxy_wasm::types::{BufferType, MapType, Status};
use quotagate_protocol::RESERVE_PATH;
use quotagate_quota::driver::{Outgoing, call_headers};
use quotagate_quota::worker::{CallEnd, CallFault, CallId};

/// Where calls to the store go.
pub struct StoreAddress<'a> {
    /// The Envoy cluster.
    pub cluster: &'a str,
    /// The value of `authorization`.
    pub authorization: Option<&'a str>,
}

/// Sends a message. Returns its id, and the token with which the host reports its end, or why it
/// cannot leave.
pub fn send(
    store: &StoreAddress<'_>,
    message: &Outgoing,
) -> (CallId, Result<u32, CallFault<'static>>) {
    match message {
        Outgoing::Call(call) => {
            (call.id, dispatch(store, RESERVE_PATH, &call.body(), call.timeout))
        }
        Outgoing::Fetch(fetch) => {
            let report = fetch.report.as_deref().unwrap_or_default();
            (fetch.id, dispatch(store, &fetch.path(), report.as_bytes(), fetch.timeout))
        }
    }
}

fn dispatch(
    store: &StoreAddress<'_>,
    path: &str,
    body: &[u8],
    timeout: Duration,
) -> Result<u32, CallFault<'static>> {
    let headers = call_headers(path, store.authorization);
    // All other arguments are valid, so a bad one is the cluster.
    let sent =
        hostcalls::dispatch_http_call(store.cluster, headers, Some(body), Vec::new(), timeout);
    sent.map_err(|status| match status {
        Status::BadArgument => CallFault::NoCluster,
        _ => CallFault::NoHost,
    })
}

/// How the current call ended. `headers` and `body_size` are arguments of the callback.
pub fn end(headers: usize, body_size: usize) -> CallEnd {
    let header = |name: &str| {
        // A call that was reset half-way has no headers, and asking for one is an error.
        let read = || hostcalls::get_map_value_bytes(MapType::HttpCallResponseHeaders, name);
        if headers > 0 { read().ok().flatten() } else { None }
    };
    let body = |len| {
        let read = || hostcalls::get_buffer(BufferType::HttpCallResponseBody, 0, len);
        if len > 0 { read().ok().flatten().unwrap_or_default() } else { Vec::new() }
    };
    CallEnd::read(header, body_size, body)
}
