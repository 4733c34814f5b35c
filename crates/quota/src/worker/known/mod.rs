//! What a worker knows of counters by itself.

pub(crate) mod clock;
mod expiring;
pub(crate) mod ledger;
pub(crate) mod local;
