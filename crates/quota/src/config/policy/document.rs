//! Policies as the document writes them, and how they become policies in force.

use std::collections::BTreeSet;
use std::sync::Arc;

use quotagate_protocol::{Mode, OnFailure, Window};
use serde_json::Value;

use super::super::identities::Identities;
use super::super::time::{MaxWait, WindowType};
use super::super::{MAX_PARTITION_BY, MAX_POLICIES, StoreConfig, warnings};
use super::Policy;
use super::conditions::Match;
use super::cost::CostType;
use super::counting::{CountType, Counting, Lease, PrecisionWord};
use super::kinds;
use super::overrides::{self, Override};
use super::quotas::{QuotaFromDocument, TiersDocument, UnitCount};
use crate::document::names::Names;
use crate::document::{At, Boolean, Distinct, Each, Node, Type, object, suggest};
use crate::request::allowance::QuotaSources;
use crate::request::key::{self, Digester};
use crate::request::partition::{BuiltIn, OnMissing, Partition, PartitionPart};

/// The policies of a document. A policy that is not an object is `None`.
pub(in super::super) type Policies = Each<PolicyDocument, MAX_POLICIES>;

/// The names of policies. That of a Kubernetes object's policy is `NAMESPACE/OBJECT/NAME`.
pub(in super::super) const NAME: Names = Names {
    most: 192,
    allowed: |b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'/',
    pattern: "[a-z0-9-]+(/[a-z0-9-]+)*",
};

object! {
    /// One quota rule: who it counts, how many units, in which window.
    PolicyDocument(PolicyFields<'a>) -> PolicyFields<'a> {
        /// Its name, unique. It is part of counter keys, headers and statistics.
        required name: At<PolicyName> = "per-caller",
        /// The requests that the policy is about. All conditions that are given must hold. Left
        /// out, it is about every request.
        default({}) r#match: Match = {"path": {"prefix": "/api/"}},
        /// Who is counted: names of identities, and `method`, `host`, `path` and `route`. Each
        /// combination of values has a counter of its own. `[]` is one counter for everybody.
        needed("list who is counted, such as [caller]. [] is one counter for everybody")
            partition_by: Distinct<AnyText, 0, MAX_PARTITION_BY> = ["caller"],
        /// What happens to a request that has no value for an entry of `partition_by`.
        default("skip") on_missing: OnMissing = "deny",
        /// Units in a window. 0 admits nobody. Required with `window`.
        optional quota: UnitCount = 100,
        /// The length of a window, or a unit of the calendar. Windows follow the store's clock and
        /// end for all callers at once, unless `stagger` or `sliding` is set. Required with
        /// `quota`.
        optional window: WindowType = "1h30m",
        /// Instead of `quota` and `window`: the most units that running requests hold at once, on
        /// all proxies. A request holds its `cost` until its stream ends, however it ends. 0 admits
        /// nobody. `quota_from`, `tiers` and `overrides` replace this number as they replace
        /// `quota`. An override still calls its number `quota`.
        optional in_flight: UnitCount = 4,
        /// How long a request waits for others to end before it is refused: 0ms to 5s. Each worker
        /// of a proxy serves its requests in order of arrival. Only with `in_flight`. In the modes
        /// `shadow` and `mark`, no request waits.
        default("0ms") max_wait: MaxWait = "2s",
        /// Whether the quota holds in every interval of the window's length. Not with a window of
        /// the calendar, `precision: lease` or `stagger`.
        default(false) sliding: Boolean = true,
        /// A verified number that replaces `quota` or `in_flight`.
        optional quota_from: QuotaFromDocument = {"jwt": {"claim": "quota"}, "max": 10000},
        /// Quotas by a verified value, such as the plan that a caller has paid for.
        optional tiers: TiersDocument,
        /// Quotas of single partitions or networks. The first that fits wins, over `quota_from`,
        /// `tiers`, `quota` and `in_flight`.
        default([]) overrides: At<Each<Override, MAX_OVERRIDES>> = [{"value": "alice", "quota": 500}],
        /// The units that one request takes: a number, or where the number is. A cost that is known
        /// only after the response is reserved first and settled then.
        default(1) cost: CostType = {"header": {"name": "x-cost", "max": 100}},
        /// The requests that count.
        default("all") count: CountType = {"status": [401], "grpc_status": [16]},
        /// Whether workers may hold units ahead of need.
        default("exact") precision: PrecisionWord = "lease",
        /// How much a worker holds ahead. Only with `precision: lease`.
        default({}) lease: Lease = {"ahead": "1s"},
        /// Whether requests that this policy refuses count too. Not with `precision: lease`, and
        /// not with a `count` by answer.
        default(false) count_denied: Boolean = true,
        /// Whether each partition's windows start at a time of their own, so that not all quotas
        /// reset at once. Not with a window of the calendar.
        default(false) stagger: Boolean = true,
        /// Whether the policy refuses.
        default("enforce") mode: ModeType = "shadow",
        /// What happens to its requests while the store fails. Left out, `store.on_failure` says
        /// it.
        optional on_failure: OnFailure = "local",
    }
    rule {
        "oneOf": [
            {"required": ["quota", "window"], "not": {"required": ["in_flight"]}},
            {"required": ["in_flight"], "not": {"anyOf": [{"required": ["quota"]}, {"required": ["window"]}]}}
        ]
    }
}

/// The most overrides of a policy.
const MAX_OVERRIDES: usize = 1024;

impl<'a> PolicyFields<'a> {
    #[allow(
        clippy::unnecessary_wraps,
        reason = "The policy is resolved once the whole document is read"
    )]
    fn build(self) -> Option<Self> {
        Some(self)
    }
}

/// What policies refer to. `None`: it has a fault.
#[derive(Clone, Copy)]
pub(in super::super) struct Context<'c, 'a> {
    /// The domain.
    pub(in super::super) domain: Option<&'a str>,
    /// The identities.
    pub(in super::super) identities: Option<&'c Identities<'a>>,
    /// The store.
    pub(in super::super) store: Option<&'c StoreConfig>,
    /// The digests of secrets.
    pub(in super::super) digester: Option<&'c Digester>,
}

/// The policies in force. `None` if one of them has a fault.
pub(in super::super) fn resolve<'a>(
    policies: Vec<Option<PolicyFields<'a>>>,
    context: Context<'_, 'a>,
) -> Option<Vec<Policy>> {
    let mut names = BTreeSet::new();
    // Resolve every policy, even after one with a fault, to find all faults.
    let resolved: Vec<Option<Policy>> =
        policies.into_iter().map(|policy| policy?.resolve(context, &mut names)).collect();
    resolved.into_iter().collect()
}

impl<'a> PolicyFields<'a> {
    /// The policy in force. Each subject reports its own faults, so all of them are resolved before
    /// the first fault ends this.
    fn resolve(
        mut self,
        context: Context<'_, 'a>,
        names: &mut BTreeSet<&'a str>,
    ) -> Option<Policy> {
        let name = self.name.take().and_then(|(name, at)| unique(name, &at, names));
        let partition = self.partition(name, context);
        let counting = self.counting();
        let quota = self.quota();
        let quotas = self.quotas(quota, partition.as_ref(), counting.as_ref(), context.digester);
        let window = self.window(counting.as_ref());
        let (counting, on_failure) = (counting?, self.on_failure?);
        let (name, quota, window) = (name?, quota?, window?);
        Some(Policy {
            item: Policy::own_item(name, quota, &window),
            name: name.into(),
            quota,
            dialed_quota: None,
            enforced_for: None,
            is_overridden: false,
            window,
            stagger: self.stagger?,
            max_wait: self.max_wait?,
            mode: self.mode?,
            on_failure: on_failure.or(context.store.map(|store| store.on_failure))?,
            count: counting.count,
            count_denied: counting.count_denied,
            precision: counting.precision,
            matcher: Arc::new(self.r#match?),
            partition: Arc::new(partition?),
            quotas: Arc::new(quotas?),
            cost: Arc::new(counting.cost.reserve),
            settle: counting.cost.settle.map(Arc::new),
        })
    }

    fn partition(&self, name: Option<&str>, context: Context<'_, '_>) -> Option<Partition> {
        let entries = entries(&self.node, self.partition_by.as_ref()?, context.identities)?;
        let on_missing = self.on_missing?;
        match on_missing {
            _ if !self.node.has("on_missing") => warnings::skipped(&self.node, &entries),
            OnMissing::Deny | OnMissing::Shared => warnings::nobody_missing(&self.node, &entries),
            OnMissing::Skip => {}
        }
        Some(Partition::new(key::head(context.domain?, name?), entries, on_missing))
    }

    fn counting(&mut self) -> Option<Counting> {
        let (cost, count) = (self.cost.take(), self.count.take());
        Counting::new(&self.node, cost, count, self.precision, self.lease, self.count_denied)
    }

    /// The units in a window, or those that requests hold at once.
    fn quota(&self) -> Option<u64> {
        match (self.in_flight?, self.quota?) {
            (Some(slots), None) => Some(slots),
            (None, Some(quota)) => Some(quota),
            (Some(_), Some(_)) => {
                let why = "cannot be with in_flight: keep one of the two, or write two policies";
                self.node.field("quota").fault(why);
                None
            }
            (None, None) => {
                let why =
                    "is required, with a window; or write in_flight to limit running requests";
                self.node.field("quota").fault(why);
                None
            }
        }
    }

    fn quotas(
        &mut self,
        quota: Option<u64>,
        partition: Option<&Partition>,
        counting: Option<&Counting>,
        digester: Option<&Digester>,
    ) -> Option<QuotaSources> {
        let (overrides, at) = self.overrides.take()?;
        let overrides = overrides::resolve(overrides, &at, partition.zip(digester))?;
        let (from, tiers) = (self.quota_from.take()?, self.tiers.take()?);
        let quotas = QuotaSources { overrides, from, tiers };
        warnings::quotas(&self.node, quota?, &quotas, counting?, self.mode?);
        Some(quotas)
    }

    fn window(&mut self, counting: Option<&Counting>) -> Option<Window> {
        let (given, is_slots) = (self.window.take()?, self.in_flight?.is_some());
        if !is_slots && self.max_wait.is_some_and(|wait| !wait.is_zero()) {
            let why = "means nothing without in_flight: only running requests are waited for";
            self.node.field("max_wait").fault(why);
        }
        if is_slots {
            let (sliding, stagger, precision) = (self.sliding, self.stagger, self.precision);
            return kinds::slots(&self.node, given, sliding, stagger, precision, counting);
        }
        let Some(window) = given else {
            self.node.field("window").fault("is required");
            return None;
        };
        let (sliding, stagger, precision) = (self.sliding?, self.stagger?, self.precision?);
        let window = kinds::resolve(&self.node, window, sliding, stagger, precision)?;
        warnings::lease(&self.node, &window, counting?);
        Some(window)
    }
}

/// The entries of a partition by the names in `partition_by`.
fn entries(
    policy: &Node<'_>,
    names: &[&str],
    identities: Option<&Identities<'_>>,
) -> Option<Vec<PartitionPart>> {
    let list = policy.field("partition_by");
    let entry = |(i, name): (usize, &&str)| entry(&list.element(i), name, identities);
    let entries: Vec<Option<PartitionPart>> = names.iter().enumerate().map(entry).collect();
    entries.into_iter().collect()
}

fn unique<'a>(name: &'a str, at: &Node<'_>, names: &mut BTreeSet<&'a str>) -> Option<&'a str> {
    if !names.insert(name) {
        at.fault(format!("must be unique, another policy is named {name:?} as well"));
        return None;
    }
    Some(name)
}

fn entry(
    node: &Node<'_>,
    name: &str,
    identities: Option<&Identities<'_>>,
) -> Option<PartitionPart> {
    if let Some(fact) = BuiltIn::ALL.into_iter().find(|fact| fact.name() == name) {
        return Some(PartitionPart::BuiltIn(fact));
    }
    // The faults of identities are already recorded.
    if let Some(identity) = identities?.get(name) {
        return identity.clone().map(PartitionPart::Identity);
    }
    let known: Vec<_> =
        identities?.keys().copied().chain(BuiltIn::ALL.map(BuiltIn::name)).collect();
    let hint = suggest::hint(name, &known);
    node.fault(format!("no identity is named {name:?}{hint}"));
    None
}

/// The name of a policy.
pub(crate) enum PolicyName {}

impl Type for PolicyName {
    type Out<'a> = &'a str;

    fn read<'a>(node: &Node<'a>) -> Option<&'a str> {
        let text = node.string()?;
        if NAME.accept(text) && text.split('/').all(|part| !part.is_empty()) {
            return Some(text);
        }
        let Names { most, pattern, .. } = NAME;
        node.fault(format!("must match {pattern}, at most {most} bytes long, is {text:?}"));
        None
    }

    #[cfg(feature = "schema")]
    fn schema(_: &mut crate::document::book::Book) -> Value {
        let Names { most, pattern, .. } = NAME;
        let pattern = format!("^{pattern}$");
        serde_json::json!({"type": "string", "maxLength": most, "pattern": pattern})
    }
}

/// A string that may be empty.
pub(crate) enum AnyText {}

impl Type for AnyText {
    type Out<'a> = &'a str;

    fn read<'a>(node: &Node<'a>) -> Option<&'a str> {
        node.string()
    }

    #[cfg(feature = "schema")]
    fn schema(_: &mut crate::document::book::Book) -> Value {
        serde_json::json!({"type": "string"})
    }
}

/// A [`Mode`]. YAML reads a bare `off` as `false`, which means the same.
pub(crate) enum ModeType {}

impl Type for ModeType {
    type Out<'a> = Mode;

    fn read(node: &Node<'_>) -> Option<Mode> {
        if *node.value() == Value::Bool(false) {
            return Some(Mode::Off);
        }
        Mode::read(node)
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut crate::document::book::Book) -> Value {
        let mut schema = Mode::schema(book);
        let off = "YAML 1.1 turns a bare `off` into this.";
        if let Some(choices) = schema.get_mut("oneOf").and_then(Value::as_array_mut) {
            choices
                .push(serde_json::json!({"const": false, "type": "boolean", "description": off}));
        }
        schema
    }
}
