//! A call to the store: when it leaves, what it asks, who gets what it brought, and how it fails.

pub(crate) mod allocation;
pub(crate) mod batch;
pub(crate) mod breaker;
pub(crate) mod faults;
pub(crate) mod flight;
pub(crate) mod refunds;
