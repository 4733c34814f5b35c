//! Host calls. If the SDK panics on a status that a request or the host can cause, this module
//! makes the raw call and handles the status.

use std::cell::{Cell, OnceCell};

use proxy_wasm::hostcalls;
use proxy_wasm::types::{Action, BufferType, MapType};
use quotagate_quota::access_log::AccessLogEntry;
use quotagate_quota::driver;
use quotagate_quota::exchange::counting::{CONTENT_TYPE, is_grpc};
use quotagate_quota::response::mark::EXCEEDED;
use quotagate_quota::response::{Answer, HeaderWrite, PUSHBACK, Upstream};

use crate::headers::{HeaderMap, serialize};

/// The function of Envoy that makes it choose the route again.
const CLEAR_ROUTE_CACHE: &str = "clear_route_cache";
/// The status of a raw host call that succeeded.
const OK: u32 = 0;
/// The status of a property that is there, with a value that has no bytes, such as null.
const NO_BYTES: u32 = 3;

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn proxy_get_property(
        path: *const u8,
        path_size: usize,
        value: *mut *mut u8,
        value_size: *mut usize,
    ) -> u32;
    fn proxy_set_property(
        path: *const u8,
        path_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> u32;
    fn proxy_call_foreign_function(
        name: *const u8,
        name_size: usize,
        argument: *const u8,
        argument_size: usize,
        result: *mut *mut u8,
        result_size: *mut usize,
    ) -> u32;
    fn proxy_replace_header_map_value(
        map: u32,
        name: *const u8,
        name_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> u32;
    fn proxy_remove_header_map_value(map: u32, name: *const u8, name_size: usize) -> u32;
    fn proxy_get_header_map_pairs(map: u32, map_data: *mut *mut u8, map_size: *mut usize) -> u32;
    fn proxy_send_local_response(
        status: u32,
        details: *const u8,
        details_size: usize,
        body: *const u8,
        body_size: usize,
        headers: *const u8,
        headers_size: usize,
        grpc_status: i32,
    ) -> u32;
    fn proxy_continue_stream(stream_type: u32) -> u32;
    fn proxy_done() -> u32;
}

unsafe extern "C" {
    /// Exported by the SDK: runs `on_queue_ready` of a root context.
    fn proxy_on_queue_ready(context_id: u32, queue_id: u32);
    /// Exported by the SDK: runs `on_http_request_headers` of a stream.
    fn proxy_on_request_headers(context_id: u32, headers: usize, end: bool) -> u32;
    /// Exported by the SDK: runs `on_http_request_body` of a stream.
    fn proxy_on_request_body(context_id: u32, size: usize, end: bool) -> u32;
    /// Exported by the SDK: runs `on_configure` of a root context.
    fn proxy_on_configure(context_id: u32, size: usize) -> bool;
}

thread_local! {
    /// Whether the host calls the module for bodies.
    static GETS_BODIES: Cell<bool> = const { Cell::new(false) };
    /// Whether the request whose headers are being read is held for its body.
    static HOLDS_FOR_BODY: Cell<bool> = const { Cell::new(false) };
}

/// The callback of a configuration in `quotagate-bodies.wasm`, where `cargo xtask build` exports it
/// as `proxy_on_configure`. So the one module knows which of its two files runs.
#[unsafe(no_mangle)]
pub extern "C" fn quotagate_on_configure_with_bodies(context_id: u32, size: usize) -> bool {
    GETS_BODIES.set(true);
    // SAFETY: the SDK's own export, called as the host calls it.
    unsafe { proxy_on_configure(context_id, size) }
}

/// Whether the host calls the module for bodies.
pub fn gets_bodies() -> bool {
    GETS_BODIES.get()
}

/// The callback of a request's body, with a return value that the SDK lacks: Envoy holds the piece,
/// reads no more from the client than its buffers take, and does not answer a large body with 413.
/// The next call gets only the next piece. `cargo xtask build` exports this function as
/// `proxy_on_request_body`.
#[unsafe(no_mangle)]
pub extern "C" fn quotagate_on_request_body(context_id: u32, size: usize, end: bool) -> u32 {
    const PAUSE: u32 = Action::Pause as u32;
    /// Envoy's `FilterDataStatus::StopIterationAndWatermark`.
    const STOP_AND_WATERMARK: u32 = 2;
    // SAFETY: the SDK's own export, called as the host calls it.
    match unsafe { proxy_on_request_body(context_id, size, end) } {
        PAUSE => STOP_AND_WATERMARK,
        other => other,
    }
}

/// The callback of request headers, with a return value that the SDK lacks: Envoy holds back the
/// body of a request that waits.
///
/// The SDK's `Action::Pause` is Envoy's `StopIteration`. If a plugin sets
/// `allow_on_headers_stop_iteration`, Envoy stops only the headers and sends the body upstream
/// before the filter decides. `cargo xtask build` exports this function as
/// `proxy_on_request_headers`.
#[unsafe(no_mangle)]
pub extern "C" fn quotagate_on_request_headers(context_id: u32, headers: usize, end: bool) -> u32 {
    const PAUSE: u32 = Action::Pause as u32;
    /// Envoy's `FilterHeadersStatus::StopAllIterationAndWatermark`.
    const STOP_ALL: u32 = 4;
    HOLDS_FOR_BODY.set(false);
    // SAFETY: the SDK's own export, called as the host calls it.
    match unsafe { proxy_on_request_headers(context_id, headers, end) } {
        // The body must come here first.
        PAUSE if HOLDS_FOR_BODY.get() => PAUSE,
        PAUSE => STOP_ALL,
        other => other,
    }
}

/// Runs `on_queue_ready(0)` of the root context from within a callback of the stream `stream`, and
/// goes back to the stream. A call that is made meanwhile belongs to the root and outlives the
/// stream.
pub fn run_root(root: u32, stream: u32) {
    // SAFETY: the SDK's own export, on the thread of the VM; a stream's callback holds no borrow of
    // the roots.
    unsafe { proxy_on_queue_ready(root, 0) };
    enter(stream);
}

/// Makes host calls act on `context`. `false` if it is gone; then another context is still active.
pub fn enter(context: u32) -> bool {
    hostcalls::set_effective_context(context).is_ok()
}

/// A property as the host's raw bytes; `None` if it is absent, null, or has a null on the way.
pub fn property(path: &[&str]) -> Option<Vec<u8>> {
    property_or_status(path).ok()
}

/// A property as the host's raw bytes, or the status of the call.
fn property_or_status(path: &[&str]) -> Result<Vec<u8>, u32> {
    let joined = path.join("\0");
    let (mut data, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the pointers are valid for the call; on success the host hands over a buffer of
    // `size` bytes that it took from this module's allocator (`proxy_on_memory_allocate`), with
    // that capacity.
    unsafe {
        let status =
            proxy_get_property(joined.as_ptr(), joined.len(), &raw mut data, &raw mut size);
        if status == OK && !data.is_null() {
            Ok(Vec::from_raw_parts(data, size, size))
        } else {
            Err(status)
        }
    }
}

/// All headers of the request. Empty if they cannot be read now.
pub fn request_headers() -> HeaderMap {
    headers(MapType::HttpRequestHeaders)
}

fn headers(map: MapType) -> HeaderMap {
    let (mut data, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: as for a property.
    let serialized = unsafe {
        let status = proxy_get_header_map_pairs(map as u32, &raw mut data, &raw mut size);
        if status == OK && !data.is_null() {
            Vec::from_raw_parts(data, size, size)
        } else {
            Vec::new()
        }
    };
    HeaderMap::new(serialized)
}

/// The first value of a request header, while the request's headers can be read.
pub fn request_header(name: &str) -> Option<Vec<u8>> {
    hostcalls::get_map_value_bytes(MapType::HttpRequestHeaders, name).ok().flatten()
}

/// The current piece of a body, at most [`MAX_PIECE`] bytes at a time. `size` is the argument of
/// the callback.
pub fn pieces(body: Body, size: usize) -> impl Iterator<Item = Vec<u8>> {
    let kind = match body {
        Body::Request => BufferType::HttpRequestBody,
        Body::Response => BufferType::HttpResponseBody,
    };
    (0..size)
        .step_by(MAX_PIECE)
        .map_while(move |start| hostcalls::get_buffer(kind, start, MAX_PIECE).ok().flatten())
}

/// A body.
#[derive(Clone, Copy, Debug)]
pub enum Body {
    /// Of the request.
    Request,
    /// Of the response.
    Response,
}

/// The most bytes of a body that are copied at once: the module's memory never shrinks.
const MAX_PIECE: usize = 16 * 1024;

/// Whether a gRPC client sent the request, while the request's headers can be read.
pub fn is_grpc_request() -> bool {
    request_header(CONTENT_TYPE).is_some_and(|value| is_grpc(&value))
}

/// The response of the active stream, while its headers can be read.
///
/// A header that is there costs about as much as all of them at once, since the host has to
/// allocate memory for it in the module. One that is not there costs a fifth of that, and hardly
/// any response has quota headers. So the first header that is there fetches all, and later ones
/// cost no host call.
#[derive(Default)]
pub struct Response(OnceCell<HeaderMap>);

impl Response {
    fn headers(&self) -> &HeaderMap {
        self.0.get_or_init(|| headers(MapType::HttpResponseHeaders))
    }
}

impl Upstream for Response {
    fn status(&self) -> Option<u16> {
        let status = self.headers().values(":status").last()?;
        std::str::from_utf8(status).ok()?.parse().ok()
    }

    fn first_header(&self, name: &str) -> Option<Vec<u8>> {
        self.headers().values(name).next().map(<[u8]>::to_vec)
    }

    fn header(&self, name: &str) -> Vec<Vec<u8>> {
        let fetched = self.0.get();
        if fetched.is_none() && !has_response_header(name) {
            return Vec::new();
        }
        // The getter returns only the first value.
        self.headers().values(name).map(<[u8]>::to_vec).collect()
    }

    fn first_trailer(&self, name: &str) -> Option<Vec<u8>> {
        hostcalls::get_map_value_bytes(MapType::HttpResponseTrailers, name).ok().flatten()
    }

    fn trailer(&self, name: &str) -> Vec<Vec<u8>> {
        headers(MapType::HttpResponseTrailers).values(name).map(<[u8]>::to_vec).collect()
    }

    fn metadata(&self, filter: &str, path: &[Box<str>]) -> Option<Vec<u8>> {
        metadata(filter, path)
    }
}

/// A member of the active stream's dynamic metadata.
pub fn metadata(filter: &str, path: &[Box<str>]) -> Option<Vec<u8>> {
    property(&metadata_path(filter, path))
}

/// Whether the active stream's dynamic metadata has a member at `path`, also one without bytes.
pub fn has_metadata(filter: &str, path: &[Box<str>]) -> bool {
    matches!(property_or_status(&metadata_path(filter, path)), Ok(_) | Err(OK | NO_BYTES))
}

fn metadata_path<'p>(filter: &'p str, path: &'p [Box<str>]) -> Vec<&'p str> {
    let mut keys = vec!["metadata", "filter_metadata", filter];
    keys.extend(path.iter().map(AsRef::<str>::as_ref));
    keys
}

fn has_response_header(name: &str) -> bool {
    matches!(hostcalls::get_map_value_bytes(MapType::HttpResponseHeaders, name), Ok(Some(_)))
}

/// Writes an entry to the active stream's filter state, which access logs show as
/// `%FILTER_STATE(wasm.<name>:PLAIN)%`.
pub fn note(entry: Option<AccessLogEntry<'_>>) {
    if let Some(entry) = entry {
        entry.write(|name, value| set_property(name, value.as_bytes()));
    }
}

/// Writes a value to the active stream's filter state.
pub fn set_property(name: &str, value: &[u8]) {
    // SAFETY: the pointers are valid for the call. A stream without filter state is neither logged
    // nor redirected.
    let _ = unsafe { proxy_set_property(name.as_ptr(), name.len(), value.as_ptr(), value.len()) };
}

/// Declares that a value of the filter state lives as long as its request, which may be longer than
/// its stream. The active context is the root.
pub fn declare_for_request(name: &str) {
    /// The life span of a request.
    const REQUEST: u8 = 1;
    // Envoy's message DeclarePropertyArguments: field 1 is the name, field 5 the life span.
    let mut argument = vec![0x0a, u8::try_from(name.len()).unwrap_or_default()];
    argument.extend_from_slice(name.as_bytes());
    argument.extend([0x28, REQUEST]);
    // A host without it counts a request again when it redirects it.
    call_foreign("declare_property", &argument);
}

/// Removes the mark that the request brought along, while its headers can be read. Returns whether
/// there was one. The name of the route stays that of the marked request.
pub fn remove_mark() -> bool {
    // Nearly no request has it, and removing it makes Envoy choose the route again.
    if request_header(EXCEEDED).is_none() {
        return false;
    }
    // SAFETY: the pointer is valid for the call.
    let _ = unsafe {
        proxy_remove_header_map_value(
            MapType::HttpRequestHeaders as u32,
            EXCEEDED.as_ptr(),
            EXCEEDED.len(),
        )
    };
    call_foreign(CLEAR_ROUTE_CACHE, &[]);
    true
}

/// Marks the active stream's request, while its headers can be changed, and lets Envoy choose its
/// route again.
fn mark(value: &str) {
    // SAFETY: the pointers are valid for the call. A stream that was answered meanwhile needs no
    // mark.
    let _ = unsafe {
        proxy_replace_header_map_value(
            MapType::HttpRequestHeaders as u32,
            EXCEEDED.as_ptr(),
            EXCEEDED.len(),
            value.as_ptr(),
            value.len(),
        )
    };
    call_foreign(CLEAR_ROUTE_CACHE, &[]);
}

/// Calls a function of Envoy that has no result.
fn call_foreign(name: &str, argument: &[u8]) {
    let (mut data, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the pointers are valid for the call.
    let _ = unsafe {
        proxy_call_foreign_function(
            name.as_ptr(),
            name.len(),
            argument.as_ptr(),
            argument.len(),
            &raw mut data,
            &raw mut size,
        )
    };
}

/// Whether the active stream ends because Envoy redirects its request internally.
pub fn is_redirected() -> bool {
    property(&["response", "code_details"]).is_some_and(|details| details == b"internal_redirect")
}

/// Writes a response header.
pub fn write_response_header(how: HeaderWrite, name: &str, value: &str) {
    let map = MapType::HttpResponseHeaders;
    // The SDK returns no error here: it panics instead, but not while response headers can be set.
    let _ = match how {
        HeaderWrite::Add => hostcalls::add_map_value(map, name, value),
        HeaderWrite::Replace => hostcalls::set_map_value(map, name, Some(value)),
    };
}

/// Carries out what shall happen to the active stream's request, and returns what its callback
/// returns. `is_grpc` says whether its client speaks gRPC.
pub fn carry_out(action: driver::Action<'_>, is_grpc: impl FnOnce() -> bool) -> Action {
    match action {
        driver::Action::Continue(mark) => {
            mark.as_deref().inspect(|mark| self::mark(mark));
            Action::Continue
        }
        driver::Action::Hold => Action::Pause,
        driver::Action::Read => {
            HOLDS_FOR_BODY.set(true);
            Action::Pause
        }
        driver::Action::Answer(answer) => {
            send(&answer, is_grpc);
            Action::Pause
        }
    }
}

/// Lets the active stream's request go on.
pub fn resume_request() {
    const HTTP_REQUEST: u32 = 0;
    // SAFETY: no pointers. A stream that has ended meanwhile needs no resuming.
    let _ = unsafe { proxy_continue_stream(HTTP_REQUEST) };
}

/// Lets the host delete the root `root`, which has said in `on_done` that it was not done.
pub fn done(root: u32) {
    if enter(root) {
        // SAFETY: no pointers. A root that is gone needs no deleting.
        let _ = unsafe { proxy_done() };
    }
}

/// Answers the active stream instead of its upstream. `is_grpc` says whether its client speaks
/// gRPC.
fn send(answer: &Answer<'_>, is_grpc: impl FnOnce() -> bool) {
    let pushback = answer.pushback.filter(|_| is_grpc());
    let headers = match pushback {
        None => serialize(&answer.headers),
        Some(wait) => {
            let pushback = (PUSHBACK, wait.to_string().into());
            serialize(&[&*answer.headers, &[pushback]].concat())
        }
    };
    // SAFETY: the pointers are valid for the call. A stream that has ended meanwhile needs no
    // answer.
    let _ = unsafe {
        proxy_send_local_response(
            answer.status.into(),
            answer.details.as_ptr(),
            answer.details.len(),
            answer.body.as_ptr(),
            answer.body.len(),
            headers.as_ptr(),
            headers.len(),
            answer.grpc_status,
        )
    };
}
