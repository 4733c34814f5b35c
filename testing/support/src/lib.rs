//! Starts and stops the real parts that tests and the demo need: Redis, a Redis Cluster of six
//! nodes, the store, Envoy, an upstream; and talks to them over HTTP/1.1, HTTP/2 and TLS.
//!
//! Everything listens on loopback, keeps its files in a directory of its own, and ends when its
//! value is dropped. Nothing sleeps for a fixed time: what has to become true is polled, with a
//! deadline, and an error carries the end of the process' log.

pub mod access_log;
pub mod cluster;
pub mod edits;
pub mod envoy;
pub mod hostile_store;
pub mod http;
pub mod http2;
pub mod jwt;
mod message;
pub mod ports;
pub mod process;
pub mod prometheus;
pub mod redis;
pub mod resp;
pub mod rights;
pub mod store;
pub mod tls;
pub mod upstream;
pub mod wait;
pub mod yaml;

pub use quotagate_workspace::{paths, tools};
