//! The host: what it knows, and the callbacks by which a test plays Envoy.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use quotagate as _;

pub const ROOT: u32 = 1;
pub const CONTINUE: u32 = 0;
/// The host keeps back headers and body.
pub const STOP_ALL: u32 = 4;
/// The host keeps back a piece of a body.
pub const PAUSE: u32 = 1;

/// The token of the first fetch; calls count from 1.
pub const FETCHES: u32 = 100_000;

/// The id of the root's own queue.
pub const QUEUE: u32 = 77;

/// What the filter did, and what it is told.
#[derive(Default)]
pub struct Host {
    pub active: u32,
    pub configuration: Vec<u8>,
    pub log: Vec<String>,
    /// Streams that are gone: entering their context fails.
    pub dead: HashSet<u32>,
    pub request_headers: Vec<(String, Vec<u8>)>,
    /// How often single request headers, and all of them, were fetched.
    pub header_fetches: (usize, usize),
    /// By path, joined with dots; `Err` is a status.
    pub properties: HashMap<String, Result<Vec<u8>, u32>>,
    /// What the filter set.
    pub response_headers: HashMap<String, String>,
    /// What the response at hand has of itself.
    pub upstream_headers: Vec<(String, Vec<u8>)>,
    /// The status of the response whose headers are at hand.
    pub status: u16,
    /// The trailers of the upstream's answer.
    pub trailers: HashMap<String, String>,
    /// The context that each call belongs to, and its body.
    pub calls: Vec<(u32, Vec<u8>)>,
    /// The headers of the last call.
    pub call_headers: Vec<(String, String)>,
    /// The headers and the body of each fetch of dials.
    pub fetches: Vec<(Headers, Vec<u8>)>,
    pub refuse_calls: bool,
    /// It answers calls itself, in place of a store that does not.
    pub answers_itself: bool,
    /// What the store answers.
    pub reply: (u16, Vec<u8>),
    pub resumed: Vec<u32>,
    pub answered: Vec<(u32, u32)>,
    /// The last of these answers.
    pub answer: Answer,
    pub ticking: bool,
    /// What streams wrote into their filter state.
    pub filter_state: HashMap<(u32, String), String>,
    /// The declarations of filter state.
    pub declared: Vec<String>,
    /// The names of metrics, whose ids count from 0, and their values.
    pub metrics: Vec<(String, i64)>,
    /// How many calls the filter has made in all, log lines not among them.
    pub made: usize,
    pub messages: usize,
}

/// Names and values, in order.
pub type Headers = Vec<(String, String)>;

/// What a local reply carries.
#[derive(Default)]
pub struct Answer {
    pub headers: Vec<(String, String)>,
    pub body: String,
    pub details: String,
    pub grpc_status: i32,
}

impl Host {
    /// Puts a request header in place of all of its name.
    pub fn set_request_header(&mut self, name: &str, value: &[u8]) {
        self.request_headers.retain(|(known, _)| known != name);
        self.request_headers.push((name.to_owned(), value.to_owned()));
    }
}

thread_local! {
    pub static HOST: RefCell<Host> = RefCell::default();
}

/// Looks at or changes the host of this thread.
pub fn host<T>(f: impl FnOnce(&mut Host) -> T) -> T {
    HOST.with_borrow_mut(f)
}

unsafe extern "C" {
    fn _initialize();
    fn proxy_on_context_create(context: u32, parent: u32);
    fn proxy_on_configure(context: u32, size: usize) -> bool;
    /// The host knows it as `proxy_on_request_headers`.
    fn quotagate_on_request_headers(context: u32, headers: usize, end: bool) -> u32;
    fn proxy_on_request_body(context: u32, size: usize, end: bool) -> u32;
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

/// Starts the plugin with this configuration; `false` if it is refused.
pub fn configure(text: &str) -> bool {
    // The SDK installs its logger once a process, without a lock.
    static STARTING: Mutex<()> = Mutex::new(());
    let starting = STARTING.lock();
    // SAFETY: the module's exports, called as the ABI says; so below.
    unsafe { _initialize() };
    drop(starting);
    host(|h| (h.configuration, h.active) = (text.into(), ROOT));
    unsafe {
        proxy_on_context_create(ROOT, 0);
        proxy_on_configure(ROOT, text.len())
    }
}

/// A request arrives on the stream `id`; whether it goes on at once.
pub fn request(id: u32) -> bool {
    headers(id, true) == CONTINUE
}

/// The headers of a request arrive on the stream `id`; what the host is to do with them.
pub fn headers(id: u32, end: bool) -> u32 {
    host(|h| h.active = id);
    unsafe {
        proxy_on_context_create(id, ROOT);
        quotagate_on_request_headers(id, 1, end)
    }
}

/// A piece of a body and trailers arrive on the stream `id`; what the host is to do with each.
pub fn body_and_trailers(id: u32) -> [u32; 2] {
    host(|h| h.active = id);
    unsafe { [proxy_on_request_body(id, 1, false), proxy_on_request_trailers(id, 1)] }
}

/// Lets requests come until no further call may leave, and then those of these streams: they share
/// the [`fifth_call`]. However slow the machine is: requests that gather beside fewer calls leave
/// after some milliseconds.
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

/// Of a [`crowd`] one call has returned: the next leaves as soon as its requests have waited for
/// some milliseconds.
pub fn fifth_call() {
    let deadline = Instant::now() + Duration::from_secs(10);
    while host(|h| h.calls.len()) < 5 {
        assert!(Instant::now() < deadline, "no further call leaves");
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

/// The upstream begins to answer the stream `id` by gRPC: the status comes in [`trailers`].
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

/// The stream `id` ends: it is answered, or its client goes away.
pub fn end(id: u32) {
    host(|h| h.active = id);
    unsafe {
        proxy_on_done(id);
        proxy_on_delete(id);
    }
    host(|h| h.dead.insert(id));
}

/// The plugin ends, as it does when another configuration has replaced it.
pub fn stop() {
    host(|h| h.active = ROOT);
    unsafe { proxy_on_done(ROOT) };
}

/// The store answers the call `token` (they count from 1); a status of 0 is a reset, without
/// headers.
pub fn reply(token: u32, status: u16, body: &str) {
    host(|h| (h.active, h.reply) = (ROOT, (status, body.into())));
    unsafe { proxy_on_http_call_response(ROOT, token, usize::from(status > 0), body.len(), 0) };
}

/// The store answers the fetch `number` (they count from 0) with these dials, as version `number +
/// 1`.
pub fn dials(number: u32, dials: &str) {
    let body = format!(r#"{{"version":{},"dials":[{dials}]}}"#, number + 1);
    reply(FETCHES + number, 200, &body);
}

/// Delivers a message of the root's own queue; `false` if there is none.
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
