//! A host in memory: its state, and the callbacks that a test calls in Envoy's role.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use quotagate as _;

pub const ROOT: u32 = 1;
pub const CONTINUE: u32 = 0;
/// The host holds back headers and body.
pub const STOP_ALL: u32 = 4;
/// The host holds back the headers, and the filter gets the body; or trailers.
pub const PAUSE: u32 = 1;
/// The host holds back a piece of a body.
pub const WATERMARK: u32 = 2;

/// The token of the first fetch. Tokens of calls start at 1.
pub const FETCHES: u32 = 100_000;

/// The id of the root's own queue.
pub const QUEUE: u32 = 77;

/// What the filter did, and what the host answers it.
#[derive(Default)]
pub struct Host {
    pub active: u32,
    pub configuration: Vec<u8>,
    pub log: Vec<String>,
    /// Streams that ended: entering their context fails.
    pub dead: HashSet<u32>,
    pub request_headers: Vec<(String, Vec<u8>)>,
    /// How often the filter fetched a single request header, and all of them.
    pub header_fetches: (usize, usize),
    /// Properties by path, joined with dots. `Err` is a status.
    pub properties: HashMap<String, Result<Vec<u8>, u32>>,
    /// Response headers that the filter set.
    pub response_headers: HashMap<String, String>,
    /// Headers that the current response has already.
    pub upstream_headers: Vec<(String, Vec<u8>)>,
    /// The status of the current response.
    pub status: u16,
    /// The current piece of a body.
    pub body: Vec<u8>,
    /// The trailers of the upstream's answer.
    pub trailers: HashMap<String, String>,
    /// The context that each call belongs to, and its body.
    pub calls: Vec<(u32, Vec<u8>)>,
    /// The headers of the last call.
    pub call_headers: Vec<(String, String)>,
    /// The headers and the body of each fetch of dials.
    pub fetches: Vec<(Headers, Vec<u8>)>,
    pub refuse_calls: bool,
    /// The host answers calls itself because the store does not, as Envoy does.
    pub answers_itself: bool,
    /// The status and the body of the store's answer.
    pub reply: (u16, Vec<u8>),
    pub resumed: Vec<u32>,
    pub answered: Vec<(u32, u32)>,
    /// The last local reply.
    pub answer: Answer,
    pub ticking: bool,
    /// The filter state that each stream wrote.
    pub filter_state: HashMap<(u32, String), String>,
    /// How often the filter made Envoy choose the route again.
    pub route_clears: usize,
    /// Values that outlive roots, and how often each was written.
    pub shared_data: HashMap<String, (Vec<u8>, u32)>,
    /// What another thread writes right before the filter does.
    pub written_meanwhile: Option<Vec<u8>>,
    /// The declared filter state.
    pub declared: Vec<String>,
    /// Names and values of metrics. Their ids are the indexes.
    pub metrics: Vec<(String, i64)>,
    /// The number of host calls that the filter made, without log lines.
    pub made: usize,
    /// The messages in the root's own queue.
    pub messages: usize,
    /// Envoy has no queue any more.
    pub queue_is_gone: bool,
    /// The root said that it was done, after it had said that it was not.
    pub done: bool,
}

/// Names and values, in order.
pub type Headers = Vec<(String, String)>;

/// The content of a local reply.
#[derive(Default)]
pub struct Answer {
    pub headers: Vec<(String, String)>,
    pub body: String,
    pub details: String,
    pub grpc_status: i32,
}

impl Host {
    /// Replaces all request headers of this name.
    pub fn set_request_header(&mut self, name: &str, value: &[u8]) {
        self.request_headers.retain(|(known, _)| known != name);
        self.request_headers.push((name.to_owned(), value.to_owned()));
    }
}

thread_local! {
    pub static HOST: RefCell<Host> = RefCell::default();
}

/// Reads or changes the host of this thread.
pub fn host<T>(f: impl FnOnce(&mut Host) -> T) -> T {
    HOST.with_borrow_mut(f)
}

/// How many lines of the log contain this text.
pub fn lines(text: &str) -> usize {
    host(|h| h.log.iter().filter(|line| line.contains(text)).count())
}

/// The metric with this name, of all roots. Ticks write it.
pub fn metric(name: &str) -> i64 {
    host(|h| h.metrics.iter().filter(|(known, _)| known == name).map(|(_, value)| value).sum())
}

/// The body of the call `number`. Calls count from 1.
pub fn call(number: usize) -> String {
    host(|h| String::from_utf8(h.calls[number - 1].1.clone()).unwrap())
}

/// The value of a header.
pub fn header(headers: &[(String, String)], name: &str) -> Option<String> {
    headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
}

unsafe extern "C" {
    fn _initialize();
    fn proxy_on_context_create(context: u32, parent: u32);
    fn proxy_on_configure(context: u32, size: usize) -> bool;
    /// Exported to the host as `proxy_on_request_headers`.
    fn quotagate_on_request_headers(context: u32, headers: usize, end: bool) -> u32;
    /// Exported to the host as `proxy_on_configure`, in one of the two files.
    fn quotagate_on_configure_with_bodies(context: u32, size: usize) -> bool;
    /// Exported to the host as `proxy_on_request_body`.
    fn quotagate_on_request_body(context: u32, size: usize, end: bool) -> u32;
    fn proxy_on_response_body(context: u32, size: usize, end: bool) -> u32;
    fn proxy_on_request_trailers(context: u32, trailers: usize) -> u32;
    fn proxy_on_response_headers(context: u32, headers: usize, end: bool) -> u32;
    fn proxy_on_response_trailers(context: u32, trailers: usize) -> u32;
    fn proxy_on_http_call_response(
        context: u32,
        token: u32,
        headers: usize,
        body: usize,
        trailers: usize,
    );
    fn proxy_on_queue_ready(context: u32, queue: u32);
    fn proxy_on_tick(context: u32);
    fn proxy_on_done(context: u32) -> bool;
    fn proxy_on_delete(context: u32);
}

/// Starts the plugin with this configuration. `false` if the plugin rejects it.
pub fn configure(text: &str) -> bool {
    configure_by(text, proxy_on_configure)
}

/// The same in the file that gets bodies.
pub fn configure_with_bodies(text: &str) -> bool {
    configure_by(text, quotagate_on_configure_with_bodies)
}

fn configure_by(text: &str, by: unsafe extern "C" fn(u32, usize) -> bool) -> bool {
    // The SDK installs its logger once per process, without a lock.
    static STARTING: Mutex<()> = Mutex::new(());
    let starting = STARTING.lock();
    // SAFETY: the module's exports, called as the ABI says; so below.
    unsafe { _initialize() };
    drop(starting);
    host(|h| (h.configuration, h.active) = (text.into(), ROOT));
    unsafe {
        proxy_on_context_create(ROOT, 0);
        by(ROOT, text.len())
    }
}

/// Ends the plugin, and starts another one with this configuration in the same process. `false` if
/// that one rejects it.
pub fn replace(text: &str) -> bool {
    stop();
    // SAFETY: as above.
    unsafe { proxy_on_delete(ROOT) };
    configure(text)
}

/// A request arrives on the stream `id`. Returns whether it continues at once.
pub fn request(id: u32) -> bool {
    headers(id, true) == CONTINUE
}

/// The headers of a request arrive on the stream `id`. Returns the action for the host.
pub fn headers(id: u32, end: bool) -> u32 {
    host(|h| h.active = id);
    unsafe {
        proxy_on_context_create(id, ROOT);
        quotagate_on_request_headers(id, 1, end)
    }
}

/// A piece of a body and trailers arrive on the stream `id`. Returns the action for each.
pub fn body_and_trailers(id: u32) -> [u32; 2] {
    host(|h| h.active = id);
    unsafe { [quotagate_on_request_body(id, 1, false), proxy_on_request_trailers(id, 1)] }
}

/// A piece of the request's body arrives on the stream `id`. Returns the action for the host.
pub fn request_body(id: u32, piece: &str, end: bool) -> u32 {
    host(|h| (h.active, h.body) = (id, piece.into()));
    unsafe { quotagate_on_request_body(id, piece.len(), end) }
}

/// The upstream starts an answer on the stream `id` with this content type.
pub fn response_head(id: u32, content_type: &str) {
    host(|h| {
        (h.active, h.status) = (id, 200);
        h.upstream_headers = vec![("content-type".into(), content_type.into())];
    });
    unsafe { proxy_on_response_headers(id, 2, false) };
}

/// A piece of the answer's body arrives on the stream `id`. Returns the action for the host.
pub fn response_body(id: u32, piece: &str, end: bool) -> u32 {
    host(|h| (h.active, h.body) = (id, piece.into()));
    unsafe { proxy_on_response_body(id, piece.len(), end) }
}

/// Sends requests until the limit of concurrent calls is reached, and then those of these streams,
/// which share the [`fifth_call`]. This works on slow machines too: below the limit, a batch is
/// sent after some milliseconds, whether it is complete or not.
pub fn crowd(streams: Range<u32>) {
    const MOST_CALLS: usize = 4;
    for id in streams.end.. {
        request(id);
        if host(|h| h.calls.len()) == MOST_CALLS {
            break;
        }
    }
    streams.for_each(|id| {
        request(id);
    });
    assert_eq!(host(|h| h.calls.len()), MOST_CALLS);
}

/// Waits for the next call after one call of a [`crowd`] returned. The filter sends it when its
/// requests have waited for some milliseconds.
pub fn fifth_call() {
    let deadline = Instant::now() + Duration::from_secs(10);
    while host(|h| h.calls.len()) < 5 {
        assert!(Instant::now() < deadline, "no further call was sent");
        tick();
    }
}

/// The context that host calls act on.
pub fn active() -> u32 {
    host(|h| h.active)
}

/// The upstream answers the stream `id` with this status.
pub fn response(id: u32, status: u16) {
    host(|h| (h.active, h.status) = (id, status));
    unsafe { proxy_on_response_headers(id, 1, true) };
}

/// The upstream starts a gRPC answer on the stream `id`. The status follows in [`trailers`].
pub fn grpc_response(id: u32) {
    host(|h| {
        (h.active, h.status) = (id, 200);
        h.upstream_headers = vec![("content-type".into(), b"application/grpc".into())];
    });
    unsafe { proxy_on_response_headers(id, 2, false) };
}

/// The upstream ends its answer to the stream `id` with this gRPC status.
pub fn trailers(id: u32, grpc_status: &str) {
    host(|h| {
        h.active = id;
        h.trailers.insert("grpc-status".into(), grpc_status.into());
    });
    unsafe { proxy_on_response_trailers(id, 1) };
}

/// The stream `id` ends, because it was answered or its client left.
pub fn end(id: u32) {
    host(|h| h.active = id);
    unsafe {
        proxy_on_done(id);
        proxy_on_delete(id);
    }
    host(|h| h.dead.insert(id));
}

/// Ends the plugin, as Envoy does when another configuration replaces it. `false`: it says later
/// that it is done.
pub fn stop() -> bool {
    host(|h| h.active = ROOT);
    unsafe { proxy_on_done(ROOT) }
}

/// The store answers the call `token`. Tokens start at 1. A status of 0 is a reset without headers.
pub fn reply(token: u32, status: u16, body: &str) {
    host(|h| (h.active, h.reply) = (ROOT, (status, body.into())));
    unsafe { proxy_on_http_call_response(ROOT, token, usize::from(status > 0), body.len(), 0) };
}

/// The store answers the fetch `number` with these dials, as version `number + 1`. Fetches start at
/// 0.
pub fn dials(number: u32, dials: &str) {
    let body = format!(r#"{{"version":{},"dials":[{dials}]}}"#, number + 1);
    reply(FETCHES + number, 200, &body);
}

/// Delivers a message of the root's own queue. `false` if there is none.
pub fn queue() -> bool {
    let waits = host(|h| {
        h.active = ROOT;
        h.messages > 0
    });
    if waits {
        unsafe { proxy_on_queue_ready(ROOT, QUEUE) };
    }
    waits
}

/// Time passes.
pub fn tick() {
    host(|h| h.active = ROOT);
    unsafe { proxy_on_tick(ROOT) };
}
