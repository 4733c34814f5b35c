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

use anyhow::Result;
use quotagate_support::envoy::Form;

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

/// Those that the form of this run can suffer.
///
/// # Errors
/// When the form of the run is unknown.
pub fn of_run() -> Result<Vec<Fault>> {
    let form = Form::of_run()?;
    Ok(all().into_iter().filter(|fault| fault.only.is_none_or(|only| only == form)).collect())
}

/// The fault of this name.
#[must_use]
pub fn named(name: &str) -> Option<Fault> {
    all().into_iter().find(|fault| fault.name == name)
}
