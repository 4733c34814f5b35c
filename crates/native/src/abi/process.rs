//! Calls about the whole process.

use std::ffi::CStr;
use std::sync::OnceLock;

use super::raw::{self, Buffer};

/// The number of Envoy's workers. Call it on the main thread.
pub fn concurrency() -> usize {
    // SAFETY: no arguments.
    usize::try_from(unsafe { raw::envoy_dynamic_module_callback_get_concurrency() })
        .unwrap_or_default()
        .max(1)
}

/// Whether Envoy only validates its configuration. Call it on the main thread.
pub fn only_validates() -> bool {
    // SAFETY: no arguments.
    unsafe { raw::envoy_dynamic_module_callback_is_validation_mode() }
}

/// Writes a line to Envoy's log, at one of Envoy's levels.
pub fn log(level: u32, line: &str) {
    // SAFETY: the pointer is valid for the call, and Envoy's log takes lines from any thread.
    unsafe { raw::envoy_dynamic_module_callback_log(level, Buffer::new(line.as_bytes())) }
}

/// Whether Envoy writes lines of this level.
pub fn logs(level: u32) -> bool {
    // SAFETY: no pointers.
    unsafe { raw::envoy_dynamic_module_callback_log_enabled(level) }
}

/// The first callback that this Envoy lacks.
pub fn missing_callback() -> Option<&'static CStr> {
    raw::CALLBACKS.iter().copied().find(|name| !exists(name))
}

/// Whether this Envoy keeps a module's objects in filter state.
pub(super) fn keeps_objects() -> bool {
    static KEEPS: OnceLock<bool> = OnceLock::new();
    *KEEPS.get_or_init(|| raw::OBJECTS.iter().all(|name| exists(name)))
}

/// Whether this Envoy lets a module change the limit of a stream's buffer.
pub(super) fn has_buffer_limit() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| raw::BUFFER_LIMIT.iter().all(|name| exists(name)))
}

/// Whether this Envoy lets a module count on the main thread, without a stream.
pub fn counts_without_stream() -> bool {
    static COUNTS: OnceLock<bool> = OnceLock::new();
    *COUNTS.get_or_init(|| exists(raw::CONFIG_COUNTER))
}

fn exists(name: &CStr) -> bool {
    // SAFETY: the name ends with a NUL; null stands for all libraries of the process.
    unsafe { !raw::dlsym(std::ptr::null_mut(), name.as_ptr()).is_null() }
}
