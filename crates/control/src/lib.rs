//! Operating quotagate: what people do to a running store, and what they see of it.
//!
//! [`serve`] runs a store: proxies call one address, and operators ask the other one. [`operate`]
//! changes dials and runtime overrides and looks at counters, [`watch`] sees calls go by, [`api`]
//! is what the admin address takes and gives. Counting is the crate `quotagate-store`, which knows
//! nothing of this one.

mod admin;
pub mod api;
mod control;
mod listeners;
mod metrics;
pub mod operate;
mod serve;
pub mod watch;

pub use self::serve::{App, serve};
