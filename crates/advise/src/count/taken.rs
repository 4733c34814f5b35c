//! Units of one user in one window.

/// Units of one user in one window, or a part of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// A hash of the user's name, evenly spread.
    pub(crate) user: u64,
    /// The number of the window since the Unix epoch.
    pub(crate) window: u32,
    /// The units; 4,294,967,295 means that many or more.
    pub(crate) units: u32,
}

impl Taken {
    /// The hash for a table by user and window.
    pub(super) fn hash(&self) -> u64 {
        spread(self.user ^ u64::from(self.window).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// A hash in which every bit depends on all bits of the number: in a sample, the lowest bits of all
/// users are equal.
pub(super) fn spread(number: u64) -> u64 {
    let product = u128::from(number) * 0xa076_1d64_78bd_642f;
    (product >> 64) as u64 ^ product as u64
}
