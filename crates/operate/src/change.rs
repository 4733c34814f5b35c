//! What operators change, and the counters that they read: dials, runtime overrides, documents,
//! counters, the list of domains. Every change has an entry in history, with its author.

pub mod author;
pub mod counters;
mod current;
pub mod dials;
pub mod document_content;
pub mod document_replies;
pub mod documents;
pub mod domains;
pub mod expiry;
pub mod folder;
pub mod history;
pub mod overrides;
mod parties;
mod remarks;
pub mod shape;
