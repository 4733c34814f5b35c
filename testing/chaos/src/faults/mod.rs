//! The faults, each with what may result from it.

mod clocks;
mod cluster;
mod envoys;
mod filters;
mod network;
mod redis;
mod skewed;
mod stores;
mod timeouts;

use crate::fault::Fault;

/// All of them, in the order of the report.
#[must_use]
pub fn all() -> Vec<Fault> {
    [
        stores::ALL,
        network::ALL,
        redis::ALL,
        cluster::ALL,
        skewed::ALL,
        clocks::ALL,
        envoys::ALL,
        filters::ALL,
        timeouts::ALL,
    ]
    .concat()
}

/// The fault of this name.
#[must_use]
pub fn named(name: &str) -> Option<Fault> {
    all().into_iter().find(|fault| fault.name == name)
}
