//! The fields of a policy about cost, counting and precision.

use std::num::NonZeroU64;
use std::time::Duration;

use serde_json::Value;

use super::super::time::UpToAMinute;
use super::super::warnings;
use super::cost::{Costs, SomeUnits, units};
use super::{Abandoned, Count, CountedResponses, Precision};
use crate::document::{Distinct, Node, Type, Whole, object, words};

/// How a policy counts.
pub(in super::super) struct Counting {
    pub(in super::super) cost: Costs,
    pub(super) count: Count,
    pub(super) count_denied: bool,
    pub(in super::super) precision: Precision,
}

/// The number of values from 100 to 599.
const MAX_STATUSES: usize = 500;
const MAX_GRPC_STATUSES: usize = 17;

impl Counting {
    /// Combines the fields of a policy. A field that is `None` has a fault.
    pub(super) fn new(
        policy: &Node<'_>,
        cost: Option<Costs>,
        count: Option<Count>,
        precision: Option<PrecisionWord>,
        lease: Option<(Duration, NonZeroU64)>,
        count_denied: Option<bool>,
    ) -> Option<Self> {
        let leased = precision.map(|precision| precision == PrecisionWord::Lease);
        let mut good = true;
        let mut refuse = |field: &str, why: &str| {
            policy.field(field).fault(why);
            good = false;
        };
        // With `in_flight` another fault says that it means nothing.
        let has_window = !policy.has("in_flight");
        if leased == Some(false) && has_window && policy.has("lease") && lease.is_some() {
            refuse("lease", "means nothing without precision: lease");
        }
        if count_denied == Some(true) {
            if leased == Some(true) {
                refuse(
                    "count_denied",
                    "cannot be with precision: lease: with it every request asks the store",
                );
            } else if matches!(count, Some(Count::Responses(_))) {
                refuse(
                    "count_denied",
                    "cannot be with count: {status: ..}: a request that is refused here gets none of its answers",
                );
            }
        }
        if cost.as_ref().is_some_and(|cost| cost.settle.is_some()) {
            let settle = policy.field("cost").field("settle");
            if leased == Some(true) {
                settle.fault("cannot be with precision: lease: leased units are spent without a reservation to correct. Leave precision out");
                good = false;
            }
            if count_denied == Some(true) {
                settle.fault("cannot be with count_denied: a request that is refused has no real cost. Leave count_denied out");
                good = false;
            }
        }
        let (ahead, max) = lease?;
        let precision = if leased? { Precision::Lease { ahead, max } } else { Precision::Exact };
        good.then_some(Self { cost: cost?, count: count?, count_denied: count_denied?, precision })
    }
}

/// Which requests count: the word `all`, or the answers that do.
pub(crate) enum CountType {}

impl Type for CountType {
    type Out<'a> = Count;

    fn read(node: &Node<'_>) -> Option<Count> {
        match node.value() {
            Value::Object(_) => CountByAnswer::read(node),
            Value::String(_) => CountWord::read(node).map(|CountWord::All| Count::All),
            _ => node.must("all or {status: [..], grpc_status: [..]}"),
        }
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut crate::document::book::Book) -> Value {
        serde_json::json!({"anyOf": [CountWord::schema(book), CountByAnswer::schema(book)]})
    }
}

words! {
    /// The word for all requests.
    pub(crate) enum CountWord {
        /// All requests that are admitted count.
        All = "all",
    }
}

object! {
    /// The answers that count, such as failed logins. The units are held while a request runs, and
    /// refunded for other answers. One of the lists must not be empty.
    CountByAnswer(CountByAnswerFields<'a>) -> Count {
        /// The HTTP statuses that count. They decide on gRPC answers only if `grpc_status` lists
        /// nothing.
        optional status: Distinct<Whole<100, 599>, 0, MAX_STATUSES> = [401, 403],
        /// The gRPC statuses that count, such as 16 (UNAUTHENTICATED).
        optional grpc_status: Distinct<Whole<0, 16>, 0, MAX_GRPC_STATUSES> = [7, 16],
        /// What happens to an admitted request without a whole answer: its client left, or the
        /// stream broke.
        default("count") abandoned: Abandoned = "refund",
    }
    rule {"anyOf": [
        {"required": ["status"], "properties": {"status": {"minItems": 1}}},
        {"required": ["grpc_status"], "properties": {"grpc_status": {"minItems": 1}}}
    ]}
}

impl CountByAnswerFields<'_> {
    fn build(self) -> Option<Count> {
        let (status, grpc_status) = (self.status?, self.grpc_status?);
        let given = (status.is_some(), grpc_status.is_some());
        let (statuses, grpc_statuses) = (sorted(status), sorted(grpc_status));
        if statuses.is_empty() && grpc_statuses.is_empty() {
            self.node.fault(
                "must list a status or grpc_status that counts, such as {status: [401], grpc_status: [16]}",
            );
            return None;
        }
        warnings::one_protocol(&self.node, given.0, given.1);
        Some(Count::Responses(CountedResponses {
            statuses,
            grpc_statuses,
            abandoned: self.abandoned?,
        }))
    }
}

fn sorted(statuses: Option<Vec<u64>>) -> Box<[u16]> {
    let statuses = statuses.unwrap_or_default().into_iter();
    let mut statuses: Vec<u16> = statuses.filter_map(|status| u16::try_from(status).ok()).collect();
    statuses.sort_unstable();
    statuses.into()
}

words! {
    /// Whether workers may hold units ahead of need.
    pub(crate) enum PrecisionWord {
        /// Workers reserve what waiting requests cost.
        Exact = "exact",
        /// Workers hold units for some of their own traffic ahead of need, and call the store less
        /// often.
        Lease = "lease",
    }
}

object! {
    /// How much a worker holds ahead.
    Lease(LeaseFields<'a>) -> (Duration, NonZeroU64) {
        /// About this much of the worker's own recent traffic.
        default("100ms") ahead: UpToAMinute = "1s",
        /// The most units of one counter.
        default(1000) max: SomeUnits = 500,
    }
}

impl LeaseFields<'_> {
    fn build(self) -> Option<(Duration, NonZeroU64)> {
        Some((self.ahead?, units(self.max?)?))
    }
}
