//! A clock that jumps, for one process: a library that is loaded before the C library
//! (`LD_PRELOAD`) and adds seconds to the result of `gettimeofday`. Redis uses that clock for
//! `TIME`, windows and times to live.
//!
//! `QUOTAGATE_CLOCK` names a file that holds the seconds; without a file or a number nothing is
//! added. All other clocks stay the system's, also those for timeouts.

use std::ffi::{c_int, c_void};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fs};

/// As C's `struct timeval` on 64-bit Linux.
#[repr(C)]
pub struct Time {
    seconds: i64,
    microseconds: i64,
}

/// C's `gettimeofday`.
///
/// # Safety
/// `time` is null or points to a `struct timeval`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gettimeofday(time: *mut Time, _zone: *mut c_void) -> c_int {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(now.as_secs()).unwrap_or_default().saturating_add(ahead());
    if !time.is_null() {
        // SAFETY: the caller says so.
        unsafe { time.write(Time { seconds, microseconds: i64::from(now.subsec_micros()) }) };
    }
    0
}

fn ahead() -> i64 {
    let text = env::var_os("QUOTAGATE_CLOCK").and_then(|file| fs::read_to_string(file).ok());
    text.and_then(|text| text.trim().parse().ok()).unwrap_or_default()
}
