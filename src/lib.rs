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
//! - `statistics`: Envoy's counters of what was decided.

mod entry;
mod facts;
mod headers;
mod host;
mod plugin;
mod root;
mod statistics;
mod stream;
mod waiting;
