//! The list `access_log`: the fields that the filter writes for access logs.

use crate::document::{Distinct, Words, words};

words! {
    /// A field for access logs, as filter state of the request.
    pub enum LogField {
        /// `quotagate.decision`: what happened to the request.
        Decision = "decision",
        /// `quotagate.policy`: the name of the policy that decided.
        Policy = "policy",
        /// `quotagate.partition`: the partition of that policy's counter, with digests for secrets.
        Partition = "partition",
        /// `quotagate.used`: the used units of that policy's quota.
        Used = "used",
    }
}

/// The fields of a document, each at most once.
pub(super) type LogFields = Distinct<LogField, 0, { LogField::COUNT }>;

impl LogField {
    const COUNT: usize = Self::WORDS.len();

    /// The names of all fields, as documents list them.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::WORDS.iter().map(|(name, _)| *name)
    }
}
