//! The native module against an Envoy of a few maps, with one thread for each Envoy worker.
//!
//! The real module runs, with its runtime thread and the memory store. The end-to-end tests cover
//! the real Envoy, and those of `crates/quota` what the driver decides. These tests cover how the
//! module translates one into the other, and what Envoy does rarely: calls within calls, lost
//! wakes, stalled threads. `cargo xtask sanitize` runs them under sanitizers.

#[cfg(test)]
mod answers;
#[cfg(test)]
mod callouts;
#[cfg(test)]
mod document;
#[cfg(test)]
mod facts;
#[cfg(test)]
mod held;
#[cfg(test)]
mod host;
#[cfg(test)]
mod mark;
#[cfg(test)]
mod panics;
#[cfg(test)]
mod routes;
#[cfg(test)]
mod settle;
#[cfg(test)]
mod threads;
#[cfg(test)]
mod wrong_documents;
