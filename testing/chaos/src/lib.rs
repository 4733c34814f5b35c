//! Faults under load, through real Envoys, stores and Redis: what clients see, what is lost, and
//! how soon the system recovers.
//!
//! [`plan`] says how long. [`rig`] is the system, [`load`] the requests under the policies of
//! [`document`], [`relay`] the network between Envoys and stores, [`namespace`] one whose packets
//! can be dropped. [`fault`] injects one of the [`faults`]. [`audit`] counts units, [`primaries`]
//! finds the primaries of a cluster, [`footprint`] reads memory and descriptors. [`findings`]
//! judges the result, [`spared`] the requests that a fault must not affect, and [`report`] writes
//! the table. [`crowd`] is an attack of its own.
//!
//! [`soak`] runs load for minutes under rolling restarts.
//!
//! Everything runs on loopback, in processes of its own and on free ports.

pub mod audit;
pub mod crowd;
pub mod document;
pub mod fault;
pub mod faults;
pub mod findings;
pub mod footprint;
mod judge;
pub mod load;
pub mod namespace;
pub mod plan;
pub mod primaries;
pub mod relay;
pub mod report;
pub mod rig;
pub mod soak;
pub mod spared;
