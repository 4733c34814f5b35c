//! Why operators' wishes are refused.

use quotagate_store::store::StoreError;

/// Why a wish is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A field is wrong.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What is wrong with it, and what is allowed.
        reason: String,
        /// Names that could have been meant.
        known: Vec<String>,
    },
    /// Nothing has the name that a field gives.
    #[error("{reason}")]
    Unknown {
        /// The field.
        field: &'static str,
        /// What is not there.
        reason: String,
        /// Names that could have been meant.
        known: Vec<String>,
    },
    /// What is to be changed or shown is not there.
    #[error("{0}")]
    Absent(String),
    /// A bound is reached.
    #[error("{0}")]
    Full(String),
    /// What is to be removed is still in use.
    #[error("{0}")]
    InUse(String),
    /// Others changed it at the same time, again and again.
    #[error("others change it at the same time: try again")]
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
