//! The fields of a policy that say what a request takes, which requests count, and how exactly.

use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::Value;

use super::duration;
use super::facts;
use super::object::Object;
use super::policy::{Abandoned, Answers, Count, Precision};
use super::reader::Node;
use super::warnings;
use crate::protocol::MAX_UNITS;
use crate::request::allowance::Cost;

/// How a policy counts.
pub(super) struct Counting {
    pub(super) cost: Cost,
    pub(super) count: Count,
    pub(super) count_denied: bool,
    pub(super) precision: Precision,
}

/// The default of `lease.ahead`.
const DEFAULT_AHEAD: Duration = Duration::from_millis(100);
/// The default of `lease.max`.
const DEFAULT_MAX: NonZeroU64 = NonZeroU64::MIN.saturating_add(999);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Exactness {
    Exact,
    Lease,
}

/// Reads them from the fields of a policy.
pub(super) fn parse(object: &mut Object<'_>) -> Option<Counting> {
    let cost = object.optional("cost", cost, || Cost::Fixed(NonZeroU64::MIN));
    let count = object.optional("count", count, || Count::All);
    let words = [("exact", Exactness::Exact), ("lease", Exactness::Lease)];
    let exactness = object.optional("precision", |n| n.choice(&words), || Exactness::Exact);
    let lease = object.optional("lease", |n| Some((lease(n)?, Some(n.clone()))), || (DEFAULT_LEASE, None));
    let denied = object.optional("count_denied", |n| Some(n.boolean()?.then(|| n.clone())), || None);

    let (exactness, (lease, lease_at)) = (exactness?, lease?);
    let precision = match (exactness, lease_at) {
        (Exactness::Exact, None) => Some(Precision::Exact),
        (Exactness::Exact, Some(at)) => {
            at.fault("means nothing without precision: lease");
            None
        }
        (Exactness::Lease, _) => Some(lease),
    };
    let count_denied = match (denied?, count.as_ref()) {
        (Some(at), _) if exactness == Exactness::Lease => {
            at.fault("cannot be with precision: lease: with it every request asks the store");
            None
        }
        (Some(at), Some(Count::Answered(_))) => {
            at.fault(
                "cannot be with count: {status: ..}: a request that is refused here gets none of its answers",
            );
            None
        }
        (at, _) => Some(at.is_some()),
    };
    Some(Counting { cost: cost?, count: count?, count_denied: count_denied?, precision: precision? })
}

/// A number, or the header that tells it.
fn cost(node: &Node<'_>) -> Option<Cost> {
    if !node.value().is_object() {
        return units(node).map(Cost::Fixed);
    }
    let mut object = node.object()?;
    let cost = object.required("header", header);
    object.finish();
    cost
}

fn header(node: &Node<'_>) -> Option<Cost> {
    let mut object = node.object()?;
    let name = object.required("name", facts::header_name);
    let mut default_at = None;
    let default = object.optional(
        "default",
        |n| {
            default_at = Some(n.clone());
            units(n)
        },
        || NonZeroU64::MIN,
    );
    let max = object.optional("max", |n| units(n).map(Some), || None);
    object.finish();
    let (default, max) = (default?, max?);
    if let (Some(at), Some(max)) = (default_at, max)
        && default > max
    {
        at.fault(format!("must be at most max, which is {max}, is {default}"));
        return None;
    }
    Some(Cost::Header { name: name?.into(), default, max })
}

fn units(node: &Node<'_>) -> Option<NonZeroU64> {
    NonZeroU64::new(node.whole(1..=MAX_UNITS)?)
}

fn count(node: &Node<'_>) -> Option<Count> {
    if !node.value().is_object() {
        return match node.value() {
            Value::String(_) => node.choice(&[("all", ())]).map(|()| Count::All),
            _ => node.must("all or {status: [..], grpc_status: [..]}"),
        };
    }
    let mut object = node.object()?;
    let statuses = object.optional("status", |n| listed(n, MAX_STATUSES, 100..=599).map(Some), || None);
    let grpc = object.optional("grpc_status", |n| listed(n, MAX_GRPC_STATUSES, 0..=16).map(Some), || None);
    let words = [("count", Abandoned::Count), ("refund", Abandoned::Refund)];
    let abandoned = object.optional("abandoned", |n| n.choice(&words), Abandoned::default);
    object.finish();
    let (statuses, grpc_statuses) = (statuses?, grpc?);
    let given = (statuses.is_some(), grpc_statuses.is_some());
    let (statuses, grpc_statuses) = (statuses.unwrap_or_default(), grpc_statuses.unwrap_or_default());
    if statuses.is_empty() && grpc_statuses.is_empty() {
        node.fault(
            "must list a status or grpc_status that counts, such as {status: [401], grpc_status: [16]}",
        );
        return None;
    }
    warnings::one_protocol(node, given.0, given.1);
    Some(Count::Answered(Answers { statuses, grpc_statuses, abandoned: abandoned? }))
}

/// Statuses of answers, sorted.
fn listed(node: &Node<'_>, most: usize, range: RangeInclusive<u64>) -> Option<Box<[u16]>> {
    let statuses = node.each(most, |n| u16::try_from(n.whole(range.clone())?).ok())?;
    let mut statuses = node.distinct(statuses)?;
    statuses.sort_unstable();
    Some(statuses.into())
}

/// As many as there are.
const MAX_STATUSES: usize = 500;
const MAX_GRPC_STATUSES: usize = 17;

const DEFAULT_LEASE: Precision = Precision::Lease { ahead: DEFAULT_AHEAD, max: DEFAULT_MAX };

fn lease(node: &Node<'_>) -> Option<Precision> {
    let mut object = node.object()?;
    let ahead = object.optional("ahead", |n| duration::up_to_a_minute(n, "100ms"), || DEFAULT_AHEAD);
    let max = object.optional("max", units, || DEFAULT_MAX);
    object.finish();
    Some(Precision::Lease { ahead: ahead?, max: max? })
}
