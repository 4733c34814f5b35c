//! The resource `QuotaPolicy` and the merge.

#![cfg(test)]

mod cases;
mod definition;
mod merging;
mod scene;
