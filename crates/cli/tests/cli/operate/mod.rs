//! The operators' commands against the real store, in memory and in Redis: their tables, their JSON, their exit statuses.

mod dials;
mod domains;
mod failures;
mod fleet;
mod partitions;
mod terminal;
