//! The filter: quotagate inside Envoy.
//!
//! This crate alone knows the proxy-wasm ABI. It turns host callbacks into events for
//! [`quotagate_quota::worker::Worker`] and carries out what comes back; it decides nothing itself.
//!
//! - `entry`: where the host comes in.
//! - `host`: the host calls, each with every status handled; `headers`: header maps as the host writes them.
//! - `facts`: what a request is, read from the host.
//! - `stream`: one request; `waiting`: the same, as the root finds it when its call returns.
//! - `root`: the root context of one worker; `plugin`: what it shares with its streams.
//! - `redirects`: requests that Envoy serves again after an internal redirect.
//! - `statistics`: Envoy's counters of what was decided.
//! - `panic_hook`: kills a VM, in builds for tests only.

mod entry;
mod facts;
mod headers;
mod host;
#[cfg(feature = "panic-hook")]
mod panic_hook;
mod plugin;
mod redirects;
mod root;
mod statistics;
mod stream;
mod waiting;
