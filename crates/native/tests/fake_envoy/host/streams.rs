//! One stream: what arrives, what the module did with it, and what Envoy does next.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::abi::{self, Module, Ptr};
use super::config::{FilterConfig, Route};
use super::dispatcher::Dispatcher;
use super::{ALIVE, lock};

/// A request, and what other filters and Envoy know of it.
#[derive(Clone, Default)]
pub struct Request {
    headers: Vec<(String, Vec<u8>)>,
    attributes: HashMap<u32, Vec<u8>>,
    metadata: HashMap<(String, String), Value>,
    filter_state: HashMap<String, Vec<u8>>,
    route: usize,
    has_body: bool,
    buffer_limit: u64,
    envoy: AsEnvoy,
    /// Absent once its last stream is over.
    objects: Option<Arc<Objects>>,
}

/// What the module keeps as long as a request.
#[derive(Default)]
struct Objects(Mutex<HashMap<String, (usize, abi::Destroy)>>);

impl Drop for Objects {
    fn drop(&mut self) {
        for (_, (object, destroy)) in lock(&self.0).drain() {
            // SAFETY: the module passed them for that, and this is the only call.
            unsafe { destroy(object as Ptr) };
        }
    }
}

/// What Envoy does inside the module's calls.
#[derive(Clone, Copy, Default)]
pub struct AsEnvoy {
    /// A stream that was answered by the module ends before `send_response` returns.
    pub ends_when_answered: bool,
    /// A stream that goes on is answered by Envoy with this status, and ends, before
    /// `continue_decoding` returns.
    pub answers_when_resumed: Option<u16>,
}

/// A local reply of the module's.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub status: u32,
    pub headers: Vec<(String, String)>,
    pub body: String,
    pub details: String,
}

/// A stream. Tests hold it longer than Envoy does.
pub struct Stream {
    pub worker: Arc<Dispatcher>,
    pub index: usize,
    pub state: Mutex<State>,
    changed: Condvar,
}

/// What the pointer of a stream points to. Envoy frees it, so that a sanitizer sees late uses.
pub struct Filter {
    pub stream: Arc<Stream>,
    pub config: Arc<FilterConfig>,
}

#[derive(Default)]
pub struct State {
    pub filter: usize,
    module: usize,
    pub request: Request,
    pub response: Vec<(String, Vec<u8>)>,
    pub trailers: Vec<(String, Vec<u8>)>,
    /// The piece of a body that a hook is about, in chunks.
    pub body: Vec<Vec<u8>>,
    pub filter_state: HashMap<String, Vec<u8>>,
    /// Of the listener, until the module sets it; in bytes.
    pub buffer_limit: u64,
    /// What the module wrote to the filter state, in order.
    pub written: Vec<(String, String)>,
    /// What the hook of the request's headers returned.
    pub action: Option<u32>,
    pub is_resumed: bool,
    pub answer: Option<Answer>,
    /// Ends together with this one, as streams of one connection do.
    pub companion: Option<Arc<Stream>>,
    /// How many of its wakes are lost.
    pub lost_wakes: u32,
    pub wakes: u32,
    /// How often the module made Envoy choose the route again.
    pub route_clears: u32,
}

impl Request {
    pub fn get(path: &str) -> Self {
        Self::default().header(":method", "GET").header(":path", path).header(":authority", "shop")
    }

    /// Replaces all values of a header, or removes them.
    pub fn set(&mut self, name: &str, value: Option<Vec<u8>>) {
        self.headers.retain(|(known, _)| known != name);
        self.headers.extend(value.map(|value| (name.to_owned(), value)));
    }

    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    pub fn attribute(mut self, number: u32, value: &str) -> Self {
        self.attributes.insert(number, value.into());
        self
    }

    /// Dynamic metadata. Only text, numbers and booleans can be read.
    pub fn metadata(mut self, filter: &str, key: &str, value: Value) -> Self {
        self.metadata.insert((filter.to_owned(), key.to_owned()), value);
        self
    }

    pub fn filter_state(mut self, key: &str, value: &str) -> Self {
        self.filter_state.insert(key.to_owned(), value.into());
        self
    }

    pub fn route(mut self, route: &Route) -> Self {
        self.route = route.0;
        self
    }

    /// A body follows the headers.
    pub fn with_body(mut self) -> Self {
        self.has_body = true;
        self
    }

    /// The listener's limit for the stream's buffer, in bytes.
    pub fn with_buffer_limit(mut self, bytes: u64) -> Self {
        self.buffer_limit = bytes;
        self
    }

    pub fn with_envoy(mut self, envoy: AsEnvoy) -> Self {
        self.envoy = envoy;
        self
    }

    pub fn headers(&self) -> &[(String, Vec<u8>)] {
        &self.headers
    }

    pub fn values(&self, name: &str) -> Vec<&Vec<u8>> {
        self.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value).collect()
    }

    pub fn attribute_value(&self, number: u32) -> Option<&Vec<u8>> {
        self.attributes.get(&number)
    }

    pub fn metadata_value(&self, filter: &str, key: &str) -> Option<&Value> {
        self.metadata.get(&(filter.to_owned(), key.to_owned()))
    }

    pub fn metadata_keys(&self, filter: &str) -> usize {
        self.metadata.keys().filter(|(known, _)| known == filter).count()
    }

    pub fn route_module(&self) -> usize {
        self.route
    }

    /// Keeps an object of the module.
    pub fn keep(&self, key: String, object: Ptr, destroy: abi::Destroy) {
        let objects = self.objects.as_ref().expect("the request exists");
        let known = lock(&objects.0).insert(key, (object as usize, destroy));
        assert!(known.is_none(), "the name is new");
    }

    /// An object of the module, or null.
    pub fn kept(&self, key: &str) -> Ptr {
        let objects = self.objects.as_ref().expect("the request exists");
        lock(&objects.0).get(key).map_or(std::ptr::null_mut(), |(object, _)| *object as Ptr)
    }
}

impl Stream {
    /// A request that has not arrived yet.
    pub fn new(worker: &Arc<Dispatcher>, index: usize, mut request: Request) -> Arc<Self> {
        request.objects.get_or_insert_default();
        let state = State {
            filter_state: request.filter_state.clone(),
            buffer_limit: request.buffer_limit,
            request,
            ..State::default()
        };
        Arc::new(Self {
            worker: Arc::clone(worker),
            index,
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    /// It arrives, on its worker.
    pub fn arrive(self: &Arc<Self>, config: Arc<FilterConfig>) {
        let module = config.module();
        let filter = Box::new(Filter { stream: Arc::clone(self), config });
        let filter = Box::into_raw(filter);
        lock(&ALIVE).get_or_insert_default().insert(filter as usize);
        lock(&self.state).filter = filter as usize;
        // SAFETY: the filter exists until `finish`.
        let module = unsafe { abi::envoy_dynamic_module_on_http_filter_new(module, filter.cast()) };
        lock(&self.state).module = module as usize;
        let whole = !lock(&self.state).request.has_body;
        // SAFETY: as above.
        let action = unsafe {
            abi::envoy_dynamic_module_on_http_filter_request_headers(filter.cast(), module, whole)
        };
        let mut state = lock(&self.state);
        if whole {
            assert_eq!(action == abi::STOP, state.answer.is_some(), "STOP means an answer");
        }
        state.action = Some(action);
        drop(state);
        self.changed.notify_all();
    }

    /// Runs a hook, on the stream's worker, if the stream exists.
    pub fn hook(&self, hook: impl FnOnce(Ptr, Module)) {
        assert!(self.worker.is_current());
        let State { filter, module, .. } = *lock(&self.state);
        if filter != 0 {
            hook(filter as Ptr, module as Module);
        }
    }

    fn on_worker(self: &Arc<Self>, act: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let stream = Arc::clone(self);
        self.worker.run(move || act(&stream));
    }

    /// The upstream answers with these headers.
    pub fn respond(self: &Arc<Self>, status: u16, headers: &[(&str, &str)], whole: bool) {
        let headers = response(status.into(), headers);
        self.on_worker(move |stream| stream.encode(headers, whole));
    }

    /// A piece of the request's body comes, in chunks. Returns what the hook returned.
    pub fn request_body(self: &Arc<Self>, chunks: &[&str], end: bool) -> u32 {
        self.piece(chunks, move |filter, module| {
            // SAFETY: the stream exists.
            unsafe { abi::envoy_dynamic_module_on_http_filter_request_body(filter, module, end) }
        })
    }

    /// The request's body ends with trailers. Returns what the hook returned.
    pub fn request_trailers(self: &Arc<Self>) -> u32 {
        self.piece(&[], |filter, module| {
            // SAFETY: the stream exists.
            unsafe { abi::envoy_dynamic_module_on_http_filter_request_trailers(filter, module) }
        })
    }

    /// A piece of the upstream's answer comes, in chunks. Returns what the hook returned.
    pub fn response_body(self: &Arc<Self>, chunks: &[&str], end: bool) -> u32 {
        self.piece(chunks, move |filter, module| {
            // SAFETY: the stream exists.
            unsafe { abi::envoy_dynamic_module_on_http_filter_response_body(filter, module, end) }
        })
    }

    fn piece(
        self: &Arc<Self>,
        chunks: &[&str],
        hook: impl FnOnce(Ptr, Module) -> u32 + Send + 'static,
    ) -> u32 {
        let chunks = chunks.iter().map(|chunk| chunk.as_bytes().to_vec()).collect();
        let (sender, returned) = std::sync::mpsc::channel();
        self.on_worker(move |stream| {
            lock(&stream.state).body = chunks;
            stream.hook(|filter, module| {
                let action = hook(filter, module);
                let mut state = lock(&stream.state);
                if action == abi::CONTINUE && state.action == Some(abi::STOP) {
                    state.is_resumed = true;
                }
                drop(state);
                sender.send(action).expect("the test waits");
            });
            lock(&stream.state).body.clear();
            stream.changed.notify_all();
        });
        returned.recv().expect("the stream exists")
    }

    /// The upstream's answer ends with trailers.
    pub fn trailers(self: &Arc<Self>, trailers: &[(&str, &str)]) {
        let trailers = owned(trailers);
        self.on_worker(move |stream| {
            lock(&stream.state).trailers = trailers;
            // SAFETY: the stream exists.
            stream.hook(|filter, module| unsafe {
                abi::envoy_dynamic_module_on_http_filter_response_trailers(filter, module);
            });
        });
    }

    /// The stream ends: its answer is complete, or its client has left.
    pub fn end(self: &Arc<Self>) {
        self.on_worker(Self::finish);
    }

    /// Envoy redirects the request internally: this stream ends, and the request arrives again as
    /// `again`, which is returned. If the test drops that, no filter sees it.
    pub fn redirect(self: &Arc<Self>, again: Request) -> Request {
        let details = b"internal_redirect".to_vec();
        let mut state = lock(&self.state);
        state.request.attributes.insert(16, details);
        let objects = state.request.objects.clone();
        drop(state);
        self.end();
        Request { objects, ..again }
    }

    /// Envoy's response headers, from wherever they come, on the stream's worker.
    pub fn encode(&self, headers: Vec<(String, Vec<u8>)>, whole: bool) {
        lock(&self.state).response = headers;
        // SAFETY: the stream exists.
        self.hook(|filter, module| unsafe {
            abi::envoy_dynamic_module_on_http_filter_response_headers(filter, module, whole);
        });
    }

    /// The stream is over, on its worker.
    pub fn finish(self: &Arc<Self>) {
        // SAFETY: the stream exists until the last line.
        self.hook(|filter, module| unsafe {
            abi::envoy_dynamic_module_on_http_filter_stream_complete(filter, module);
            abi::envoy_dynamic_module_on_http_filter_destroy(module);
            lock(&self.state).filter = 0;
            lock(&ALIVE).get_or_insert_default().remove(&(filter as usize));
            drop(Box::from_raw(filter.cast::<Filter>()));
        });
        let objects = lock(&self.state).request.objects.take();
        drop(objects);
        self.changed.notify_all();
        let companion = lock(&self.state).companion.take();
        if let Some(companion) = companion {
            companion.finish();
        }
    }

    /// The module answers, on the stream's worker.
    pub fn answered(self: &Arc<Self>, answer: Answer) {
        let mut state = lock(&self.state);
        assert!(state.answer.is_none() && !state.is_resumed, "it is decided once");
        let headers: Vec<_> =
            answer.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        let is_grpc = state
            .request
            .values("content-type")
            .first()
            .is_some_and(|value| value.starts_with(b"application/grpc"));
        let mut headers = response(if is_grpc { 200 } else { answer.status }, &headers);
        if is_grpc {
            headers.push(("grpc-status".to_owned(), b"14".to_vec()));
        }
        state.answer = Some(answer);
        let ends = state.request.envoy.ends_when_answered;
        drop(state);
        self.encode(headers, false);
        self.changed.notify_all();
        if ends {
            self.finish();
        }
    }

    /// The module resumes the request, on the stream's worker.
    pub fn resumed(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let holds = [Some(abi::STOP_ALL_AND_WATERMARK), Some(abi::STOP)];
        assert!(holds.contains(&state.action), "it is held");
        assert!(state.answer.is_none() && !state.is_resumed, "it is decided once");
        state.is_resumed = true;
        let status = state.request.envoy.answers_when_resumed;
        drop(state);
        self.changed.notify_all();
        if let Some(status) = status {
            self.encode(response(status.into(), &[]), true);
            self.finish();
        }
    }

    /// Whether the request is held, and neither resumed nor answered.
    pub fn is_held(&self) -> bool {
        let state = lock(&self.state);
        state.action == Some(abi::STOP_ALL_AND_WATERMARK)
            && !state.is_resumed
            && state.answer.is_none()
    }

    /// Whether the module resumed or answered the request.
    pub fn is_decided(&self) -> bool {
        let state = lock(&self.state);
        state.is_resumed || state.answer.is_some()
    }

    /// Waits for the decision. `None`: the request goes on.
    pub fn decision(&self) -> Option<Answer> {
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut state = lock(&self.state);
        loop {
            if state.answer.is_some() || state.is_resumed || state.action == Some(abi::CONTINUE) {
                return state.answer.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the request is stuck");
            state = self.changed.wait_timeout(state, left).expect("no panic").0;
        }
    }

    /// The status that the client sees of the module. 0: the request goes on.
    pub fn status(&self) -> u32 {
        self.decision().map_or(0, |answer| answer.status)
    }

    pub fn buffer_limit(&self) -> u64 {
        lock(&self.state).buffer_limit
    }

    pub fn response_header(&self, name: &str) -> Option<String> {
        let state = lock(&self.state);
        let (_, value) = state.response.iter().find(|(known, _)| known == name)?;
        Some(String::from_utf8_lossy(value).into_owned())
    }

    /// What the access log shows of a key of the filter state.
    pub fn logged(&self, key: &str) -> Option<String> {
        let state = lock(&self.state);
        let values: Vec<_> = state.written.iter().filter(|(known, _)| known == key).collect();
        assert!(values.len() <= 1, "it is written once: {values:?}");
        values.first().map(|(_, value)| value.clone())
    }

    /// The values of a request header that the upstream gets, and how often Envoy chose the route
    /// again.
    pub fn sent(&self, name: &str) -> (Vec<String>, u32) {
        let state = lock(&self.state);
        let values = state.request.values(name).into_iter();
        let values = values.map(|value| String::from_utf8_lossy(value).into_owned()).collect();
        (values, state.route_clears)
    }

    pub fn lose_wakes(&self, count: u32) {
        lock(&self.state).lost_wakes = count;
    }

    pub fn wakes(&self) -> u32 {
        lock(&self.state).wakes
    }

    /// Ends `companion` together with this stream.
    pub fn takes_along(&self, companion: &Arc<Self>) {
        lock(&self.state).companion = Some(Arc::clone(companion));
    }
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }
}

fn response(status: u32, headers: &[(&str, &str)]) -> Vec<(String, Vec<u8>)> {
    let mut response = vec![(":status".to_owned(), status.to_string().into_bytes())];
    response.extend(owned(headers));
    response
}

fn owned(headers: &[(&str, &str)]) -> Vec<(String, Vec<u8>)> {
    headers.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect()
}
