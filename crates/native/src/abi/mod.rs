//! Envoy's dynamic module ABI, as far as the module uses it
//! (`source/extensions/dynamic_modules/abi/abi.h` of Envoy 1.38 to 1.40).
//!
//! `raw` declares it, [`host`] makes host calls safe, and `hooks` exports what Envoy calls. All
//! `unsafe` blocks of the crate are in this folder.

mod hooks;
pub mod host;
mod raw;

pub use host::{ConfigScheduler, FilterConfig, Handle, Host, Scheduler};
