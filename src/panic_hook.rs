//! Kills the VM of one worker, for tests of the recovery. Only the feature `panic-hook` builds it.
//!
//! The released filter does not contain it: a test searches the filter for the header's name.

use crate::host;

/// A request that carries this header kills the VM that serves it.
const HEADER: &str = "x-quotagate-panic";

/// Panics if the request asks for it.
pub fn trip() {
    assert!(host::request_header(HEADER).is_none(), "quotagate: a request asked for a panic");
}
