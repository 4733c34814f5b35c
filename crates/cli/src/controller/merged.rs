//! What a pass makes of the objects, for the documents and the statuses.

use std::collections::BTreeMap;

use quotagate_kubernetes::{MergedDocument, ObjectName};

use super::documents::DocumentWish;

/// What the objects make.
pub(super) struct MergedObjects {
    /// Of each domain, in the order of the configuration.
    pub(super) domains: Vec<MergedDomain>,
    /// Objects that cannot be read, and why.
    pub(super) unreadable: BTreeMap<ObjectName, String>,
}

/// What the objects make of a domain.
pub(super) struct MergedDomain {
    pub(super) document: MergedDocument,
    /// What should be published.
    pub(super) wish: DocumentWish,
    /// Of what the document says of each object. Equal ones are the same.
    pub(super) fingerprints: BTreeMap<ObjectName, u64>,
}
