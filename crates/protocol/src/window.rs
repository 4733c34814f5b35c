//! Windows: which one a moment falls into, and when it ends.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::lenient::Lenient;
use super::reserve::HOLDING;

/// The longest window that is not a calendar window: 366 days, in seconds.
pub const MAX_WINDOW_S: u32 = 366 * DAY_S;
/// The longest calendar window, in seconds: a leap year, and a day more because a time zone may
/// change its rules.
pub const MAX_CALENDAR_S: u32 = MAX_WINDOW_S + DAY_S;
/// How many slices a sliding window is cut into.
pub const SLICES: u32 = 20;
/// The longest name of a time zone, in bytes.
pub const MAX_TIME_ZONE: usize = 64;

const DAY_S: u32 = 24 * 60 * 60;

/// The window of a counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Window {
    /// Windows of one length, one after the other.
    Fixed(Fixed),
    /// The time before now.
    Sliding(Sliding),
    /// Windows of a calendar.
    Calendar(Calendar),
    /// No window: units are slots, which live requests hold.
    InFlight,
}

/// A fixed window of whole seconds and the shift of its boundaries against the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fixed {
    seconds: u32,
    offset: u32,
}

/// The last seconds before now, in [`SLICES`] slices of equal length.
///
/// Every slice that overlaps the window counts, the oldest one in full. So no interval of the
/// window's length holds grants of more than the quota, and a unit becomes free at most one slice
/// late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sliding {
    seconds: u32,
}

/// A window that begins with a unit of the calendar. Only the store knows when: the filter knows no
/// time zones.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calendar {
    /// What the window is.
    pub unit: Unit,
    /// The IANA name of its time zone, such as `Europe/Berlin`, at most [`MAX_TIME_ZONE`] bytes.
    pub time_zone: Arc<str>,
}

/// A unit of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day, from local midnight. It may have 23 or 25 hours.
    Day,
    /// A week, from Monday.
    Week,
    /// A month, from its first day.
    Month,
    /// A year, from the first of January.
    Year,
}

/// What kind of window a message means. The length is beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", from = "Lenient<Known>")]
pub enum Kind {
    /// Windows of one length.
    #[default]
    Fixed,
    /// The time before now.
    Sliding,
    /// Windows of a calendar, without a length of their own.
    Calendar(Calendar),
    /// Slots, which have no window.
    InFlight,
    /// A kind of a newer version, or a calendar with a field of a newer version. It is no window:
    /// an item that carries it fails, and nothing is counted by another rule than its sender means.
    Unknown,
}

/// The kinds that this version knows.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Known {
    Fixed,
    Sliding,
    Calendar(Calendar),
    InFlight,
}

impl From<Lenient<Known>> for Kind {
    fn from(read: Lenient<Known>) -> Self {
        match read.known() {
            Some(Known::Fixed) => Self::Fixed,
            Some(Known::Sliding) => Self::Sliding,
            Some(Known::Calendar(calendar)) => Self::Calendar(calendar),
            Some(Known::InFlight) => Self::InFlight,
            None => Self::Unknown,
        }
    }
}

impl Window {
    /// A fixed window of `seconds` (1 to [`MAX_WINDOW_S`]) shifted by `offset` seconds (less than
    /// `seconds`); `None` outside these bounds.
    pub const fn new(seconds: u32, offset: u32) -> Option<Self> {
        match Fixed::new(seconds, offset) {
            Some(fixed) => Some(Self::Fixed(fixed)),
            None => None,
        }
    }

    /// The window that a message describes; `None` outside the bounds.
    pub fn of(kind: &Kind, seconds: u32, offset: u32) -> Option<Self> {
        match kind {
            Kind::Fixed => Self::new(seconds, offset),
            Kind::Sliding if offset == 0 => Sliding::new(seconds).map(Self::Sliding),
            Kind::Calendar(calendar) if (seconds, offset) == (0, 0) && calendar.is_named() => {
                Some(Self::Calendar(calendar.clone()))
            }
            Kind::InFlight if (seconds, offset) == (0, 0) => Some(Self::InFlight),
            Kind::Sliding | Kind::Calendar(_) | Kind::InFlight | Kind::Unknown => None,
        }
    }

    /// What [`of`](Self::of) makes this window of: its kind, its length and its shift in seconds.
    pub fn parts(&self) -> (Kind, u32, u32) {
        match self {
            Self::Fixed(Fixed { seconds, offset }) => (Kind::Fixed, *seconds, *offset),
            Self::Sliding(Sliding { seconds }) => (Kind::Sliding, *seconds, 0),
            Self::Calendar(calendar) => (Kind::Calendar(calendar.clone()), 0, 0),
            Self::InFlight => (Kind::InFlight, 0, 0),
        }
    }

    /// The same window, shifted for this partition if windows of this kind can be.
    #[must_use]
    pub fn staggered(&self, partition: &str) -> Self {
        match self {
            Self::Fixed(fixed) => Self::Fixed(fixed.staggered(partition)),
            Self::Sliding(_) | Self::Calendar(_) | Self::InFlight => self.clone(),
        }
    }

    /// Its length in seconds, 1 to [`MAX_CALENDAR_S`]. For a calendar window: the longest that it
    /// can be. For slots: how long a worker holds them without saying so again.
    pub const fn seconds(&self) -> u32 {
        match self {
            Self::InFlight => HOLDING.as_secs() as u32,
            Self::Fixed(fixed) => fixed.seconds,
            Self::Sliding(sliding) => sliding.seconds,
            Self::Calendar(calendar) => calendar.unit.longest_s(),
        }
    }

    /// Its length. For a calendar window: the longest that it can be.
    pub const fn length(&self) -> Duration {
        Duration::from_secs(self.seconds() as u64)
    }

    /// Its length in seconds, as far as that is known without a store: a calendar window has the
    /// length that most of its kind have.
    pub const fn usual_s(&self) -> u32 {
        match self {
            Self::Calendar(calendar) => calendar.unit.usual_s(),
            Self::Fixed(_) | Self::Sliding(_) | Self::InFlight => self.seconds(),
        }
    }

    /// The longest that the store may say until units return, in milliseconds. Used slices may be
    /// up to a window ahead of a clock that went back, and each returns a window and a slice later.
    pub const fn longest_reset_ms(&self) -> u64 {
        match self {
            Self::Sliding(sliding) => sliding.slice_ms() * (2 * SLICES as u64 + 1),
            Self::Fixed(_) | Self::Calendar(_) | Self::InFlight => self.seconds() as u64 * 1000,
        }
    }
}

impl From<Fixed> for Window {
    fn from(fixed: Fixed) -> Self {
        Self::Fixed(fixed)
    }
}

impl Fixed {
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
        let offset =
            u32::try_from(digest(partition).0 % u64::from(self.seconds)).unwrap_or_default();
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

    /// The number of the window that `now` (since the Unix epoch) falls into:
    /// `floor((now + offset) / window)`.
    pub const fn number_at(self, now: Duration) -> u64 {
        now.as_secs().saturating_add(self.offset as u64) / self.seconds as u64
    }

    /// When window `number` begins, in seconds since the Unix epoch. The first window may begin
    /// before it; then this is 0.
    pub fn start_of(self, number: u64) -> u64 {
        number.saturating_mul(u64::from(self.seconds)).saturating_sub(u64::from(self.offset))
    }

    /// How long from `now` (since the Unix epoch) until the window of that moment ends: more than
    /// zero, at most the length.
    pub fn remaining_at(self, now: Duration) -> Duration {
        let end = self.start_of(self.number_at(now).saturating_add(1));
        Duration::from_secs(end).saturating_sub(now)
    }
}

impl Sliding {
    /// A sliding window of `seconds` (1 to [`MAX_WINDOW_S`]); `None` outside these bounds.
    pub const fn new(seconds: u32) -> Option<Self> {
        if seconds == 0 || seconds > MAX_WINDOW_S { None } else { Some(Self { seconds }) }
    }

    /// Its length in seconds, 1 to [`MAX_WINDOW_S`].
    pub const fn seconds(self) -> u32 {
        self.seconds
    }

    /// The length of a slice in milliseconds: a multiple of 50.
    pub const fn slice_ms(self) -> u64 {
        self.seconds as u64 * 1000 / SLICES as u64
    }

    /// The number of the slice that `now` (since the Unix epoch) falls into.
    pub const fn slice_at(self, now: Duration) -> u64 {
        now.as_millis() as u64 / self.slice_ms()
    }
}

impl Calendar {
    /// Whether the name of its time zone can be one.
    fn is_named(&self) -> bool {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"_+-/".contains(&b);
        (1..=MAX_TIME_ZONE).contains(&self.time_zone.len()) && self.time_zone.bytes().all(allowed)
    }
}

impl Kind {
    /// Whether it is the kind that messages leave out.
    pub const fn is_fixed(&self) -> bool {
        matches!(self, Self::Fixed)
    }
}

impl Unit {
    /// All of them, the shortest first.
    pub const ALL: [Self; 6] =
        [Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// Its name in policy documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// The unit of this name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name() == name)
    }

    /// The seconds that it mostly has.
    const fn usual_s(self) -> u32 {
        match self {
            Self::Minute => 60,
            Self::Hour => 60 * 60,
            Self::Day => DAY_S,
            Self::Week => 7 * DAY_S,
            Self::Month => 31 * DAY_S,
            Self::Year => 365 * DAY_S,
        }
    }

    /// The most seconds that it can have: an hour longer than usual if clocks go back, and a day
    /// longer if a zone changes its rules.
    const fn longest_s(self) -> u32 {
        match self {
            Self::Minute => 60,
            Self::Hour => 3 * 60 * 60,
            Self::Day => 2 * DAY_S,
            Self::Week => 8 * DAY_S,
            Self::Month => 32 * DAY_S,
            Self::Year => MAX_CALENDAR_S,
        }
    }
}

/// The first 64 bits of a partition's SHA-256, and the next ones.
fn digest(partition: &str) -> (u64, u64) {
    let digest = Sha256::digest(partition);
    let (first, rest) = digest.split_at(size_of::<u64>());
    let number = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    (number(first), number(rest))
}

/// Which hundredth of all partitions, or of all proxies, this one belongs to: 0 to 99. Other bits
/// than those of [`Fixed::staggered`] decide, so that the windows of a share do not begin together.
pub fn share_of(partition: &str) -> u64 {
    digest(partition).1 % 100
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds() {
        assert!(Fixed::new(0, 0).is_none());
        assert!(Fixed::new(10, 10).is_none());
        assert!(Fixed::new(MAX_WINDOW_S, MAX_WINDOW_S - 1).is_some());
        assert!(Fixed::new(MAX_WINDOW_S + 1, 0).is_none());
        assert!(Sliding::new(0).is_none() && Sliding::new(MAX_WINDOW_S + 1).is_none());
        let calendar =
            |zone: &str| Kind::Calendar(Calendar { unit: Unit::Day, time_zone: zone.into() });
        for (kind, seconds, offset, is_window) in [
            (Kind::Sliding, 60, 0, true),
            (Kind::Sliding, 60, 1, false),
            (calendar("Europe/Berlin"), 0, 0, true),
            (calendar("Etc/GMT+1"), 0, 0, true),
            (calendar("Europe/Berlin"), 60, 0, false),
            (Kind::InFlight, 0, 0, true),
            (Kind::InFlight, 60, 0, false),
            (calendar(""), 0, 0, false),
            (calendar("a b"), 0, 0, false),
            (calendar(&"a".repeat(MAX_TIME_ZONE + 1)), 0, 0, false),
        ] {
            let window = Window::of(&kind, seconds, offset);
            assert_eq!(window.is_some(), is_window, "{kind:?}");
            if let Some(window) = window {
                assert_eq!(window.parts(), (kind, seconds, offset));
            }
        }
    }

    #[test]
    fn windows_begin_at_multiples_of_their_length() {
        let w = Fixed::new(60, 0).unwrap();
        assert_eq!(w.number_at(Duration::from_millis(119_999)), 1);
        assert_eq!(w.remaining_at(Duration::from_millis(119_999)), Duration::from_millis(1));
        assert_eq!(w.number_at(Duration::from_secs(120)), 2);
        assert_eq!(w.remaining_at(Duration::from_secs(120)), Duration::from_secs(60));
        assert_eq!((w.start_of(2), w.start_of(0)), (120, 0));
    }

    #[test]
    fn slices_are_a_twentieth_of_the_window() {
        let w = Sliding::new(1).unwrap();
        assert_eq!(w.slice_ms(), 50);
        assert_eq!(w.slice_at(Duration::from_millis(149)), 2);
        assert_eq!(w.slice_at(Duration::from_millis(150)), 3);
        assert_eq!(Window::Sliding(w).longest_reset_ms(), 41 * 50);
    }

    #[test]
    fn partitions_are_staggered_as_the_contract_says() {
        // From another implementation: python3 -c "import hashlib as h, sys; p, w = sys.argv[1:];
        // print(int.from_bytes(h.sha256(p.encode()).digest()[:8], 'big') % int(w))" PARTITION
        // SECONDS
        for (partition, seconds, offset) in STAGGERED {
            let window = Fixed::new(seconds, 0).unwrap();
            assert_eq!(window.staggered(partition), Fixed { seconds, offset }, "{partition}");
        }
    }

    #[test]
    fn share_of_a_partition_never_changes() {
        // The second 8 bytes of the same digests, modulo 100.
        for (partition, share) in [
            ("*", 58),
            ("jwt.sub=alice", 48),
            ("ip=192.0.2.7", 15),
            ("-", 90),
            ("jwt.sub=bob", 25),
            ("jwt.sub=carol", 94),
        ] {
            assert_eq!(share_of(partition), share, "{partition}");
        }
    }

    #[test]
    fn windows_of_a_share_do_not_begin_together() {
        let parties = (0..2000).map(|n| format!("jwt.sub={n}"));
        let share: Vec<String> = parties.filter(|party| share_of(party) < 5).collect();
        let begin = |party: &String| Fixed::new(100, 0).unwrap().staggered(party).offset / 10;
        let begins: std::collections::BTreeSet<u32> = share.iter().map(begin).collect();
        assert_eq!(begins.len(), 10, "of {} parties", share.len());
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
        let w = Fixed::new(60, 20).unwrap();
        assert_eq!(w.number_at(Duration::from_secs(99)), 1);
        assert_eq!(w.number_at(Duration::from_secs(100)), 2);
        assert_eq!(w.remaining_at(Duration::from_secs(99)), Duration::from_secs(1));
    }
}
