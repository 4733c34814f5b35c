//! What is known of a domain: its policies and dials, as read from the backend and as proxies
//! reported them to this process.

pub mod boards;
pub mod directory;
pub mod reports;
pub mod view;
pub mod views;
