//! The pure core of quotagate: what a quota is, whom a request counts for, what a worker knows, and what
//! it asks the store.
//!
//! Nothing here names a host: no Wasm ABI, no sockets, no clock, no globals. Time comes in as
//! [`time::Monotonic`], facts about a request through a trait, and what is to be done goes out as values.

pub mod window;
pub mod wire;
