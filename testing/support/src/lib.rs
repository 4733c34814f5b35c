//! Starts and stops the real parts that tests and the demo need: Redis, a Redis Cluster of six
//! nodes, the store, Envoy and an upstream. Talks to them over HTTP/1.1, HTTP/2 and TLS.
//!
//! Everything listens on loopback, keeps its files in a directory of its own, and ends when its
//! value is dropped. Nothing sleeps for a fixed time: conditions are polled until a deadline, and
//! an error carries the end of the process' log.

pub mod envoy;
pub mod hostile_store;
pub mod http;
pub mod model;
pub mod ports;
pub mod process;
pub mod redis;
pub mod store;
pub mod tls;
pub mod upstream;
pub mod wait;
pub mod xds;

pub use envoy::{access_log, edits, prometheus, yaml};
pub use http::{grpc, http2, jwt};
pub use quotagate_workspace::{paths, tools};
pub use redis::{cluster, resp, rights, sentinel};
