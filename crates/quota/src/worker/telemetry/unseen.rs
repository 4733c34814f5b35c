//! Identities whose verified token no request has had so far: mostly, `jwt_authn` does not keep it.

use crate::request::facts::IdentityId;
use crate::request::tokens::Tokens;

/// After so many requests without a token, each worker logs a line, once.
pub(super) const FIRST: u32 = 1_000;

/// How many requests each identity has seen until now, as long as none had a token.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unseen {
    /// Those that need no more counting: a request had a token, or the log has the line.
    settled: u64,
    /// Indexed by the number of the identity's bit: at most 64.
    requests: Vec<u32>,
    /// The indices of identities whose rounded numbers the log has named.
    rounded: u64,
}

impl Unseen {
    /// A request came. Returns the bits of identities whose first [`FIRST`] requests are over
    /// without a token.
    pub(crate) fn saw(&mut self, tokens: Tokens) -> u64 {
        self.settled |= tokens.found;
        let mut open = tokens.asked & !self.settled;
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
    pub(crate) fn saw_rounded(&mut self, tokens: Tokens) -> Option<IdentityId> {
        let IdentityId(index) = tokens.rounded?;
        let bit = 1_u64.checked_shl(u32::try_from(index).ok()?)?;
        let is_new = self.rounded & bit == 0;
        self.rounded |= bit;
        is_new.then_some(IdentityId(index))
    }
}
