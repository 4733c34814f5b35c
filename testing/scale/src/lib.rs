//! A fleet of proxies in virtual time: the product's own workers
//! ([`quotagate_quota::worker::Worker`]) against a simulated store, over a simulated network.
//!
//! [`setup`] describes a run and [`world`] runs it. [`traffic`] draws the requests and [`network`]
//! the fate of calls. [`store`] does what the store's script does, [`audit`] compares the admitted
//! units with the quotas, and [`report`] has the results. [`suite`] lists the fleets that are
//! compared, [`pool`] runs them, and [`batching`] is the model of batching.
//!
//! Work that costs processor time in a real proxy, store or Redis is free here, and the store's
//! latency does not grow with its load. The simulation counts commands, waiting in virtual time,
//! memory and admitted units.

pub mod audit;
pub mod batching;
pub mod heap;
pub mod network;
pub mod pool;
pub mod report;
pub mod setup;
pub mod store;
pub mod suite;
pub mod traffic;
pub mod waits;
pub mod world;
