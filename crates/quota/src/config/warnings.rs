//! Warnings: values that are allowed but probably not what was meant. There are few, so that each
//! is read.

use std::collections::{BTreeSet, HashSet};

use quotagate_protocol::{Mode, OnFailure, Window};

use super::identities::{Identities, NamedIdentity};
use super::policy::{Count, Counting, Policy, Precision};
use super::store::StoreConfig;
use crate::config::{CostSource, MissingCost, Settle};
use crate::document::Node;
use crate::request::allowance::{Allowance, Cost, QuotaSources};
use crate::request::key::{self, Secrecy};
use crate::request::matching::{Matcher, ValuePattern};
use crate::request::partition::PartitionPart;
use crate::request::source;

/// In bytes. Shorter keys can be found by trying.
const SHORT_DIGEST_KEY: usize = 16;

/// A lease should last at most the window divided by this, or other proxies miss its units. In a
/// simulated fleet with leases as long as their windows, 5 % of the exhausted quotas stayed
/// unspent.
const LONG_LEASE: u32 = 10;

/// The smallest quota with leases: a lease holds at most 1 % of it, and at least 2 units.
const LEAST_LEASED: u64 = 200;

/// Warns of a short key of digests.
pub(super) fn digest_key(node: &Node<'_>, key: &str) {
    if key.len() < SHORT_DIGEST_KEY {
        node.warn(format!(
            "is shorter than {SHORT_DIGEST_KEY} bytes: anyone who sees digests can find it by trying"
        ));
    }
}

/// Warns of sources that clients can exploit. `keyed`: the document has a key of digests.
pub(super) fn identities(named: &[NamedIdentity<'_>], keyed: bool) {
    for sources in named.iter().filter_map(|named| named.sources.as_ref()) {
        let last = sources.len().saturating_sub(1);
        for (i, (source, node)) in sources.iter().enumerate() {
            if i < last && source.kind.is_written_by_client {
                node.warn(
                    "stands before another source, and any client can invent it: a client that makes up a new value \
                     for each request gets a fresh quota for each",
                );
            }
            if source.is_plain_credential() {
                node.warn(
                    "is a credential, and without secret: true its value is readable in counter keys, access logs and \
                     the commands of operators. Write secret: true, and set digest_key",
                );
            }
            if !keyed && source.is_secret() {
                node.warn(
                    "is secret, and without digest_key its digest is keyed by the domain alone: anyone who sees a \
                     counter's key can try guesses against it",
                );
            }
        }
    }
}

/// Warns of identities that no policy counts by. `nodes` are the names and nodes of all identities.
pub(super) fn unused_identities(
    nodes: &[(&str, Node<'_>)],
    read: &Identities<'_>,
    policies: &[Policy],
) {
    for (name, node) in nodes {
        if let Some(Some(identity)) = read.get(name)
            && !policies.iter().any(|policy| policy.partition.counts_by(identity))
        {
            node.warn("is not used: name it in the partition_by of a policy, or remove it");
        }
    }
}

/// Warns of identities whose last source clients can make up, unless a policy that they cannot
/// evade counts all of the same requests. `nodes` are the names and nodes of all identities.
pub(super) fn invented_identities(
    nodes: &[(&str, Node<'_>)],
    read: &Identities<'_>,
    policies: &[Policy],
) {
    // The derived Debug of a matcher shows all that it is made of.
    let requests = |matcher: &Matcher, count: &Count, in_flight: bool| {
        format!("{matcher:?} {count:?} {in_flight}")
    };
    let of = |policy: &Policy, matcher: &Matcher| {
        requests(matcher, &policy.count, policy.window == Window::InFlight)
    };
    let bounds = policies.iter().filter(|policy| {
        policy.mode == Mode::Enforce
            && !policy.partition.is_written_by_client()
            && !policy.partition.can_be_left()
    });
    let bounded: HashSet<String> = bounds.map(|policy| of(policy, &policy.matcher)).collect();
    let all = Matcher::default();
    // A bound counts all that the policy counts: the same, or every request.
    let is_bounded = |policy: &Policy| {
        [&*policy.matcher, &all].into_iter().any(|matcher| {
            bounded.contains(&of(policy, matcher))
                || bounded.contains(&requests(matcher, &Count::All, false))
        })
    };
    let unbounded: Vec<&Policy> =
        policies.iter().filter(|policy| policy.mode != Mode::Off && !is_bounded(policy)).collect();
    for (name, node) in nodes {
        if let Some(Some(identity)) = read.get(name)
            && identity.sources.last().is_some_and(|source| source.kind.is_written_by_client)
            && unbounded.iter().any(|policy| policy.partition.counts_by(identity))
        {
            node.element(identity.sources.len().saturating_sub(1)).warn(
                "can be invented by any client, and one that makes up a new value for each request gets a fresh \
                 quota for each: add a policy with the same match, or without one, that counts the same answers, \
                 or every request, by client_ip or by partition_by: []",
            );
        }
    }
}

/// Reports conditions of policies that compare a secret, or a credential by its name, with a value
/// in clear. `node` is the list of the policies.
pub(super) fn secrets_in_match(node: &Node<'_>, read: &Identities<'_>, policies: &[Policy]) {
    let sources = read.values().flatten().flat_map(|identity| &identity.sources);
    let facts = sources.flat_map(|source| &source.facts);
    let secrets: BTreeSet<&str> =
        facts.filter(|fact| fact.secrecy == Secrecy::Secret).map(|fact| &*fact.label).collect();
    let check = |at: &Node<'_>, kind: &str, name: &str, value: &ValuePattern| {
        let is_secret = secrets.contains(&*key::label(kind, name));
        let field = match value {
            ValuePattern::Exact(_) if is_secret || source::is_credential(name) => "exact",
            ValuePattern::Regex(_) if is_secret => "regex",
            _ => return,
        };
        at.field(field).exposes(
            "is a secret in clear, and a published document shows it to everyone who reaches the store: leave the \
             condition out, and give this caller an entry of overrides with the digest, or write a prefix that holds \
             no whole secret",
        );
    };
    for (index, policy) in policies.iter().enumerate() {
        let all = node.element(index).field("match");
        let not = policy.matcher.not.as_deref().map(|not| (not, all.field("not")));
        for (matcher, at) in std::iter::once((&*policy.matcher, all)).chain(not) {
            for (index, header) in matcher.headers.iter().enumerate() {
                let at = at.field("headers").element(index);
                check(&at, "header", &header.name, &header.value);
            }
            if let Some(query) = &matcher.query {
                check(&at.field("query"), "query", &query.name, &query.value);
            }
        }
    }
}

/// Warns if `on_missing` is left out and clients can evade the policy. `entries` are those of
/// `partition_by`.
pub(super) fn skipped(policy: &Node<'_>, entries: &[PartitionPart]) {
    let left_out = |entry: &PartitionPart| match entry {
        PartitionPart::Identity(identity) => {
            identity.sources.iter().all(|source| source.kind.is_written_by_client)
        }
        PartitionPart::BuiltIn(_) => false,
    };
    if entries.iter().any(left_out) {
        policy.field("on_missing").warn(
            "defaults to skip: a client that leaves out the value is not counted. Write skip, deny or shared",
        );
    }
}

/// Warns of an `on_missing` without effect.
pub(super) fn nobody_missing(policy: &Node<'_>, entries: &[PartitionPart]) {
    if entries.is_empty() {
        policy.field("on_missing").warn(
            "means nothing with partition_by: []: all requests share one counter, and no request lacks a name",
        );
    }
}

/// Warns of quotas that admit nobody, or make a lease or the cost of a request useless.
pub(super) fn quotas(
    policy: &Node<'_>,
    quota: u64,
    quotas: &QuotaSources,
    counting: &Counting,
    mode: Mode,
) {
    let nobody = |allowance| allowance == Allowance::Units(0);
    let admits = !quotas.overrides.allowances().all(nobody) || quotas.vary();
    if quota == 0 && !admits && mode != Mode::Off {
        let field = if policy.has("in_flight") { "in_flight" } else { "quota" };
        policy.field(field).warn(
            "is 0, and nothing grants anyone more: no request that this policy counts is within it. Write a \
             larger number, overrides for those who may pass, or mode: off",
        );
    }
    let overrides = quotas.overrides.allowances().filter_map(|allowance| match allowance {
        Allowance::Units(units) => Some(units),
        Allowance::Unlimited => None,
    });
    let tiers =
        quotas.tiers.iter().flat_map(|tiers| tiers.quotas.values().map(|(_, quota)| *quota));
    let most = overrides
        .chain(tiers)
        .chain(quotas.from.as_ref().map(|from| from.max))
        .fold(quota, u64::max);
    let is_leased = matches!(counting.precision, Precision::Lease { .. });
    if is_leased && most < LEAST_LEASED && !policy.has("in_flight") {
        policy.field("precision").warn(format!(
            "has no effect: workers do not prefetch from a quota below {LEAST_LEASED}",
        ));
    }
    if let Cost::Fixed(cost) = counting.cost.reserve
        && cost.get() > most
        && most > 0
    {
        policy
            .field("cost")
            .warn("is more than any quota of this policy: every request that it counts is refused");
    }
}

/// Warns of a count by answer that lists no HTTP status or no gRPC status.
pub(super) fn one_protocol(count: &Node<'_>, http: bool, grpc: bool) {
    match (http, grpc) {
        (true, false) => count.warn(
            "lists no grpc_status: a gRPC answer has the HTTP status 200, also where it failed. Add grpc_status, such as \
             [7, 16]. [] is safe only if Envoy itself never answers with one of these statuses: it answers a request \
             with content-type: application/grpc by gRPC",
        ),
        (false, true) => count.warn(
            "lists no status: answers that are not gRPC never count. Add status, such as [401], or status: [] where \
             all speak gRPC",
        ),
        _ => {}
    }
}

/// Warns of a real cost that clients can hide. `cost` is the object with both.
pub(super) fn missing_usage(cost: &Node<'_>, reserve: &Cost, settle: &Settle) {
    let by_usage = settle.sources.iter().any(|source| matches!(source, CostSource::Usage(_)));
    if by_usage
        && settle.missing == MissingCost::Reserved
        && matches!(reserve, Cost::RequestJson { .. })
    {
        cost.field("if_missing").warn(
            "is reserved, and request_json lets the client choose what is reserved: with max_tokens: 1 and without \
             stream_options.include_usage, or when it leaves before the last event, any request costs 1. Write the \
             units of your largest request, such as if_missing: 24000",
        );
    }
}

/// Warns of leases that are long for their window.
pub(super) fn lease(policy: &Node<'_>, window: &Window, counting: &Counting) {
    if let Precision::Lease { ahead, .. } = counting.precision
        && ahead > window.length() / LONG_LEASE
    {
        policy.field("lease").warn(format!(
            "prefetches for more than 1/{LONG_LEASE} of the window: other proxies miss the units that one proxy holds and \
             does not spend",
        ));
    }
}

/// Warns of a `local_share` without effect. `section` is the object `store`.
pub(super) fn local_share(section: &Node<'_>, store: &StoreConfig, policies: &[Policy]) {
    let mut all = policies.iter().map(|policy| policy.on_failure).chain([store.on_failure]);
    if section.has("local_share") && all.all(|on_failure| on_failure != OnFailure::Local) {
        section
            .field("local_share")
            .warn("means nothing: neither store nor any policy says on_failure: local");
    }
}
