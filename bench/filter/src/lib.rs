//! Wasm filters that decide nothing, for `cargo xtask bench` to compare with.
//!
//! With the configuration `{}` the filter exists and does nothing. With `{"host_calls": true}` it
//! makes the host calls that the filter makes for a request with units in its lease, with values of
//! the same length, and computes nothing.

#![allow(missing_docs)]

use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, BufferType, ContextType, LogLevel, MapType};

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|_| Box::new(Root { makes_calls: false }));
}}

/// The quota headers of the families `ietf` and `x_ratelimit`.
const HEADERS: [(&str, &str); 6] = [
    ("ratelimit-policy", "\"per-user\";q=1000000000;w=3600"),
    ("ratelimit", "\"per-user\";r=999876543;t=1234"),
    ("x-ratelimit-limit", "1000000000"),
    ("x-ratelimit-used", "123456"),
    ("x-ratelimit-remaining", "999876543"),
    ("x-ratelimit-reset", "1795352400"),
];

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn proxy_get_header_map_pairs(map: u32, data: *mut *mut u8, size: *mut usize) -> u32;
}

unsafe extern "C" {
    /// Exported by the SDK.
    fn proxy_on_request_headers(context_id: u32, headers: usize, end: bool) -> u32;
}

/// The build gives this function to the host as `proxy_on_request_headers`, as it does with that of
/// the filter.
#[unsafe(no_mangle)]
pub extern "C" fn quotagate_on_request_headers(context_id: u32, headers: usize, end: bool) -> u32 {
    // SAFETY: the SDK's own export, called as the host calls it.
    unsafe { proxy_on_request_headers(context_id, headers, end) }
}

struct Root {
    makes_calls: bool,
}

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, size: usize) -> bool {
        let text = hostcalls::get_buffer(BufferType::PluginConfiguration, 0, size);
        let text = text.ok().flatten().unwrap_or_default();
        self.makes_calls = text.windows(10).any(|word| word == b"host_calls");
        true
    }

    fn create_http_context(&self, _id: u32) -> Option<Box<dyn HttpContext>> {
        Some(if self.makes_calls { Box::new(HostCalls) } else { Box::new(Nothing) })
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

struct Nothing;

impl Context for Nothing {}

impl HttpContext for Nothing {}

struct HostCalls;

impl Context for HostCalls {}

impl HttpContext for HostCalls {
    fn on_http_request_headers(&mut self, _headers: usize, _end: bool) -> Action {
        read_time();
        read_request_headers();
        Action::Continue
    }

    fn on_http_response_headers(&mut self, _headers: usize, _end: bool) -> Action {
        for (name, _) in HEADERS {
            let _ = hostcalls::get_map_value_bytes(MapType::HttpResponseHeaders, name);
        }
        read_time();
        read_time();
        for (name, value) in HEADERS {
            let _ = hostcalls::add_map_value(MapType::HttpResponseHeaders, name, value);
        }
        Action::Continue
    }
}

fn read_time() {
    std::hint::black_box(std::time::Instant::now());
}

fn read_request_headers() {
    let map = MapType::HttpRequestHeaders;
    let (mut data, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the pointers are valid for the call; on success the host hands over a buffer of
    // `size` bytes that it took from this module's allocator, with that capacity.
    unsafe {
        let status = proxy_get_header_map_pairs(map as u32, &raw mut data, &raw mut size);
        if status == 0 && !data.is_null() {
            drop(Vec::from_raw_parts(data, size, size));
        }
    }
}
