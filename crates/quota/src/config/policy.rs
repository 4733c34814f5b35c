//! A policy as it is in force: every value is known to be within its bounds.

use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;

use crate::protocol::{Mode, OnFailure, Window};
use crate::request::allowance::{Cost, Quotas};
use crate::request::matching::Matcher;
use crate::request::partition::Partition;

/// One quota rule. A copy shares what is large.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Unique, `[a-z0-9-]{1,64}`.
    pub name: Rc<str>,
    /// Units a window where nothing else is said of a partition, 0 to [`MAX_UNITS`](crate::protocol::MAX_UNITS).
    pub quota: u64,
    /// The quota of its dial: it comes before `quota`, tiers and `quota_from`, and behind overrides.
    pub dialed_quota: Option<u64>,
    /// Whether some partition has a run-time override: only the store knows then whether a cost is above its quota.
    pub is_overridden: bool,
    /// The window, not staggered.
    pub window: Window,
    /// Whether each partition's window is shifted by a time of its own.
    pub stagger: bool,
    /// Whether it refuses.
    pub mode: Mode,
    /// What becomes of its requests while the store fails.
    pub on_failure: OnFailure,
    /// Which requests count.
    pub count: Count,
    /// Whether what it refuses counts too. Never with [`Precision::Lease`].
    pub count_denied: bool,
    /// Whether units are held ahead.
    pub precision: Precision,
    pub(crate) matcher: Rc<Matcher>,
    pub(crate) partition: Rc<Partition>,
    pub(crate) quotas: Rc<Quotas>,
    pub(crate) cost: Rc<Cost>,
}

/// Which requests count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Count {
    /// All that are admitted.
    All,
    /// Those that are answered so: the units are held while the request runs, and refunded otherwise.
    Answered(Answers),
}

/// The answers that count. At least one status is listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// HTTP statuses, sorted.
    pub statuses: Box<[u16]>,
    /// gRPC statuses, sorted. Where there are any, they alone decide on answers of gRPC.
    pub grpc_statuses: Box<[u16]>,
    /// What becomes of a request without a whole answer.
    pub abandoned: Abandoned,
}

/// What becomes of a request that was admitted and has no whole answer: its client left, or the stream broke. As JSON:
/// `"count"`, `"refund"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Abandoned {
    /// It counts, since the upstream may have done its work.
    #[default]
    Count,
    /// Its units are refunded.
    Refund,
}

/// Whether a worker holds units ahead of need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// It asks for what waits.
    Exact,
    /// It holds some of its own traffic ahead.
    Lease {
        /// How much of its recent traffic: 1 ms to 60 s.
        ahead: Duration,
        /// The most units that it holds of one counter, 1 to [`MAX_UNITS`](crate::protocol::MAX_UNITS).
        max: NonZeroU64,
    },
}
