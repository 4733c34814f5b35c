//! The native module: quotagate inside Envoy as a dynamic module.
//!
//! Only this crate knows Envoy's dynamic module ABI. Like the Wasm filter it turns Envoy's hooks
//! into events for [`quotagate_quota::driver::Driver`] and carries out its actions. It decides
//! nothing itself. Unlike the Wasm filter it holds the store's library, so that it needs no process
//! beside Envoy.
//!
//! | part | owns |
//! | --- | --- |
//! | `hooks` | what Envoy calls |
//! | `abi` | the declarations of the ABI, and host calls. All `unsafe` blocks are here and in `hooks` |
//! | `setup` | configurations: from a document to shards; per route |
//! | `stream` | one request, on its Envoy worker |
//! | `waiter` | what a shard knows of a stream: its state, and how to wake it |
//! | `facts` | the facts of a request and its response, read from Envoy |
//! | `redirects` | keeps the admission of a request between two passes of an internal redirect |
//! | `shard` | one Envoy worker's quotas: the driver of the pure core, who waits |
//! | `inbox` | what other threads report to a shard |
//! | `clock` | the clock of all shards |
//! | `runtime` | the two threads beside Envoy's: for calls to Redis, and for ticks |
//! | `documents` | published documents: each checked once for all shards |
//! | `link` | the way to the store: Redis, or Envoy's callouts to a sidecar |
//! | `metrics` | Envoy's counters, with labels |
//! | `log` | log lines, through Envoy |
//! | `panics` | what happens to a panic |
//! | `test_faults` | faults that tests ask for, in builds for tests only |
//!
//! # Threads
//!
//! An Envoy worker runs all hooks of its streams. It locks its own shard, and never waits for
//! anything else, except when it destroys a configuration whose callouts are pending. The runtime
//! thread and the tick thread only try to lock a shard. If they cannot, another thread holds it,
//! and empties the inbox before it leaves.

mod abi;
mod clock;
mod documents;
mod facts;
mod hooks;
mod inbox;
mod link;
mod log;
mod main_thread;
mod metrics;
mod panics;
mod redirects;
mod runtime;
mod setup;
mod shard;
mod stream;
#[cfg(feature = "test-faults")]
pub mod test_faults;
#[cfg(not(feature = "test-faults"))]
mod test_faults;
mod waiter;

#[cfg(feature = "test-faults")]
pub use runtime::stall;
