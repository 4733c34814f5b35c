//! An Envoy in memory: its threads, configurations and streams, and the callbacks that the module
//! calls. It checks what the ABI demands: that a stream exists, that calls come on its own worker,
//! and that a request is resumed or answered once. A violation ends the process, because a panic
//! cannot cross the ABI.

mod abi;
mod callbacks;
mod config;
mod dispatcher;
mod streams;

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use abi::STOP_AND_WATERMARK;
pub use config::{Envoy, Route};
pub use streams::{AsEnvoy, Request, Stream};

/// The headers of a store that answers.
pub const OK: &[(&str, &str)] = &[(":status", "200"), ("x-envoy-upstream-service-time", "1")];

/// The lines that the module logged, in this process.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// The streams and configurations that exist, by their addresses.
static ALIVE: Mutex<Option<HashSet<usize>>> = Mutex::new(None);

/// Whether the module logged a line with all these words.
pub fn logged(words: &[&str]) -> bool {
    lock(&LOG).iter().any(|line| words.iter().all(|word| line.contains(word)))
}

/// Waits until `look` finds something, and returns it.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(40);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not so after 40 s");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The version of the ABI that the module returns when Envoy loads it. `None` if it refuses.
pub fn load() -> Option<String> {
    // SAFETY: the module returns null or a text that ends with NUL.
    unsafe {
        let version = abi::envoy_dynamic_module_on_program_init();
        (!version.is_null())
            .then(|| std::ffi::CStr::from_ptr(version).to_string_lossy().into_owned())
    }
}

fn is_alive(address: usize) -> bool {
    lock(&ALIVE).get_or_insert_default().contains(&address)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
