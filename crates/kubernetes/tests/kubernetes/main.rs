//! The resource `QuotaPolicy` and the merge.

#![cfg(test)]

mod bounds;
mod cases;
mod definition;
mod merged;
mod merging;
mod scene;
mod traffic;
