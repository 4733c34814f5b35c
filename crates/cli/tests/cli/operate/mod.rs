//! The operators' commands against a real store, in memory and on Redis: tables, JSON and exit
//! statuses.

mod controller;
mod dials;
mod documents;
mod domains;
mod failures;
pub mod fleet;
mod partitions;
mod terminal;
mod tokens;
