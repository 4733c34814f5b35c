//! The last good documents of this process, in the host's shared data.
//!
//! Shared data outlives roots and VMs, and belongs to all VMs with the same `vm_id`. One key holds
//! all documents, so that their number is bounded: the host cannot delete a key.

use proxy_wasm::hostcalls;
use quotagate_quota::config::{Config, DocumentOwner, GoodDocuments, WrongDocument};

use crate::host;

const KEY: &str = "quotagate.good_documents";
/// How often a change is tried while other threads change the same documents.
const TRIES: usize = 8;

/// Keeps a good document, for the case that a wrong one follows.
pub fn keep(config: &Config, text: &[u8]) {
    let owner = owner();
    for _ in 0..TRIES {
        let (mut documents, version) = read();
        if !documents.keep(&owner, config, text) {
            return;
        }
        if hostcalls::set_shared_data(KEY, Some(&documents.written()), version).is_ok() {
            return;
        }
    }
}

/// The last good document that a wrong one would have replaced.
pub fn last(wrong: &WrongDocument) -> Option<String> {
    read().0.last(&owner(), wrong).map(str::to_owned)
}

/// The documents, and the version of the host's data.
fn read() -> (GoodDocuments, Option<u32>) {
    let (text, version) = hostcalls::get_shared_data(KEY).unwrap_or_default();
    (GoodDocuments::read(&text.unwrap_or_default()), version)
}

/// The name of this filter in Envoy's configuration.
fn owner() -> DocumentOwner {
    let name = host::property(&["plugin_name"]).unwrap_or_default();
    DocumentOwner::Filter(String::from_utf8_lossy(&name).into())
}
