//! The host's side of the proxy-wasm ABI: the imports that the filter calls.

use std::slice;

use quotagate_protocol::dials::TELEMETRY_PATH;

use crate::host::{Answer, FETCHES, HOST, Host, QUEUE, ROOT, host};

unsafe extern "C" {
    /// Exported by the filter: allocates memory for data from the host.
    fn proxy_on_memory_allocate(size: usize) -> *mut u8;
}

const OK: u32 = 0;
const NOT_FOUND: u32 = 1;
const BAD_ARGUMENT: u32 = 2;
const EMPTY: u32 = 7;
const CAS_MISMATCH: u32 = 8;
const INTERNAL_FAILURE: u32 = 10;

/// The map of a request's headers.
const REQUEST: u32 = 0;
/// The map of a response's headers.
const RESPONSE: u32 = 2;
/// The map of a response's trailers.
const TRAILERS: u32 = 3;

/// Changes the host of this thread during a call of the filter, and counts the call.
fn called<T>(f: impl FnOnce(&mut Host) -> T) -> T {
    host(|h| {
        h.made += 1;
        f(h)
    })
}

unsafe fn bytes<'a>(data: *const u8, size: usize) -> &'a [u8] {
    if size == 0 { &[] } else { unsafe { slice::from_raw_parts(data, size) } }
}

unsafe fn text(data: *const u8, size: usize) -> String {
    String::from_utf8_lossy(unsafe { bytes(data, size) }).into_owned()
}

/// Reads a header map: the count, the sizes of names and values, then names and values with a NUL
/// after each.
fn pairs(map: &[u8]) -> Vec<(String, String)> {
    let size =
        |index: usize| u32::from_le_bytes(map[4 * index..][..4].try_into().unwrap()) as usize;
    let count = size(0);
    let mut rest = &map[4 + 8 * count..];
    let mut take = |size: usize| {
        let (part, after) = rest.split_at(size);
        rest = after.strip_prefix(&[0]).expect("a NUL");
        String::from_utf8(part.to_vec()).expect("text")
    };
    let pairs = (0..count).map(|i| (take(size(1 + 2 * i)), take(size(2 + 2 * i)))).collect();
    assert!(rest.is_empty(), "{rest:?}");
    pairs
}

unsafe fn hand_over(value: &[u8], data: *mut *mut u8, size: *mut usize) {
    unsafe {
        let copy = proxy_on_memory_allocate(value.len());
        copy.copy_from_nonoverlapping(value.as_ptr(), value.len());
        (*data, *size) = (copy, value.len());
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_log(_level: u32, data: *const u8, size: usize) -> u32 {
    let line = unsafe { text(data, size) };
    println!("{line}");
    // A panic is logged too, possibly while the host is in use.
    HOST.with(|h| h.try_borrow_mut().map(|mut h| h.log.push(line)).ok());
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_set_effective_context(id: u32) -> u32 {
    called(|h| {
        if h.dead.contains(&id) {
            return BAD_ARGUMENT;
        }
        h.active = id;
        OK
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_get_buffer_bytes(
    kind: u32,
    start: usize,
    most: usize,
    data: *mut *mut u8,
    size: *mut usize,
) -> u32 {
    const REQUEST_BODY: u32 = 0;
    const RESPONSE_BODY: u32 = 1;
    const CALL_RESPONSE: u32 = 4;
    let buffer = called(|h| match kind {
        REQUEST_BODY | RESPONSE_BODY => h.body.clone(),
        CALL_RESPONSE => h.reply.1.clone(),
        _ => h.configuration.clone(),
    });
    let end = buffer.len().min(start + most);
    unsafe { hand_over(&buffer[start.min(end)..end], data, size) };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_get_header_map_value(
    map: u32,
    name: *const u8,
    name_size: usize,
    data: *mut *mut u8,
    size: *mut usize,
) -> u32 {
    let name = unsafe { text(name, name_size) };
    let value = called(|h| match map {
        REQUEST => {
            h.header_fetches.0 += 1;
            h.request_headers
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| value.clone())
        }
        RESPONSE if name == ":status" => Some(h.status.to_string().into_bytes()),
        RESPONSE => h
            .upstream_headers
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value.clone()),
        TRAILERS => h.trailers.get(&name).map(|value| value.clone().into_bytes()),
        _ if name == "x-envoy-upstream-service-time" => (!h.answers_itself).then(|| b"1".to_vec()),
        _ => Some(h.reply.0.to_string().into_bytes()),
    });
    match value {
        Some(value) => unsafe { hand_over(&value, data, size) },
        None => return NOT_FOUND,
    }
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_get_header_map_pairs(
    map: u32,
    data: *mut *mut u8,
    size: *mut usize,
) -> u32 {
    let map = called(|h| {
        h.header_fetches.1 += 1;
        let mut headers = match map {
            REQUEST => h.request_headers.clone(),
            TRAILERS => h
                .trailers
                .iter()
                .map(|(name, value)| (name.clone(), value.clone().into_bytes()))
                .collect(),
            _ => h.upstream_headers.clone(),
        };
        if ![REQUEST, TRAILERS].contains(&map) {
            headers.insert(0, (":status".into(), h.status.to_string().into_bytes()));
        }
        let number = |n: usize| (n as u32).to_le_bytes();
        let mut map = number(headers.len()).to_vec();
        for (name, value) in &headers {
            map.extend([number(name.len()), number(value.len())].concat());
        }
        for (name, value) in &headers {
            map.extend([name.as_bytes(), b"\0", value, b"\0"].concat());
        }
        map
    });
    unsafe { hand_over(&map, data, size) };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_remove_header_map_value(
    map: u32,
    name: *const u8,
    name_size: usize,
) -> u32 {
    assert_eq!(map, REQUEST);
    let name = unsafe { text(name, name_size) };
    called(|h| h.request_headers.retain(|(known, _)| *known != name));
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_add_header_map_value(
    map: u32,
    name: *const u8,
    name_size: usize,
    value: *const u8,
    value_size: usize,
) -> u32 {
    assert_eq!(map, RESPONSE);
    let (name, value) = unsafe { (text(name, name_size), text(value, value_size)) };
    called(|h| {
        let is_upstreams = h.upstream_headers.iter().any(|(known, _)| *known == name);
        assert!(!is_upstreams, "a header that the response has is replaced: {name}");
        h.response_headers.insert(name, value);
    });
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_replace_header_map_value(
    map: u32,
    name: *const u8,
    name_size: usize,
    value: *const u8,
    value_size: usize,
) -> u32 {
    let (name, value) = unsafe { (text(name, name_size), text(value, value_size)) };
    called(|h| {
        if map == REQUEST {
            h.request_headers.retain(|(known, _)| *known != name);
            h.request_headers.push((name, value.into_bytes()));
        } else {
            h.response_headers.insert(name, value);
        }
    });
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_get_property(
    path: *const u8,
    path_size: usize,
    data: *mut *mut u8,
    size: *mut usize,
) -> u32 {
    let path = unsafe { text(path, path_size) }.replace('\0', ".");
    match called(|h| h.properties.get(&path).cloned()) {
        Some(Ok(value)) => unsafe { hand_over(&value, data, size) },
        Some(Err(status)) => return status,
        None => return NOT_FOUND,
    }
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_set_property(
    path: *const u8,
    path_size: usize,
    value: *const u8,
    value_size: usize,
) -> u32 {
    let (path, value) = unsafe { (text(path, path_size), text(value, value_size)) };
    called(|h| h.filter_state.insert((h.active, path), value));
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_call_foreign_function(
    name: *const u8,
    name_size: usize,
    argument: *const u8,
    argument_size: usize,
    _result: *mut *mut u8,
    _result_size: *mut usize,
) -> u32 {
    let (name, argument) = unsafe { (text(name, name_size), text(argument, argument_size)) };
    if name == "clear_route_cache" {
        assert!(argument.is_empty());
        called(|h| h.route_clears += 1);
        return OK;
    }
    assert_eq!(name, "declare_property");
    host(|h| {
        assert_eq!(h.active, ROOT, "only the root may declare filter state");
        h.declared.push(argument);
    });
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_define_metric(
    _kind: u32,
    name: *const u8,
    name_size: usize,
    id: *mut u32,
) -> u32 {
    let name = unsafe { text(name, name_size) };
    called(|h| {
        unsafe { *id = h.metrics.len() as u32 };
        h.metrics.push((name, 0));
    });
    OK
}

#[unsafe(no_mangle)]
extern "C" fn proxy_increment_metric(id: u32, offset: i64) -> u32 {
    called(|h| h.metrics[id as usize].1 += offset);
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_http_call(
    _upstream: *const u8,
    _upstream_size: usize,
    headers: *const u8,
    headers_size: usize,
    body: *const u8,
    body_size: usize,
    _trailers: *const u8,
    _trailers_size: usize,
    _timeout: u32,
    token: *mut u32,
) -> u32 {
    called(|h| {
        if h.refuse_calls {
            return INTERNAL_FAILURE;
        }
        let headers = pairs(unsafe { bytes(headers, headers_size) });
        let is_fetch =
            |(name, value): &(String, String)| name == ":path" && value.starts_with(TELEMETRY_PATH);
        if headers.iter().any(is_fetch) {
            assert_eq!(h.active, ROOT, "a fetch must belong to the root");
            unsafe { *token = FETCHES + h.fetches.len() as u32 };
            h.fetches.push((headers, unsafe { bytes(body, body_size) }.to_vec()));
            return OK;
        }
        h.calls.push((h.active, unsafe { bytes(body, body_size) }.to_vec()));
        h.call_headers = headers;
        unsafe { *token = h.calls.len() as u32 };
        OK
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_continue_stream(_kind: u32) -> u32 {
    called(|h| h.resumed.push(h.active));
    OK
}

#[unsafe(no_mangle)]
extern "C" fn proxy_done() -> u32 {
    called(|h| {
        assert_eq!(h.active, ROOT);
        h.done = true;
    });
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_send_local_response(
    status: u32,
    details: *const u8,
    details_size: usize,
    body: *const u8,
    body_size: usize,
    headers: *const u8,
    headers_size: usize,
    grpc_status: i32,
) -> u32 {
    let (details, body) = unsafe { (text(details, details_size), text(body, body_size)) };
    let headers = pairs(unsafe { bytes(headers, headers_size) });
    called(|h| {
        h.answered.push((h.active, status));
        h.answer = Answer { headers, body, details, grpc_status };
    });
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_set_tick_period_milliseconds(period: u32) -> u32 {
    called(|h| h.ticking = period > 0);
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_register_shared_queue(
    _name: *const u8,
    _size: usize,
    id: *mut u32,
) -> u32 {
    unsafe { *id = QUEUE };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_enqueue_shared_queue(
    _queue: u32,
    _data: *const u8,
    _size: usize,
) -> u32 {
    called(|h| {
        if h.queue_is_gone {
            return NOT_FOUND;
        }
        h.messages += 1;
        OK
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_dequeue_shared_queue(
    _queue: u32,
    _data: *mut *mut u8,
    _size: *mut usize,
) -> u32 {
    called(|h| {
        let left = h.messages.checked_sub(1);
        h.messages = left.unwrap_or(0);
        if left.is_some() { OK } else { EMPTY }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_get_shared_data(
    key: *const u8,
    key_size: usize,
    data: *mut *mut u8,
    size: *mut usize,
    version: *mut u32,
) -> u32 {
    let key = unsafe { text(key, key_size) };
    match called(|h| h.shared_data.get(&key).cloned()) {
        Some((value, known)) => unsafe {
            hand_over(&value, data, size);
            *version = known;
        },
        None => return NOT_FOUND,
    }
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_set_shared_data(
    key: *const u8,
    key_size: usize,
    value: *const u8,
    value_size: usize,
    version: u32,
) -> u32 {
    let (key, value) = unsafe { (text(key, key_size), bytes(value, value_size).to_vec()) };
    called(|h| {
        let (data, known) = h.shared_data.entry(key).or_default();
        // Another thread may write first.
        if let Some(theirs) = h.written_meanwhile.take() {
            (*data, *known) = (theirs, *known + 1);
        }
        if version != 0 && version != *known {
            return CAS_MISMATCH;
        }
        (*data, *known) = (value, *known + 1);
        OK
    })
}

/// Host calls that the SDK links but the filter must not make.
macro_rules! not_called {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> u32 {
            eprintln!("the filter made the host call {}", stringify!($name));
            std::process::abort()
        }
    )*};
}

not_called! {
    proxy_cancel_grpc_call proxy_cancel_grpc_stream proxy_close_grpc_stream proxy_close_stream
    proxy_get_current_time_nanoseconds
    proxy_get_log_level proxy_get_metric proxy_get_status
    proxy_grpc_call proxy_grpc_cancel proxy_grpc_close proxy_grpc_send proxy_grpc_stream
    proxy_record_metric proxy_resolve_shared_queue proxy_set_buffer_bytes
    proxy_set_header_map_pairs
}
