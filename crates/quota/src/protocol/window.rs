//! Fixed windows: which one a moment falls into, and when it ends.

use std::time::Duration;

use sha2::{Digest, Sha256};

/// The longest window: 366 days, in seconds.
pub const MAX_WINDOW_S: u32 = 366 * 24 * 60 * 60;

/// A fixed window of whole seconds and the shift of its boundaries against the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Window {
    seconds: u32,
    offset: u32,
}

impl Window {
    /// A window of `seconds` (1 to [`MAX_WINDOW_S`]) shifted by `offset` seconds (less than
    /// `seconds`); `None` outside these bounds.
    pub const fn new(seconds: u32, offset: u32) -> Option<Self> {
        if seconds == 0 || seconds > MAX_WINDOW_S || offset >= seconds {
            None
        } else {
            Some(Self { seconds, offset })
        }
    }

    /// The same window, shifted so that the partitions of a policy do not all restart at the same
    /// moment. The shift is the first 8 bytes (big-endian) of the SHA-256 of the encoded
    /// `partition`, modulo the length.
    #[must_use]
    pub fn staggered(self, partition: &str) -> Self {
        let first =
            Sha256::digest(partition).first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        let offset = u32::try_from(first % u64::from(self.seconds)).unwrap_or_default();
        Self { offset, ..self }
    }

    /// Its length in seconds, 1 to [`MAX_WINDOW_S`].
    pub const fn seconds(self) -> u32 {
        self.seconds
    }

    /// The shift of its boundaries in seconds, less than its length.
    pub const fn offset(self) -> u32 {
        self.offset
    }

    /// Its length.
    pub const fn length(self) -> Duration {
        Duration::from_secs(self.seconds as u64)
    }

    /// The number of the window that `now` (since the Unix epoch) falls into:
    /// `floor((now + offset) / window)`.
    pub const fn number_at(self, now: Duration) -> u64 {
        now.as_secs().saturating_add(self.offset as u64) / self.seconds as u64
    }

    /// How long from `now` (since the Unix epoch) until the window of that moment ends: more than
    /// zero, at most the length.
    pub fn remaining_at(self, now: Duration) -> Duration {
        let end = self.number_at(now).saturating_add(1).saturating_mul(u64::from(self.seconds));
        Duration::from_secs(end.saturating_sub(u64::from(self.offset))).saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds() {
        assert!(Window::new(0, 0).is_none());
        assert!(Window::new(10, 10).is_none());
        assert!(Window::new(MAX_WINDOW_S, MAX_WINDOW_S - 1).is_some());
        assert!(Window::new(MAX_WINDOW_S + 1, 0).is_none());
    }

    #[test]
    fn windows_begin_at_multiples_of_their_length() {
        let w = Window::new(60, 0).unwrap();
        assert_eq!(w.number_at(Duration::from_millis(119_999)), 1);
        assert_eq!(w.remaining_at(Duration::from_millis(119_999)), Duration::from_millis(1));
        assert_eq!(w.number_at(Duration::from_secs(120)), 2);
        assert_eq!(w.remaining_at(Duration::from_secs(120)), Duration::from_secs(60));
    }

    #[test]
    fn partitions_are_staggered_as_the_contract_says() {
        // From another implementation: python3 -c "import hashlib as h, sys; p, w = sys.argv[1:];
        // print(int.from_bytes(h.sha256(p.encode()).digest()[:8], 'big') % int(w))" PARTITION
        // SECONDS
        for (partition, seconds, offset) in STAGGERED {
            let window = Window::new(seconds, 0).unwrap();
            assert_eq!(window.staggered(partition), Window { seconds, offset }, "{partition}");
        }
    }

    const STAGGERED: [(&str, u32, u32); 5] = [
        ("*", 60, 3),
        ("jwt.sub=alice", 60, 18),
        ("jwt.sub=alice", 31622400, 11149758),
        ("ip=192.0.2.7", 3600, 3532),
        ("-", 1, 0),
    ];

    #[test]
    fn an_offset_moves_the_boundaries_earlier() {
        let w = Window::new(60, 20).unwrap();
        assert_eq!(w.number_at(Duration::from_secs(99)), 1);
        assert_eq!(w.number_at(Duration::from_secs(100)), 2);
        assert_eq!(w.remaining_at(Duration::from_secs(99)), Duration::from_secs(1));
    }
}
