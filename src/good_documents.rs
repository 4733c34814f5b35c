//! The last good documents of this process, and the published documents that its filters took up,
//! in the host's shared data.
//!
//! Shared data outlives roots and VMs, and belongs to all VMs with the same `vm_id`. One key holds
//! all good documents, so that their number is bounded: the host cannot delete a key. Published
//! documents have a fixed number of keys, since every worker writes one after a swap. Each has a
//! small key beside it that says which document it holds.

use proxy_wasm::hostcalls;
use quotagate_quota::config::{
    Config, DocumentOwner, GoodDocuments, Inheritance, PublishedDocument, WrongDocument,
};

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

/// Keeps the published document that was taken up, for a later configuration of the same filter.
pub fn keep_published(domain: &str, document: &PublishedDocument) {
    let inheritance = Inheritance::new(filter(), domain);
    let (key, head_key) = published_keys(&inheritance);
    let head = inheritance.head(document);
    for _ in 0..TRIES {
        let (written, version) = hostcalls::get_shared_data(&head_key).unwrap_or_default();
        if written.is_some_and(|written| written == head) {
            return;
        }
        let Some(version) = version else {
            // The host compares no version of a key that is not there.
            if hostcalls::set_shared_data(&head_key, Some(&[]), None).is_err() {
                return;
            }
            continue;
        };
        let text = inheritance.written(document);
        if hostcalls::set_shared_data(&key, Some(&text), None).is_err() {
            // A later configuration begins with its embedded document.
            return;
        }
        // Of two workers that write at once, the one whose head comes second writes both again.
        if hostcalls::set_shared_data(&head_key, Some(&head), Some(version)).is_ok() {
            return;
        }
    }
}

/// The published document that this filter took up last in this domain.
pub fn published(domain: &str) -> Option<PublishedDocument> {
    let inheritance = Inheritance::new(filter(), domain);
    let (slot, _) = hostcalls::get_shared_data(&published_keys(&inheritance).0).ok()?;
    inheritance.read(&slot?)
}

/// The keys of the document and of its head.
fn published_keys(inheritance: &Inheritance) -> (String, String) {
    let key = format!("quotagate.published_document.{}", inheritance.slot());
    let head = format!("{key}.head");
    (key, head)
}

/// The documents, and the version of the host's data.
fn read() -> (GoodDocuments, Option<u32>) {
    let (text, version) = hostcalls::get_shared_data(KEY).unwrap_or_default();
    (GoodDocuments::read(&text.unwrap_or_default()), version)
}

fn owner() -> DocumentOwner {
    DocumentOwner::Filter(filter())
}

/// The name of this filter in Envoy's configuration.
fn filter() -> Box<str> {
    let name = host::property(&["plugin_name"]).unwrap_or_default();
    String::from_utf8_lossy(&name).into()
}
