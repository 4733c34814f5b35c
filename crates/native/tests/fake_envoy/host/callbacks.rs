//! The callbacks that the module calls.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::abi::{self, Buffer, Header, Module, Ptr, list};
use super::config::{CONCURRENCY, Callout, FilterConfig, VALIDATES};
use super::dispatcher::Dispatcher;
use super::streams::{Answer, Filter, State, Stream};
use super::{LOG, is_alive, lock};

const REQUEST: u32 = 0;
const RESPONSE: u32 = 2;
const RESPONSE_TRAILERS: u32 = 3;
const RECEIVED_REQUEST: u32 = 0;
const RECEIVED_RESPONSE: u32 = 2;

/// The stream behind a pointer, on its own worker.
fn filter(pointer: Ptr) -> &'static Filter {
    assert!(is_alive(pointer as usize), "the stream exists");
    // SAFETY: it exists. The reference is not kept beyond a callback, and only hooks free it.
    let filter = unsafe { &*pointer.cast::<Filter>() };
    assert!(filter.stream.worker.is_current(), "the call comes on the stream's worker");
    filter
}

/// The module's headers.
fn texts(headers: *const Header, len: usize) -> Vec<(String, String)> {
    let text = |header: Header| (header.name.text(), header.value.text());
    list(headers, len).into_iter().map(text).collect()
}

/// Reads or changes the state of a stream.
fn with<R>(pointer: Ptr, act: impl FnOnce(&mut State) -> R) -> R {
    act(&mut lock(&filter(pointer).stream.state))
}

/// The configuration behind a pointer, on the main thread.
fn config(pointer: Ptr) -> &'static FilterConfig {
    assert!(is_alive(pointer as usize), "the configuration exists");
    // SAFETY: as above.
    let config = unsafe { &*pointer.cast::<FilterConfig>() };
    assert!(config.main.is_current(), "the call comes on the main thread");
    config
}

/// Hands out bytes that stay valid while the hook runs: nothing replaces them meanwhile.
fn give(value: Option<&Vec<u8>>, out: *mut Buffer) -> bool {
    // SAFETY: the module's pointer is valid for the call.
    unsafe { *out = value.map_or(Buffer::new(&[]), |value| Buffer::new(value)) };
    value.is_some()
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_log(_level: u32, message: Buffer) {
    lock(&LOG).push(message.text());
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_log_enabled(level: u32) -> bool {
    level > 1
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_get_concurrency() -> u32 {
    CONCURRENCY.get()
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_is_validation_mode() -> bool {
    VALIDATES.get()
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_config_define_counter(
    pointer: Ptr,
    name: Buffer,
    labels: *const Buffer,
    labels_len: usize,
    id: *mut usize,
) -> u32 {
    let labels = list(labels, labels_len).into_iter().map(Buffer::text).collect();
    let mut counters = lock(&config(pointer).counters);
    counters.push((name.text(), labels, HashMap::new()));
    // SAFETY: the module's pointer is valid for the call.
    unsafe { *id = counters.len() };
    0
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_increment_counter(
    pointer: Ptr,
    id: usize,
    labels: *const Buffer,
    labels_len: usize,
    value: u64,
) -> u32 {
    count(&filter(pointer).config, id, list(labels, labels_len), value)
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_config_increment_counter(
    pointer: Ptr,
    id: usize,
    labels: *const Buffer,
    labels_len: usize,
    value: u64,
) -> u32 {
    count(config(pointer), id, list(labels, labels_len), value)
}

fn count(config: &FilterConfig, id: usize, labels: Vec<Buffer>, value: u64) -> u32 {
    let labels: Vec<_> = labels.into_iter().map(Buffer::text).collect();
    let mut counters = lock(&config.counters);
    let (_, names, counts) = &mut counters[id - 1];
    assert_eq!(names.len(), labels.len(), "as many labels as were defined");
    *counts.entry(labels).or_default() += value;
    0
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_header(
    pointer: Ptr,
    map: u32,
    name: Buffer,
    value: *mut Buffer,
    index: usize,
    count: *mut usize,
) -> bool {
    let name = name.text();
    with(pointer, |state| {
        let named = headers(state, map).iter().filter(|(known, _)| *known == name);
        let values: Vec<_> = named.map(|(_, value)| value).collect();
        if !count.is_null() {
            // SAFETY: not null, so the module's pointer is valid for the call.
            unsafe { *count = values.len() };
        }
        give(values.get(index).copied(), value)
    })
}

/// The headers of a map.
fn headers(state: &State, map: u32) -> &[(String, Vec<u8>)] {
    match map {
        REQUEST => state.request.headers(),
        RESPONSE => &state.response,
        RESPONSE_TRAILERS => &state.trailers,
        _ => panic!("no map of the module's"),
    }
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_headers_size(pointer: Ptr, map: u32) -> usize {
    with(pointer, |state| headers(state, map).len())
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_headers(
    pointer: Ptr,
    map: u32,
    room: *mut Header,
) -> bool {
    with(pointer, |state| {
        for (index, (name, value)) in headers(state, map).iter().enumerate() {
            let header = Header { name: Buffer::new(name.as_bytes()), value: Buffer::new(value) };
            // SAFETY: the module has room for as many headers as there are.
            unsafe { room.add(index).write(header) };
        }
        true
    })
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_add_header(
    pointer: Ptr,
    map: u32,
    name: Buffer,
    value: Buffer,
) -> bool {
    assert_eq!(map, RESPONSE);
    with(pointer, |state| {
        let name = name.text();
        let is_there = state.response.iter().any(|(known, _)| *known == name);
        assert!(!is_there, "{name} would be there twice");
        state.response.push((name, value.bytes()));
    });
    true
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_set_header(
    pointer: Ptr,
    map: u32,
    name: Buffer,
    value: Buffer,
) -> bool {
    with(pointer, |state| {
        let name = name.text();
        if map == REQUEST {
            state.request.set(&name, (!value.ptr.is_null()).then(|| value.bytes()));
            return true;
        }
        assert_eq!(map, RESPONSE);
        state.response.retain(|(known, _)| *known != name);
        state.response.push((name, value.bytes()));
        true
    })
}

/// The piece of a body that the current hook is about.
fn piece(state: &State, body: u32) -> &[Vec<u8>] {
    assert!([RECEIVED_REQUEST, RECEIVED_RESPONSE].contains(&body), "no body of the module's");
    &state.body
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_body_chunks_size(
    pointer: Ptr,
    body: u32,
) -> usize {
    with(pointer, |state| piece(state, body).len())
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_body_chunks(
    pointer: Ptr,
    body: u32,
    chunks: *mut Buffer,
) -> bool {
    with(pointer, |state| {
        for (index, chunk) in piece(state, body).iter().enumerate() {
            // SAFETY: the module asked for the number of chunks before.
            unsafe { *chunks.add(index) = Buffer::new(chunk) };
        }
        true
    })
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_clear_route_cache(pointer: Ptr) {
    with(pointer, |state| state.route_clears += 1);
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_send_response(
    pointer: Ptr,
    status: u32,
    headers: *const Header,
    headers_len: usize,
    body: Buffer,
    details: Buffer,
) {
    let headers = texts(headers, headers_len);
    let stream = Arc::clone(&filter(pointer).stream);
    stream.answered(Answer { status, headers, body: body.text(), details: details.text() });
}

/// Hands out a value of the dynamic metadata, if it has this type.
fn metadata<T>(
    pointer: Ptr,
    namespace: Buffer,
    key: Buffer,
    out: *mut T,
    read: impl FnOnce(&serde_json::Value) -> Option<T>,
) -> bool {
    with(pointer, |state| {
        let found = state.request.metadata_value(&namespace.text(), &key.text()).and_then(read);
        // SAFETY: the module's pointer is valid for the call.
        found.map(|value| unsafe { *out = value }).is_some()
    })
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_metadata_string(
    pointer: Ptr,
    _source: u32,
    namespace: Buffer,
    key: Buffer,
    value: *mut Buffer,
) -> bool {
    metadata(pointer, namespace, key, value, |value| Some(Buffer::new(value.as_str()?.as_bytes())))
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_metadata_number(
    pointer: Ptr,
    _source: u32,
    namespace: Buffer,
    key: Buffer,
    value: *mut f64,
) -> bool {
    metadata(pointer, namespace, key, value, serde_json::Value::as_f64)
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_metadata_bool(
    pointer: Ptr,
    _source: u32,
    namespace: Buffer,
    key: Buffer,
    value: *mut bool,
) -> bool {
    metadata(pointer, namespace, key, value, serde_json::Value::as_bool)
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_metadata_keys_count(
    pointer: Ptr,
    _source: u32,
    namespace: Buffer,
) -> usize {
    with(pointer, |state| state.request.metadata_keys(&namespace.text()))
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_set_filter_state_bytes(
    pointer: Ptr,
    key: Buffer,
    value: Buffer,
) -> bool {
    with(pointer, |state| {
        state.written.push((key.text(), value.text()));
        state.filter_state.insert(key.text(), value.bytes());
        true
    })
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_filter_state_bytes(
    pointer: Ptr,
    key: Buffer,
    value: *mut Buffer,
) -> bool {
    with(pointer, |state| give(state.filter_state.get(&key.text()), value))
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_set_filter_state_object(
    pointer: Ptr,
    key: Buffer,
    object: Ptr,
    destroy: abi::Destroy,
    life_span: u32,
) -> bool {
    assert_eq!(life_span, 1, "as long as the request");
    with(pointer, |state| state.request.keep(key.text(), object, destroy));
    true
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_buffer_limit(pointer: Ptr) -> u64 {
    with(pointer, |state| state.buffer_limit)
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_set_buffer_limit(pointer: Ptr, limit: u64) {
    with(pointer, |state| state.buffer_limit = limit);
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_filter_state_object(
    pointer: Ptr,
    key: Buffer,
) -> Ptr {
    with(pointer, |state| state.request.kept(&key.text()))
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_get_attribute_string(
    pointer: Ptr,
    attribute: u32,
    value: *mut Buffer,
) -> bool {
    with(pointer, |state| give(state.request.attribute_value(attribute), value))
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_continue_decoding(pointer: Ptr) {
    let stream = Arc::clone(&filter(pointer).stream);
    stream.resumed();
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_get_worker_index(pointer: Ptr) -> u32 {
    u32::try_from(filter(pointer).stream.index).expect("few workers")
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_get_most_specific_route_config(pointer: Ptr) -> Module {
    with(pointer, |state| state.request.route_module() as Module)
}

/// Wakes one stream, from any thread.
struct Scheduler(Weak<Stream>);

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_scheduler_new(pointer: Ptr) -> Ptr {
    let stream = Arc::downgrade(&filter(pointer).stream);
    Box::into_raw(Box::new(Scheduler(stream))).cast()
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_scheduler_commit(
    scheduler: Ptr,
    event: u64,
) {
    // SAFETY: the module has not deleted it.
    let Scheduler(stream) = unsafe { &*scheduler.cast() };
    let Some(stream) = stream.upgrade() else { return };
    let mut state = lock(&stream.state);
    state.wakes += 1;
    if state.lost_wakes > 0 {
        state.lost_wakes -= 1;
        return;
    }
    drop(state);
    let worker = Arc::clone(&stream.worker);
    worker.post(move || {
        // SAFETY: the stream exists.
        stream.hook(|filter, module| unsafe {
            abi::envoy_dynamic_module_on_http_filter_scheduled(filter, module, event);
        });
    });
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_scheduler_delete(scheduler: Ptr) {
    // SAFETY: the module deletes it once.
    drop(unsafe { Box::from_raw(scheduler.cast::<Scheduler>()) });
}

/// Wakes a configuration, from any thread.
struct ConfigScheduler(Weak<FilterConfig>, Arc<Dispatcher>);

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_config_scheduler_new(pointer: Ptr) -> Ptr {
    let config = std::ptr::from_ref(config(pointer));
    // SAFETY: the configuration lives in an `Arc`.
    let config = unsafe {
        Arc::increment_strong_count(config);
        Arc::from_raw(config)
    };
    let scheduler = ConfigScheduler(Arc::downgrade(&config), Arc::clone(&config.main));
    Box::into_raw(Box::new(scheduler)).cast()
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_config_scheduler_commit(
    scheduler: Ptr,
    event: u64,
) {
    // SAFETY: the module has not deleted it.
    let ConfigScheduler(config, main) = unsafe { &*scheduler.cast() };
    let config = Weak::clone(config);
    main.post(move || {
        if let Some(config) = config.upgrade() {
            // SAFETY: the configuration exists.
            unsafe {
                abi::envoy_dynamic_module_on_http_filter_config_scheduled(
                    config.pointer(),
                    config.module(),
                    event,
                );
            }
        }
    });
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_config_scheduler_delete(scheduler: Ptr) {
    // SAFETY: the module deletes it once.
    drop(unsafe { Box::from_raw(scheduler.cast::<ConfigScheduler>()) });
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_config_http_callout(
    pointer: Ptr,
    id: *mut u64,
    cluster: Buffer,
    headers: *const Header,
    headers_len: usize,
    body: Buffer,
    timeout_ms: u64,
) -> u32 {
    let config = config(pointer);
    let mut callouts = lock(&config.callouts);
    if let Some(result) = callouts.refused_with {
        return result;
    }
    let number = callouts.made.len() as u64 + 1;
    let headers = texts(headers, headers_len);
    let (cluster, body) = (cluster.text(), body.text());
    callouts.made.push(Callout { number, cluster, headers, body, timeout_ms });
    callouts.pending.insert(number);
    if !callouts.never_time_out {
        config.time_out(number, Duration::from_millis(timeout_ms));
    }
    // SAFETY: the module's pointer is valid for the call.
    unsafe { *id = number };
    0
}
