//! The name of this process in reports.

use std::hash::{BuildHasher, RandomState};

use proxy_wasm::hostcalls;

/// In the host's shared data, which all VMs with the same `vm_id` have in common.
const KEY: &str = "quotagate.process";

/// The name, which the VMs of one `vm_id` share: 16 random hexadecimal digits. Envoy's main thread
/// makes it before any worker starts.
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
    let _ = hostcalls::set_shared_data(KEY, Some(id.as_bytes()), known().1);
    known().0.unwrap_or(id).into()
}
