//! End to end: real Envoy with the built filter, the built store, real Redis and Redis Cluster.
//!
//! Each case states a configuration, requests and the expected answers. `cargo xtask test` builds
//! the programs and runs the tests. If a program is missing, the test fails and says how to get it.

#[cfg(test)]
mod allowances;
#[cfg(test)]
mod answers;
#[cfg(test)]
mod around_the_filter;
#[cfg(test)]
mod bodies;
#[cfg(test)]
mod configuration;
#[cfg(test)]
mod counters;
#[cfg(test)]
mod dials;
#[cfg(test)]
mod disconnects;
#[cfg(test)]
mod failures;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod hostile_store;
#[cfg(test)]
mod identities;
#[cfg(test)]
mod identity_sources;
#[cfg(test)]
mod inner_limits;
#[cfg(test)]
mod inspect;
#[cfg(test)]
mod leases;
#[cfg(test)]
mod logins;
#[cfg(test)]
mod matching;
#[cfg(test)]
mod operators;
#[cfg(test)]
mod overrides;
#[cfg(test)]
mod parsers;
#[cfg(test)]
mod partitions;
#[cfg(test)]
mod peers;
#[cfg(test)]
mod policies;
#[cfg(test)]
mod protocols;
#[cfg(test)]
mod quotas;
#[cfg(test)]
mod redirects;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod server_names;
#[cfg(test)]
mod store_tls;
#[cfg(test)]
mod two_proxies;
#[cfg(test)]
mod vm_death;
#[cfg(test)]
mod windows;
