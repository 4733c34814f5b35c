//! Why a store URL is refused.

/// Why a store URL is refused. Never shows the URL, which may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store URL {0}")]
pub struct UrlError(pub(super) String);

impl UrlError {
    /// An error that reads "the store URL `fault`".
    pub(super) fn new(fault: &str) -> Self {
        Self(fault.to_owned())
    }
}
