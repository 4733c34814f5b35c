//! A fleet of proxies in virtual time: the product's own workers
//! ([`quotagate_quota::worker::Worker`]) against a simulated store, over a simulated network.
//!
//! [`setup`] says what is simulated, [`world`] runs it, [`traffic`] and [`network`] draw who asks
//! and what becomes of calls, [`store`] means what the store's script means, [`audit`] holds what
//! was admitted against the quotas, [`report`] is what came out. [`suite`] is the fleets that are
//! compared, [`pool`] runs them, and [`batching`] is the model of batching.
//!
//! What costs processor time in a real proxy, store or Redis costs none here, and the store's
//! latency does not grow with its load: the simulation counts commands, waiting in virtual time,
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
