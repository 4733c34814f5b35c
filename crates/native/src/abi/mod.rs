//! Envoy's dynamic module ABI, as far as the module uses it
//! (`source/extensions/dynamic_modules/abi/abi.h` of Envoy 1.38 to 1.40).
//!
//! [`raw`] declares it. `host`, `headers`, `config` and [`process`] make calls to Envoy safe. All
//! `unsafe` blocks of the crate are in this folder, and in `hooks`, which exports what Envoy calls.

mod config;
mod headers;
mod host;
pub mod process;
pub mod raw;

pub use config::{ConfigScheduler, FilterConfig, NotStarted};
pub use headers::HeaderMap;
pub use host::{Handle, Host, Scheduler};
