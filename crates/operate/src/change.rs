//! What operators change, and the counters that they read: dials, runtime overrides, counters, the
//! list of domains. Every change has an entry in history.

pub mod counters;
pub mod dials;
pub mod domains;
pub mod history;
pub mod overrides;
pub mod shape;
