//! Calls to the store: how they leave, and how the host reports their ends.

use std::time::Duration;

use proxy_wasm::hostcalls;
use proxy_wasm::types::{BufferType, MapType, Status};
use quotagate_quota::protocol;
use quotagate_quota::worker::{AnsweredBy, CallEnd, CallFault, OutgoingFetch};

/// Where calls to the store go.
pub struct StoreAddress<'a> {
    /// The Envoy cluster.
    pub cluster: &'a str,
    /// The value of `authorization`.
    pub authorization: Option<&'a str>,
}

/// Sends a call for units. The host reports its outcome with the returned token.
///
/// # Errors
/// Why it cannot leave.
pub fn send(
    store: &StoreAddress<'_>,
    body: &[u8],
    timeout: Duration,
) -> Result<u32, CallFault<'static>> {
    dispatch(store, protocol::RESERVE_PATH, body, timeout)
}

/// Sends a report and fetches dials with it.
///
/// # Errors
/// Why it cannot leave.
pub fn fetch(store: &StoreAddress<'_>, fetch: &OutgoingFetch) -> Result<u32, CallFault<'static>> {
    let report = fetch.report.as_deref().unwrap_or_default();
    dispatch(store, &fetch.path(), report.as_bytes(), fetch.timeout)
}

fn dispatch(
    store: &StoreAddress<'_>,
    path: &str,
    body: &[u8],
    timeout: Duration,
) -> Result<u32, CallFault<'static>> {
    let mut headers = vec![
        (":method", "POST"),
        (":path", path),
        // Not the cluster: its name may hold characters that an authority must not
        // (`outbound|9180||store.svc`).
        (":authority", "quotagate"),
        ("content-type", "application/json"),
    ];
    headers.extend(store.authorization.map(|value| ("authorization", value)));
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
    let header = |name| {
        hostcalls::get_map_value_bytes(MapType::HttpCallResponseHeaders, name).ok().flatten()
    };
    // A call that was reset half-way has no headers, and asking for one is an error.
    let status = if headers > 0 { header(":status") } else { None };
    let Some(status) = status.and_then(|status| std::str::from_utf8(&status).ok()?.parse().ok())
    else {
        return CallEnd::Reset;
    };
    // Envoy adds this header to the answers of a server, but not to its own answers.
    let by = if header("x-envoy-upstream-service-time").is_some() {
        AnsweredBy::Store
    } else {
        AnsweredBy::Host
    };
    let read = body_size.min(protocol::MAX_BODY);
    let body = if read > 0 {
        hostcalls::get_buffer(BufferType::HttpCallResponseBody, 0, read).ok().flatten()
    } else {
        None
    };
    CallEnd::Answered { status, by, body: body.unwrap_or_default(), size: body_size }
}
