//! The filter: quotagate inside Envoy.
//!
//! This crate alone knows the proxy-wasm ABI. It turns host callbacks into events for
//! [`quotagate_quota::worker::Worker`] and carries out what comes back; it decides nothing itself.
//!
//! - `entry`: where the host comes in.
//! - `host`: the host calls, each with every status handled.
//! - `facts`: what a request is, read from the host.
//! - `stream`: one request.
//! - `root`: one worker's plugin: owns the calls, answers those who wait.

mod entry;
mod facts;
mod host;
mod root;
mod stream;
