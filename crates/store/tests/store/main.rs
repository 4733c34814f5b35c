//! The store against its real backends, and its call endpoint over HTTP.

#![cfg(test)]

mod acl;
mod calls;
mod cluster;
mod common;
mod conformance;
mod differential;
mod drain;
mod gated;
mod http;
mod in_flight;
mod in_flight_agreement;
mod in_process;
mod jumps;
mod kinds;
mod latency;
mod lifetime;
mod recorded;
mod redirects;
mod redis;
mod rights;
mod server;
#[path = "../../../quota/src/worker/tests/slots/store.rs"]
#[allow(dead_code, reason = "the tests of the worker use the rest")]
mod slots_model;
mod undeclared;
