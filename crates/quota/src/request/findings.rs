//! Findings of identities in a request that the log is about: verified tokens, and numbers that
//! Envoy has rounded.

use super::facts::IdentityId;

/// Findings of all identities in one request. A set has the bit of each identity that reads
/// verified tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdentityFindings {
    /// Set of those that looked for a claim of a verified token.
    pub(crate) asked_token: u64,
    /// Set of those of them that found one.
    pub(crate) found_token: u64,
    /// An identity that found a number above 2^53 - 1, which counts as missing.
    pub(crate) rounded: Option<IdentityId>,
}

impl IdentityFindings {
    /// Adds whether the identity of this bit found a verified token. 0 stands for an identity that
    /// is not watched.
    pub(crate) fn with_token(self, bit: u64, found: bool) -> Self {
        Self {
            asked_token: self.asked_token | bit,
            found_token: self.found_token | if found { bit } else { 0 },
            ..self
        }
    }
}
