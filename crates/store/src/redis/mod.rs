//! Counters in Redis: one server, a primary behind Sentinel, or a Redis Cluster.
//!
//! The store sends a command once. It sends a reservation, or a command of an operator, again only
//! after an answer which proves that the server did not execute it. It never sends a refund again.

mod backend;
mod cluster;
mod control;
mod counting;
mod errors;
mod node;
mod routing;
mod script;
mod slots;

pub use self::backend::Redis;
pub(crate) use self::node::Target;
