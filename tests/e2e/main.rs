//! End to end: real Envoy with the built filter, the built store, real Redis and Redis Cluster.
//!
//! Each case states a configuration, requests and the expected answers. `cargo xtask test` builds
//! the programs and runs the tests. If a program is missing, the test fails and says how to get it.

#![cfg(test)]

mod allowances;
mod answers;
mod around_the_filter;
mod bodies;
mod configuration;
mod counters;
mod dials;
mod disconnects;
mod documents;
mod failures;
mod fleet;
mod gateway;
mod hostile;
mod hostile_store;
mod hot_restart;
mod identities;
mod identity_sources;
mod in_flight;
mod inner_limits;
mod inspect;
mod leases;
mod live;
mod load;
mod logins;
mod mark;
mod matching;
mod operators;
mod overrides;
mod parsers;
mod partitions;
mod peers;
mod per_route;
mod policies;
mod protocols;
mod quotas;
mod rate_limit_service;
mod redirects;
mod rig;
mod server_names;
mod settle;
mod store_tls;
mod two_proxies;
mod updates;
mod versions;
mod vm_death;
mod window_borders;
mod windows;
mod wrong_documents;
