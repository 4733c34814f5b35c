//! Faults under load, through real Envoys, stores and Redis: what clients see, what is lost, how
//! soon all is well.
//!
//! [`plan`] says how long, [`rig`] is what is broken, [`load`] what goes on meanwhile under the
//! policies of [`document`], [`relay`] the network between. [`fault`] injects one, [`faults`] are
//! all of them. [`audit`] counts units, [`primaries`] says who leads a cluster, [`footprint`]
//! memory and descriptors, [`findings`] judges, [`spared`] those whom a fault must not touch,
//! [`report`] is the table. [`crowd`] is an attack of its own.
//!
//! [`soak`] is load for minutes under rolling restarts.
//!
//! Everything runs on loopback with processes of its own, on free ports.

pub mod audit;
pub mod clock;
pub mod crowd;
pub mod document;
pub mod fault;
pub mod faults;
pub mod findings;
pub mod footprint;
pub mod load;
pub mod plan;
pub mod primaries;
pub mod relay;
pub mod report;
pub mod rig;
pub mod soak;
pub mod spared;
