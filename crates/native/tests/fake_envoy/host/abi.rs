//! The hooks that the module exports, and the types that they share with the callbacks.

use std::ffi::{c_char, c_void};

pub type Ptr = *mut c_void;
pub type Module = *const c_void;
pub type Destroy = unsafe extern "C" fn(Ptr);

pub const CONTINUE: u32 = 0;
pub const STOP: u32 = 1;
pub const STOP_ALL_AND_WATERMARK: u32 = 4;
/// Of a body.
pub const STOP_AND_WATERMARK: u32 = 2;

/// Bytes, borrowed for one call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Buffer {
    pub ptr: *const u8,
    len: usize,
}

/// The name and the value of a header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Header {
    pub name: Buffer,
    pub value: Buffer,
}

impl Buffer {
    pub const fn new(bytes: &[u8]) -> Self {
        Self { ptr: bytes.as_ptr(), len: bytes.len() }
    }

    /// The bytes. They must be valid: the module passes them for the time of one call.
    pub fn bytes(self) -> Vec<u8> {
        if self.ptr.is_null() {
            return Vec::new();
        }
        // SAFETY: see above.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }.to_vec()
    }

    pub fn text(self) -> String {
        String::from_utf8(self.bytes()).expect("UTF-8")
    }
}

/// The module's list.
pub fn list<T: Copy>(first: *const T, len: usize) -> Vec<T> {
    if len == 0 {
        return Vec::new();
    }
    // SAFETY: the module passes a list that is valid for the time of one call.
    unsafe { std::slice::from_raw_parts(first, len) }.to_vec()
}

unsafe extern "C" {
    pub fn envoy_dynamic_module_on_program_init() -> *const c_char;
    pub fn envoy_dynamic_module_on_http_filter_config_new(
        config: Ptr,
        name: Buffer,
        document: Buffer,
    ) -> Module;
    pub fn envoy_dynamic_module_on_http_filter_config_destroy(module: Module);
    pub fn envoy_dynamic_module_on_http_filter_per_route_config_new(
        name: Buffer,
        document: Buffer,
    ) -> Module;
    pub fn envoy_dynamic_module_on_http_filter_per_route_config_destroy(module: Module);
    pub fn envoy_dynamic_module_on_http_filter_new(module: Module, filter: Ptr) -> Module;
    pub fn envoy_dynamic_module_on_http_filter_request_headers(
        filter: Ptr,
        module: Module,
        end: bool,
    ) -> u32;
    pub fn envoy_dynamic_module_on_http_filter_request_body(
        filter: Ptr,
        module: Module,
        end: bool,
    ) -> u32;
    pub fn envoy_dynamic_module_on_http_filter_request_trailers(filter: Ptr, module: Module)
    -> u32;
    pub fn envoy_dynamic_module_on_http_filter_response_body(
        filter: Ptr,
        module: Module,
        end: bool,
    ) -> u32;
    pub fn envoy_dynamic_module_on_http_filter_response_headers(
        filter: Ptr,
        module: Module,
        end: bool,
    ) -> u32;
    pub fn envoy_dynamic_module_on_http_filter_response_trailers(
        filter: Ptr,
        module: Module,
    ) -> u32;
    pub fn envoy_dynamic_module_on_http_filter_stream_complete(filter: Ptr, module: Module);
    pub fn envoy_dynamic_module_on_http_filter_destroy(module: Module);
    pub fn envoy_dynamic_module_on_http_filter_scheduled(filter: Ptr, module: Module, event: u64);
    pub fn envoy_dynamic_module_on_http_filter_config_scheduled(
        config: Ptr,
        module: Module,
        event: u64,
    );
    pub fn envoy_dynamic_module_on_http_filter_config_http_callout_done(
        config: Ptr,
        module: Module,
        number: u64,
        result: u32,
        headers: *const Header,
        headers_len: usize,
        chunks: *const Buffer,
        chunks_len: usize,
    );
}
