//! Quotas as Kubernetes objects: the resource `QuotaPolicy`, and how the objects of all namespaces
//! become one policy document a domain.
//!
//! Nothing here reaches a cluster. Callers hand over objects and get documents:
//!
//! 1. [`Objects::add`] takes one object after another, and says what is wrong with one that it
//!    cannot read.
//! 2. [`merge`] makes the document of one [`Domain`], and says of each policy whether it was
//!    accepted, whether the document has it, and why not.
//! 3. [`status()`] writes that, and what became of the documents, as the status of an object.

mod merge;
mod objects;
mod resource;
mod status;

pub use merge::{Domain, Domains, MergedDocument, merge};
pub use objects::{ObjectName, Objects};
pub use resource::*;
pub use status::{
    CONTROLLER, DocumentProgress, DomainOutcome, PublishedNumber, StatusChange, StoreFault, status,
};
