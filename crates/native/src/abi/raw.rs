//! The declarations. Names, types and numbers are Envoy's.

use std::ffi::c_void;
use std::marker::PhantomData;

/// The version of the ABI that the module was written for. Envoy logs a warning for another one.
pub const ABI_VERSION: &std::ffi::CStr = c"v0.2.0";

/// A pointer to Envoy's side of a filter.
pub type FilterPtr = *mut c_void;
/// A pointer to Envoy's side of a filter configuration.
pub type ConfigPtr = *mut c_void;
/// A pointer to the module's side of a filter or a configuration.
pub type ModulePtr = *const c_void;
/// A pointer to a scheduler, owned by the module.
pub type SchedulerPtr = *mut c_void;

/// Bytes of Envoy's or of the module's, borrowed for one call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Buffer<'a> {
    ptr: *const u8,
    len: usize,
    bytes: PhantomData<&'a [u8]>,
}

/// The name and the value of a header.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    pub name: Buffer<'a>,
    pub value: Buffer<'a>,
}

/// Header maps.
pub mod header_map {
    pub const REQUEST: u32 = 0;
    pub const RESPONSE: u32 = 2;
    pub const RESPONSE_TRAILERS: u32 = 3;
}

/// Attributes.
pub mod attribute {
    pub const REQUEST_ID: u32 = 9;
    pub const RESPONSE_CODE_DETAILS: u32 = 16;
    pub const SOURCE_ADDRESS: u32 = 24;
    pub const REQUESTED_SERVER_NAME: u32 = 30;
    pub const SUBJECT_PEER_CERTIFICATE: u32 = 33;
    pub const DNS_SAN_PEER_CERTIFICATE: u32 = 35;
    pub const URI_SAN_PEER_CERTIFICATE: u32 = 37;
    pub const ROUTE_NAME: u32 = 61;
}

/// What a hook for headers returns.
pub mod headers_status {
    pub const CONTINUE: u32 = 0;
    /// The filter answers, or waits for the body.
    pub const STOP: u32 = 1;
    /// The filter waits. After [`STOP`] the first piece of a body would go on.
    pub const STOP_ALL_AND_WATERMARK: u32 = 4;
}

/// What a hook for a body or for trailers returns.
pub mod body_status {
    pub const CONTINUE: u32 = 0;
    /// Envoy holds it, and reads no more than its buffers take.
    pub const STOP_AND_WATERMARK: u32 = 2;
    /// The filter has answered.
    pub const STOP_NO_BUFFER: u32 = 3;
}

/// What a hook for trailers returns.
pub mod trailers_status {
    pub const CONTINUE: u32 = 0;
    pub const STOP: u32 = 1;
}

/// Bodies: the piece that has just come.
pub mod body {
    pub const RECEIVED_REQUEST: u32 = 0;
    pub const RECEIVED_RESPONSE: u32 = 2;
}

/// The metadata that filters wrote for the request.
pub const DYNAMIC_METADATA: u32 = 0;
/// The result of a call about metrics that succeeded.
pub const METRIC_OK: u32 = 0;

/// The life span of filter state that outlasts the stream, but not its request.
pub const LIVES_AS_LONG_AS_REQUEST: u32 = 1;

/// The result of starting a callout.
pub mod callout {
    pub const STARTED: u32 = 0;
    pub const NO_CLUSTER: u32 = 2;
}

/// The result of a callout that got an answer.
pub const CALLOUT_ANSWERED: u32 = 0;

impl<'a> Buffer<'a> {
    pub const EMPTY: Self = Self { ptr: std::ptr::null(), len: 0, bytes: PhantomData };

    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { ptr: bytes.as_ptr(), len: bytes.len(), bytes: PhantomData }
    }

    /// How many bytes there are.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// The bytes.
    ///
    /// # Safety
    /// The pointer must be valid for `'a`, or null.
    pub unsafe fn bytes(self) -> &'a [u8] {
        if self.ptr.is_null() {
            return &[];
        }
        // SAFETY: not null, and valid by the caller's contract.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }
}

macro_rules! callbacks {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        unsafe extern "C" {
            $($(#[$doc])* pub fn $name($($argument: $type),*) $(-> $result)?;)*
        }

        /// The callbacks that the module needs.
        pub const CALLBACKS: &[&std::ffi::CStr] = &[
            $(match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            },)*
        ];
    };
}

callbacks! {
    fn envoy_dynamic_module_callback_log(level: u32, message: Buffer<'_>);
    fn envoy_dynamic_module_callback_log_enabled(level: u32) -> bool;
    fn envoy_dynamic_module_callback_get_concurrency() -> u32;
    fn envoy_dynamic_module_callback_is_validation_mode() -> bool;
    fn envoy_dynamic_module_callback_http_filter_config_define_counter(
        config: ConfigPtr,
        name: Buffer<'_>,
        labels: *const Buffer<'_>,
        labels_len: usize,
        id: *mut usize,
    ) -> u32;
    fn envoy_dynamic_module_callback_http_filter_increment_counter(
        filter: FilterPtr,
        id: usize,
        labels: *const Buffer<'_>,
        labels_len: usize,
        value: u64,
    ) -> u32;
    fn envoy_dynamic_module_callback_http_get_header(
        filter: FilterPtr,
        map: u32,
        name: Buffer<'_>,
        value: *mut Buffer<'_>,
        index: usize,
        count: *mut usize,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_headers_size(filter: FilterPtr, map: u32) -> usize;
    fn envoy_dynamic_module_callback_http_get_headers(
        filter: FilterPtr,
        map: u32,
        headers: *mut Header<'_>,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_add_header(
        filter: FilterPtr,
        map: u32,
        name: Buffer<'_>,
        value: Buffer<'_>,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_set_header(
        filter: FilterPtr,
        map: u32,
        name: Buffer<'_>,
        value: Buffer<'_>,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_clear_route_cache(filter: FilterPtr);
    fn envoy_dynamic_module_callback_http_get_body_chunks_size(
        filter: FilterPtr,
        body: u32,
    ) -> usize;
    fn envoy_dynamic_module_callback_http_get_body_chunks(
        filter: FilterPtr,
        body: u32,
        chunks: *mut Buffer<'_>,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_send_response(
        filter: FilterPtr,
        status: u32,
        headers: *const Header<'_>,
        headers_len: usize,
        body: Buffer<'_>,
        details: Buffer<'_>,
    );
    fn envoy_dynamic_module_callback_http_get_metadata_string(
        filter: FilterPtr,
        source: u32,
        namespace: Buffer<'_>,
        key: Buffer<'_>,
        value: *mut Buffer<'_>,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_metadata_number(
        filter: FilterPtr,
        source: u32,
        namespace: Buffer<'_>,
        key: Buffer<'_>,
        value: *mut f64,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_metadata_bool(
        filter: FilterPtr,
        source: u32,
        namespace: Buffer<'_>,
        key: Buffer<'_>,
        value: *mut bool,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_metadata_keys_count(
        filter: FilterPtr,
        source: u32,
        namespace: Buffer<'_>,
    ) -> usize;
    fn envoy_dynamic_module_callback_http_set_filter_state_bytes(
        filter: FilterPtr,
        key: Buffer<'_>,
        value: Buffer<'_>,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_filter_state_bytes(
        filter: FilterPtr,
        key: Buffer<'_>,
        value: *mut Buffer<'_>,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_filter_get_attribute_string(
        filter: FilterPtr,
        attribute: u32,
        value: *mut Buffer<'_>,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_filter_continue_decoding(filter: FilterPtr);
    fn envoy_dynamic_module_callback_http_filter_get_worker_index(filter: FilterPtr) -> u32;
    fn envoy_dynamic_module_callback_get_most_specific_route_config(
        filter: FilterPtr,
    ) -> ModulePtr;
    fn envoy_dynamic_module_callback_http_filter_scheduler_new(filter: FilterPtr) -> SchedulerPtr;
    fn envoy_dynamic_module_callback_http_filter_scheduler_commit(
        scheduler: SchedulerPtr,
        event: u64,
    );
    fn envoy_dynamic_module_callback_http_filter_scheduler_delete(scheduler: SchedulerPtr);
    fn envoy_dynamic_module_callback_http_filter_config_scheduler_new(
        config: ConfigPtr,
    ) -> SchedulerPtr;
    fn envoy_dynamic_module_callback_http_filter_config_scheduler_commit(
        scheduler: SchedulerPtr,
        event: u64,
    );
    fn envoy_dynamic_module_callback_http_filter_config_scheduler_delete(scheduler: SchedulerPtr);
    fn envoy_dynamic_module_callback_http_filter_config_http_callout(
        config: ConfigPtr,
        id: *mut u64,
        cluster: Buffer<'_>,
        headers: *const Header<'_>,
        headers_len: usize,
        body: Buffer<'_>,
        timeout_ms: u64,
    ) -> u32;
}

/// Callbacks that Envoy has from 1.39 on.
pub const OBJECTS: [&std::ffi::CStr; 2] = [
    c"envoy_dynamic_module_callback_http_set_filter_state_object",
    c"envoy_dynamic_module_callback_http_get_filter_state_object",
];

/// A callback that Envoy has from 1.39 on.
pub const CONFIG_COUNTER: &std::ffi::CStr =
    c"envoy_dynamic_module_callback_http_filter_config_increment_counter";

/// Callbacks about the buffer of a stream. The module can run without them.
pub const BUFFER_LIMIT: [&std::ffi::CStr; 2] = [
    c"envoy_dynamic_module_callback_http_get_buffer_limit",
    c"envoy_dynamic_module_callback_http_set_buffer_limit",
];

unsafe extern "C" {
    pub fn envoy_dynamic_module_callback_http_get_buffer_limit(filter: FilterPtr) -> u64;
    pub fn envoy_dynamic_module_callback_http_set_buffer_limit(filter: FilterPtr, limit: u64);
    pub fn envoy_dynamic_module_callback_http_filter_config_increment_counter(
        config: ConfigPtr,
        id: usize,
        labels: *const Buffer<'_>,
        labels_len: usize,
        value: u64,
    ) -> u32;
    pub fn envoy_dynamic_module_callback_http_set_filter_state_object(
        filter: FilterPtr,
        key: Buffer<'_>,
        object: *mut c_void,
        destroy: unsafe extern "C" fn(*mut c_void),
        life_span: u32,
    ) -> bool;
    pub fn envoy_dynamic_module_callback_http_get_filter_state_object(
        filter: FilterPtr,
        key: Buffer<'_>,
    ) -> *mut c_void;

    /// The dynamic linker's: where a symbol of the process is.
    pub fn dlsym(handle: *mut c_void, name: *const std::ffi::c_char) -> *mut c_void;
}
