//! The names of this process and of its workers in reports.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

use log::info;
use proxy_wasm::hostcalls;

/// In the host's shared data, which all VMs with the same `vm_id` have in common.
const KEY: &str = "quotagate.process";
/// The key of the next free index of a worker.
const WORKERS: &str = "quotagate.workers";
/// Attempts to take an index while other VMs do the same, before a VM reports 0.
const TRIES: usize = 64;

/// The name, which the VMs of one `vm_id` share: 16 random hexadecimal digits. Envoy's main thread
/// makes it before any worker starts, and logs it for operators who look for the proxy.
pub fn id() -> Box<str> {
    let known = || {
        let (id, version) = hostcalls::get_shared_data(KEY).unwrap_or_default();
        (id.and_then(|id| String::from_utf8(id).ok()), version)
    };
    if let (Some(id), _) = known() {
        return id.into();
    }
    let id = format!("{:016x}", RandomState::new().hash_one(KEY));
    // If another thread writes at the same time, the later name holds, and one report may have the
    // other one.
    let is_mine = hostcalls::set_shared_data(KEY, Some(id.as_bytes()), known().1).is_ok();
    let id = known().0.unwrap_or(id);
    if is_mine {
        info!("quotagate: the name of this proxy is {id}");
    }
    id.into()
}

/// The number of this VM among those of one `vm_id`, in the order in which they start: the VMs of
/// Envoy's workers, of its main thread, and those that it makes to try a configuration. One that
/// replaces another has a number of its own, so the numbers have gaps.
pub fn worker() -> u32 {
    static WORKER: OnceLock<u32> = OnceLock::new();
    *WORKER.get_or_init(|| (0..TRIES).find_map(|_| next_number()).unwrap_or_default())
}

/// The next number, unless another VM takes it at the same time.
fn next_number() -> Option<u32> {
    let (known, version) = hostcalls::get_shared_data(WORKERS).unwrap_or_default();
    let known = known.and_then(|text| String::from_utf8(text).ok()?.parse().ok());
    let number: u32 = known.unwrap_or_default();
    let next = number.checked_add(1)?.to_string();
    hostcalls::set_shared_data(WORKERS, Some(next.as_bytes()), version).ok().map(|()| number)
}
