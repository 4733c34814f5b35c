//! Models that drive real workers in virtual time: [`exhaustive`] through all histories of small
//! worlds, and [`invariants`] through random ones.

mod exhaustive;
pub(crate) mod invariants;
