//! A way to kill the VM of one worker: only built with the feature `panic-hook`, for tests of what
//! follows.
//!
//! The filter that people deploy does not hold it; a test looks for the header's name in it.

use crate::host;

/// A request that carries this header kills the VM that serves it.
const HEADER: &str = "x-quotagate-panic";

/// Panics if the request asks for it.
pub fn trip() {
    assert!(host::request_header(HEADER).is_none(), "quotagate: a request asked for a panic");
}
