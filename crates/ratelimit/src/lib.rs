//! The rate limit service: it answers Envoy's rate limit protocol
//! (`envoy.service.ratelimit.v3.RateLimitService`) from the store of quotagate.
//!
//! [`rules`] reads the files of envoyproxy/ratelimit and finds the rules of a request.
//! [`xds`] takes rules from a server, and [`published`] from operators, through the store.
//! [`settings`] reads the environment variables of envoyproxy/ratelimit. [`counting`] counts the
//! requests of a domain.

pub mod counting;
pub mod domain;
pub mod files;
pub mod grpc;
pub mod headers;
pub mod health;
pub mod http;
mod json;
pub mod messages;
mod metadata;
pub mod metrics;
pub mod owed;
pub mod published;
pub mod rules;
pub mod serve;
pub mod service;
pub mod settings;
pub mod xds;
