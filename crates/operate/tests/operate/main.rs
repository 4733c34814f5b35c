//! Operating over real backends.

#![cfg(test)]

#[path = "../../../store/tests/store/acl.rs"]
mod acl;
mod bounds;
mod calls;
mod cluster;
#[path = "../../../store/tests/store/common.rs"]
mod common;
mod documents;
mod fleet;
mod last;
mod lost;
mod operators;
mod overrides;
mod rights;
mod scale;
mod shapes;
mod slow;
mod suite;
