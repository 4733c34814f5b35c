//! The pure core of quotagate: policies, the counters of a request, the decisions of a worker, and
//! its calls to the store.
//!
//! Nothing here names a host: no Wasm ABI, no sockets, no clock, no globals. Time comes in as
//! [`time::Monotonic`], facts about a request through [`request::Request`], and what the host must
//! do goes out as values.
//!
//! The path of a request: [`config::Config::evaluate`] finds its counters, [`worker::Worker`]
//! decides or lets it wait for a call, and [`response`] writes what the client sees. The host's
//! adapter drives them through [`driver::Driver`].

pub mod access_log;
pub mod config;
pub mod decision;
mod document;
pub mod driver;
pub mod duration;
pub mod evaluate;
pub mod exchange;
pub mod request;
pub mod response;
pub mod stats;
#[cfg(test)]
mod testing;
pub mod time;
pub mod worker;
