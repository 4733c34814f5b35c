//! Identities that the log warns of once: those whose verified token no request has had so far,
//! mostly because `jwt_authn` does not keep it, and those that read a number that Envoy rounded.

use crate::request::facts::IdentityId;
use crate::request::findings::IdentityFindings;

/// After so many requests without a token, each worker logs a line, once.
pub(super) const FIRST: u32 = 1_000;

/// Findings of identities so far, as much as the log needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdentityWatch {
    /// Bits of identities whose tokens need no more counting: a request had one, or the log has the
    /// line.
    settled: u64,
    /// Requests that each identity has seen without a token, by the number of its bit: at most 64.
    requests: Vec<u32>,
    /// Indices of identities whose rounded numbers the log has named, as bits.
    rounded: u64,
}

impl IdentityWatch {
    /// Counts a request. Returns the bits of identities whose first [`FIRST`] requests are over
    /// without a token.
    pub(crate) fn without_token(&mut self, findings: IdentityFindings) -> u64 {
        self.settled |= findings.found_token;
        let mut open = findings.asked_token & !self.settled;
        let mut over = 0;
        while open != 0 {
            let index = open.trailing_zeros() as usize;
            let bit = 1 << index;
            open &= !bit;
            if self.requests.len() <= index {
                self.requests.resize(index + 1, 0);
            }
            let Some(requests) = self.requests.get_mut(index) else { continue };
            *requests += 1;
            if *requests >= FIRST {
                over |= bit;
            }
        }
        self.settled |= over;
        over
    }

    /// The identity of a rounded number, when it is seen for the first time.
    pub(crate) fn newly_rounded(&mut self, findings: IdentityFindings) -> Option<IdentityId> {
        let IdentityId(index) = findings.rounded?;
        let bit = 1_u64.checked_shl(u32::try_from(index).ok()?)?;
        let is_new = self.rounded & bit == 0;
        self.rounded |= bit;
        is_new.then_some(IdentityId(index))
    }
}
