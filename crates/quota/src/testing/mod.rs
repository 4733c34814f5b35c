//! Models that drive real workers in virtual time: [`exhaustive`] through all histories of small
//! worlds, [`invariants`] through random ones, [`timing`] to measure calls and waits.

mod exhaustive;
pub(crate) mod invariants;
mod timing;
