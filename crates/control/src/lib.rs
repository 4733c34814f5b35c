//! Operating quotagate: what operators change in a running store, and what they see of it.
//!
//! [`serve()`] runs a store: proxies call one address, and operators use the other one. [`operate`]
//! changes dials and runtime overrides and reads counters. [`watch`] observes calls. [`api`]
//! defines the JSON of the admin address. The crate `quotagate-store` counts, and does not depend
//! on this one.

mod admin;
pub mod api;
mod control;
mod listeners;
mod metrics;
pub mod operate;
mod serve;
pub mod watch;

pub use self::serve::{App, serve};
