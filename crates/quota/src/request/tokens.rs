//! Which identities looked for a verified token in a request, which found one, and which found a
//! number that Envoy has rounded.

use super::facts::IdentityId;

/// A set of identities that read verified tokens, each by its bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Those that looked for a claim.
    pub(crate) asked: u64,
    /// Those of them that found one.
    pub(crate) found: u64,
    /// An identity that found a number above 2^53 - 1, which counts as missing.
    pub(crate) rounded: Option<IdentityId>,
}

impl Tokens {
    /// With what the identity of this bit saw. 0 stands for an identity that is not watched.
    pub(crate) fn with(self, bit: u64, found: bool) -> Self {
        Self { asked: self.asked | bit, found: self.found | if found { bit } else { 0 }, ..self }
    }
}
