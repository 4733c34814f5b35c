//! The filter: quotagate inside Envoy.
//!
//! Only this crate knows the proxy-wasm ABI. It turns Envoy's callbacks into events for
//! [`quotagate_quota::driver::Driver`] and carries out its actions. It decides nothing itself.
//!
//! - `entry`: the entry point of the module.
//! - `host`: host calls with every status handled; `headers`: header maps as the ABI serializes
//!   them.
//! - `call`: calls to the store.
//! - `facts`: the facts of a request, read from Envoy.
//! - `stream`: one request.
//! - `root`: the root context of one worker; `plugin`: what it shares with its streams.
//! - `good_documents`: what is in force while a document has faults.
//! - `redirects`: requests that Envoy redirected internally.
//! - `statistics`: Envoy's counters of decisions and calls.
//! - `panic_hook`: kills a VM, in builds for tests only.

mod call;
mod entry;
mod facts;
mod good_documents;
mod headers;
mod host;
#[cfg(feature = "panic-hook")]
mod panic_hook;
mod plugin;
mod process;
mod redirects;
mod root;
mod statistics;
mod stream;
