//! Why an operator's request fails.

use quotagate_store::store::StoreError;

/// Why an operator's request fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A field is wrong.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What is wrong with the value, and what is allowed.
        reason: String,
        /// The known names.
        known: Vec<String>,
    },
    /// Nothing has the name that a field gives.
    #[error("{reason}")]
    Unknown {
        /// The field.
        field: &'static str,
        /// What does not exist.
        reason: String,
        /// The known names.
        known: Vec<String>,
    },
    /// The thing to change or show does not exist.
    #[error("{0}")]
    Absent(String),
    /// A bound is reached.
    #[error("{0}")]
    Full(String),
    /// The thing to remove is still in use.
    #[error("{0}")]
    InUse(String),
    /// Every try met another change at the same time.
    #[error("other operators are changing it at the same time: try again")]
    Contended,
    /// The backend failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Fault {
    /// A field is wrong.
    pub fn invalid(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid { field, reason: reason.into(), known: Vec::new() }
    }
}
