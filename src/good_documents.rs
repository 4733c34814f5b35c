//! The last good documents of this process, in the host's shared data.
//!
//! Shared data outlives roots and VMs, and belongs to all VMs with the same `vm_id`. One key holds
//! all documents, so that their number is bounded: the host cannot delete a key.

use proxy_wasm::hostcalls;
use quotagate_quota::config::{
    Config, DocumentOwner, GoodDocuments, PublishedDocument, WrongDocument,
};

use crate::host;

const KEY: &str = "quotagate.good_documents";
/// How often a change is tried while other threads change the same documents.
const TRIES: usize = 8;

/// Keeps a good document, for the case that a wrong one follows.
pub fn keep(config: &Config, text: &[u8]) {
    keep_of(&DocumentOwner::Filter(filter()), config, text);
}

/// Keeps the published document that was taken up, for a later configuration of the same filter.
pub fn keep_published(config: &Config, document: &PublishedDocument) {
    keep_of(&DocumentOwner::Published(filter()), config, document.text().as_bytes());
}

fn keep_of(owner: &DocumentOwner, config: &Config, text: &[u8]) {
    for _ in 0..TRIES {
        let (mut documents, version) = read();
        if !documents.keep(owner, config, text) {
            return;
        }
        if hostcalls::set_shared_data(KEY, Some(&documents.written()), version).is_ok() {
            return;
        }
    }
}

/// The last good document that a wrong one would have replaced.
pub fn last(wrong: &WrongDocument) -> Option<String> {
    read().0.last(&DocumentOwner::Filter(filter()), wrong).map(str::to_owned)
}

/// The published document that this filter took up last in the domain of this document.
pub fn published(embedded: &[u8]) -> Option<PublishedDocument> {
    let owner = DocumentOwner::Published(filter());
    PublishedDocument::read(read().0.last(&owner, &WrongDocument::read(embedded))?)
}

/// The documents, and the version of the host's data.
fn read() -> (GoodDocuments, Option<u32>) {
    let (text, version) = hostcalls::get_shared_data(KEY).unwrap_or_default();
    (GoodDocuments::read(&text.unwrap_or_default()), version)
}

/// The name of this filter in Envoy's configuration.
fn filter() -> Box<str> {
    let name = host::property(&["plugin_name"]).unwrap_or_default();
    String::from_utf8_lossy(&name).into()
}
