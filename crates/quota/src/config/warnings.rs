//! What is allowed in a configuration and probably not what was meant: as little as really misleads.

use std::time::Duration;

use super::counting::Counting;
use super::identities::Identities;
use super::object::Object;
use super::policy::{Policy, Precision};
use super::reader::Node;
use super::store::StoreConfig;
use crate::protocol::{OnFailure, Window};
use crate::request::allowance::{Allowance, Cost, Quotas};
use crate::request::fact::Lookup;
use crate::request::identity::Source;
use crate::request::key::Secrecy;
use crate::request::partition::Entry;

/// Shorter keys can be found by trying.
const SHORT_DIGEST_KEY: usize = 16;

/// Units held for a longer part of a window than this are missed elsewhere: where a lease lasted as long as its
/// window, 5 % of the quotas that were reached stayed unspent in a simulated fleet.
const LONG_LEASE: u32 = 10;

/// The least quota of which a lease can hold anything ahead: 2 units are 1 % of it.
const LEAST_LEASED: u64 = 200;

/// Of the key of digests.
pub(super) fn digest_key(node: &Node<'_>, key: &str) {
    if key.len() < SHORT_DIGEST_KEY {
        node.warn(format!(
            "is shorter than {SHORT_DIGEST_KEY} bytes: whoever sees digests can find it by trying"
        ));
    }
}

/// Of the section `identities`, which has been read into these. `keyed`: there is a key of digests.
pub(super) fn identities(node: &Node<'_>, read: &Identities<'_>, keyed: bool) {
    for (name, node) in node.members(usize::MAX).unwrap_or_default() {
        let Some(Some(identity)) = read.get(name) else { continue };
        let nodes = node.list(usize::MAX).unwrap_or_default();
        let last = identity.sources.len().saturating_sub(1);
        for (i, (source, node)) in identity.sources.iter().zip(nodes).enumerate() {
            if i < last && is_invented(source) {
                node.warn(
                    "stands before another source, and any client can invent it: who makes up a new value each \
                     time gets a fresh quota each time",
                );
            }
            if !keyed && matches!(source, Source::One(_, Secrecy::Secret)) {
                node.warn(
                    "is secret, and without digest_key its digest is keyed by the domain alone: whoever sees a \
                     counter's key can try guesses against it",
                );
            }
        }
    }
}

/// Of identities in the section `identities` that no policy counts by.
pub(super) fn unused_identities(node: &Node<'_>, read: &Identities<'_>, policies: &[Policy]) {
    if read.is_empty() {
        return;
    }
    for (name, node) in node.members(usize::MAX).unwrap_or_default() {
        if let Some(Some(identity)) = read.get(name)
            && !policies.iter().any(|policy| policy.partition.counts_by(identity))
        {
            node.warn("is not used: name it in the partition_by of a policy, or remove it");
        }
    }
}

/// Of `on_missing: skip` that nobody has said; `entries` are those of `partition_by`.
pub(super) fn skipped(policy: &Object<'_>, entries: &[Entry]) {
    let left_out = |entry: &Entry| match entry {
        Entry::Identity(identity) => identity.sources.iter().all(is_invented),
        Entry::BuiltIn(_) => false,
    };
    if entries.iter().any(left_out) {
        policy.field("on_missing").warn(
            "is skip where nothing is said: a client that leaves out its header, cookie or query parameter is not \
             counted. Write skip, deny or shared",
        );
    }
}

/// Of an `on_missing` that says what becomes of nobody.
pub(super) fn nobody_missing(policy: &Object<'_>, entries: &[Entry]) {
    if entries.is_empty() {
        policy.field("on_missing").warn(
            "means nothing with partition_by: []: all requests share one counter, and no request lacks a name",
        );
    }
}

/// Of what a policy grants.
pub(super) fn quotas(policy: &Object<'_>, quota: u64, quotas: &Quotas, counting: &Counting) {
    let overrides = quotas.overrides.allowances().filter_map(|allowance| match allowance {
        Allowance::Units(units) => Some(units),
        Allowance::Unlimited => None,
    });
    let tiers = quotas.tiers.iter().flat_map(|tiers| tiers.quotas.values().copied());
    let most = overrides.chain(tiers).chain(quotas.from.as_ref().map(|from| from.max)).fold(quota, u64::max);
    if matches!(counting.precision, Precision::Lease { .. }) && most < LEAST_LEASED {
        policy.field("precision").warn(format!(
            "is lease without effect: of a quota below {LEAST_LEASED} no worker holds anything ahead",
        ));
    }
    if let Cost::Fixed(cost) = counting.cost
        && cost.get() > most
        && most > 0
    {
        policy
            .field("cost")
            .warn("is more than any quota of this policy: every request that it counts is refused");
    }
}

/// Of a count of answers that says nothing of HTTP, or nothing of gRPC.
pub(super) fn one_protocol(count: &Node<'_>, http: bool, grpc: bool) {
    match (http, grpc) {
        (true, false) => count.warn(
            "lists no grpc_status: a gRPC answer has the HTTP status 200, also where it failed. Add grpc_status, such as \
             [7, 16]. [] is safe only where Envoy itself answers with none of these statuses: it answers a request \
             with content-type: application/grpc by gRPC",
        ),
        (false, true) => count.warn(
            "lists no status: answers that are not gRPC never count. Add status, such as [401], or status: [] where \
             all speak gRPC",
        ),
        _ => {}
    }
}

/// Of units held ahead for long.
pub(super) fn lease(policy: &Object<'_>, window: Window, counting: &Counting) {
    if let Precision::Lease { ahead, .. } = counting.precision
        && ahead > Duration::from_secs(window.seconds().into()) / LONG_LEASE
    {
        policy.field("lease").warn(format!(
            "holds units ahead for more than 1/{LONG_LEASE} of the window: what one proxy holds and does not spend is \
             missing where it is needed",
        ));
    }
}

/// Of a `local_share` that nobody needs, in the section `store`.
pub(super) fn local_share(section: &Node<'_>, store: &StoreConfig, policies: &[Policy]) {
    let mut all = policies.iter().map(|policy| policy.on_failure).chain([store.on_failure]);
    let given = section.object().map(|section| section.field("local_share"));
    if let Some(node) = given.filter(|node| !node.value().is_null())
        && all.all(|on_failure| on_failure != OnFailure::Local)
    {
        node.warn("means nothing: neither store nor any policy says on_failure: local");
    }
}

/// Whether a client alone decides what it is, and whether it is there.
fn is_invented(source: &Source) -> bool {
    match source {
        Source::One(fact, _) => {
            matches!(fact.lookup, Lookup::Header(_) | Lookup::Cookie(_) | Lookup::Query(_))
        }
        Source::All(_) | Source::ClientIp(_) => false,
    }
}
