//! A policy: one quota rule, with every value within its bounds.

mod conditions;
mod cost;
mod counting;
pub(super) mod document;
mod kinds;
pub(crate) mod measure;
mod overrides;
mod quotas;
pub(crate) mod settle;

pub(super) use counting::Counting;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use itoa::Buffer;
use quotagate_protocol::dials::EnforcedShare;
use quotagate_protocol::{Mode, OnFailure, Window};

use crate::document::words;

use self::settle::Settle;
use crate::request::allowance::{Cost, QuotaSources};
use crate::request::key::partition_of;
use crate::request::matching::Matcher;
use crate::request::partition::Partition;

/// One quota rule. A copy shares the large parts.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Unique, `[a-z0-9-]+(/[a-z0-9-]+)*`, at most 192 bytes.
    pub name: Arc<str>,
    /// Its [item](push_item) with `quota` and `window`, which most responses show.
    pub(crate) item: Arc<str>,
    /// Units in a window, or with `in_flight` those that running requests hold at once, unless a
    /// partition has a quota of its own. 0 to [`MAX_UNITS`](quotagate_protocol::MAX_UNITS).
    pub quota: u64,
    /// The quota of its dial. It precedes `quota`, tiers and `quota_from`, but not overrides.
    pub dialed_quota: Option<u64>,
    /// Whether some partition has a runtime override. Then only the store knows whether a cost is
    /// above the quota.
    pub is_overridden: bool,
    /// The window, not staggered. [`Window::InFlight`]: running requests hold `quota` at most.
    pub window: Window,
    /// Whether each partition's windows start at a time of their own.
    pub stagger: bool,
    /// How long a request waits for a slot, at most 5 s. 0 unless `window` is
    /// [`Window::InFlight`].
    pub max_wait: Duration,
    /// Whether the policy refuses.
    pub mode: Mode,
    /// By its dial: whom it refuses although its mode is shadow.
    pub enforced_for: Option<Arc<EnforcedShare>>,
    /// What happens to its requests while the store fails.
    pub on_failure: OnFailure,
    /// Which requests count.
    pub count: Count,
    /// Whether requests that it refuses count too. Never with [`Precision::Lease`].
    pub count_denied: bool,
    /// Whether workers hold leases.
    pub precision: Precision,
    pub(crate) matcher: Arc<Matcher>,
    pub(crate) partition: Arc<Partition>,
    pub(crate) quotas: Arc<QuotaSources>,
    pub(crate) cost: Arc<Cost>,
    /// How the real cost replaces `cost` after the response. `None`: `cost` is final. Never with
    /// [`Precision::Lease`] or `count_denied`.
    pub(crate) settle: Option<Arc<Settle>>,
}

/// Appends the item of a policy to the value of the header `RateLimit-Policy`.
pub(crate) fn push_item(list: &mut String, name: &str, quota: u64, window_s: u32) {
    for part in ["\"", name, "\";q=", Buffer::new().format(integer(quota)), ";w="] {
        list.push_str(part);
    }
    list.push_str(Buffer::new().format(window_s));
}

/// The same for a policy of slots, which has no window.
pub(crate) fn push_slots_item(list: &mut String, name: &str, limit: u64) {
    list.extend(["\"", name, "\";q=", Buffer::new().format(integer(limit)), SLOT_UNIT]);
}

/// The quota unit of slots in draft-ietf-httpapi-ratelimit-headers-11.
const SLOT_UNIT: &str = ";qu=\"concurrent-requests\"";

/// The largest Integer of a Structured Field has 15 digits (RFC 9651, section 3.3.1).
pub(crate) fn integer(units: u64) -> u64 {
    units.min(999_999_999_999_999)
}

impl Policy {
    /// What [`item`](Self::item) is.
    pub(crate) fn own_item(name: &str, quota: u64, window: &Window) -> Arc<str> {
        let mut item = String::new();
        match window {
            Window::InFlight => push_slots_item(&mut item, name, quota),
            _ => push_item(&mut item, name, quota, window.usual_s()),
        }
        item.into()
    }

    /// Whether `quota`, which a counter has, may differ from what reports and dials say of the
    /// policy.
    pub(crate) fn own_quota(&self, quota: u64) -> bool {
        self.quotas.vary() || quota != self.dialed_quota.unwrap_or(self.quota)
    }

    /// The mode for the counter with this key.
    pub fn mode_of(&self, key: &str) -> Mode {
        match &self.enforced_for {
            Some(share) if self.mode == Mode::Shadow && share.has(partition_of(key)) => {
                Mode::Enforce
            }
            _ => self.mode,
        }
    }

    /// Whether running requests hold its units, which are slots.
    pub(crate) fn is_slots(&self) -> bool {
        self.window == Window::InFlight
    }

    /// Whether a request holds its units until its response.
    pub(crate) fn holds(&self) -> bool {
        self.settle.is_some() || self.count != Count::All
    }
}

words! {
    for Mode {
        /// The policy refuses requests beyond its quota.
        Enforce = "enforce",
        /// The policy never refuses. A request beyond its quota reaches the upstream with the
        /// request header `x-quotagate-exceeded`, which names the policy. Envoy chooses the route
        /// anew, so that a route can match that header.
        Mark = "mark",
        /// The policy counts, and never refuses.
        Shadow = "shadow",
        /// The policy applies to no request.
        Off = "off",
    }
}

words! {
    for OnFailure {
        /// The request is admitted, without quota headers.
        Allow = "allow",
        /// The request is answered with 503.
        Deny = "deny",
        /// Each worker counts for itself, against the part `local_share` of the quota.
        Local = "local",
    }
}

/// Which requests count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Count {
    /// All that are admitted.
    All,
    /// Those with one of these answers. The units are held while a request runs, and refunded for
    /// other answers.
    Responses(CountedResponses),
}

/// The answers that count. At least one status is listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountedResponses {
    /// HTTP statuses, sorted.
    pub statuses: Box<[u16]>,
    /// gRPC statuses, sorted. If there are any, they alone decide on gRPC answers.
    pub grpc_statuses: Box<[u16]>,
    /// What happens to a request without a whole answer.
    pub abandoned: Abandoned,
}

words! {
    /// What happens to an admitted request without a whole answer: its client left, or the stream
    /// broke.
    pub enum Abandoned {
        /// The request counts, since the upstream may have done its work.
        Count = "count",
        /// The units of the request are refunded.
        Refund = "refund",
    }
}

#[allow(clippy::derivable_impls, reason = "The macro that declares the enum derives no default")]
impl Default for Abandoned {
    fn default() -> Self {
        Self::Count
    }
}

/// Whether a worker prefetches units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// It reserves what waiting requests cost.
    Exact,
    /// It holds a lease: prefetched units for some of its own traffic.
    Lease {
        /// How much of its recent traffic: 1 ms to 60 s.
        ahead: Duration,
        /// The most units that it holds of one counter, 1 to
        /// [`MAX_UNITS`](quotagate_protocol::MAX_UNITS).
        max: NonZeroU64,
    },
}
