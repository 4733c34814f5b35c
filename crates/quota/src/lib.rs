//! The pure core of quotagate: what a quota is, whom a request counts for, what a worker knows, and
//! what it asks the store.
//!
//! Nothing here names a host: no Wasm ABI, no sockets, no clock, no globals. Time comes in as
//! [`time::Monotonic`], facts about a request through [`request::Request`], and what is to be done
//! goes out as values.
//!
//! A request's way: [`config::Config::evaluate`] finds the counters that it takes units of,
//! [`worker::Worker`] decides or lets it wait for a call, [`response`] writes what the client sees.

pub mod access_log;
pub mod answered;
pub mod config;
pub mod decision;
mod document;
pub mod duration;
pub mod evaluate;
pub mod protocol;
pub mod request;
pub mod response;
pub mod stats;
#[cfg(test)]
mod testing;
pub mod time;
pub mod worker;
