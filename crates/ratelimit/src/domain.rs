//! One domain: its rules, and the counters behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::sync::Arc;

use quotagate_protocol::{Calendar, Fixed, MAX_UNITS, Mode, Window};
use quotagate_quota::config::{Config, HostedPolicy, Precision, StoreConfig};
use quotagate_quota::evaluate::{Check, Counter};
use quotagate_store::server::CallEndpoint;
use quotagate_store::store::Store;

use crate::counting::DomainCounters;
use crate::messages::{Descriptor, Unit};
use crate::owed::OwedHits;
use crate::rules::{Rule, RuleDomain, RuleLimit, replaced};

/// The policy of limits that requests bring for entries without a rule.
const REQUEST_LIMITS: &str = "request-limits";

/// A domain in force.
pub struct Domain {
    /// Its rules.
    pub rules: Arc<RuleDomain>,
    /// Its counters. The policy of a rule has the rule's index; the one after the last is for
    /// limits that requests bring for entries without a rule.
    pub counters: Arc<DomainCounters>,
    /// Its hits that the store does not have yet.
    pub owed: Arc<OwedHits>,
}

/// How all rules of the service count.
#[derive(Clone, Debug)]
pub struct CountingOptions {
    /// How the store is used.
    pub store: StoreConfig,
    /// Whether services hold leases.
    pub precision: Precision,
    /// The same for single domains, by their names, and for single rules, by domain and policy,
    /// such as `shop/per-user`. Both names are as operators know them. A rule precedes its domain.
    pub precisions: BTreeMap<String, Precision>,
    /// Whether refused requests count, too.
    pub count_refused: bool,
}

impl CountingOptions {
    fn precision_of(&self, domain: &str, policy: &str) -> Precision {
        let of = |name: &str| self.precisions.get(name).copied();
        of(&format!("{domain}/{policy}")).or_else(|| of(domain)).unwrap_or(self.precision)
    }

    /// The names in `precisions` that these rules do not have.
    pub fn unknown_names<'o>(
        &'o self,
        domains: impl IntoIterator<Item = &'o Arc<RuleDomain>>,
    ) -> Vec<&'o str> {
        let mut unknown: BTreeSet<&str> = self.precisions.keys().map(String::as_str).collect();
        for domain in domains.into_iter().take_while(|_| !self.precisions.is_empty()) {
            let name = crate::rules::written_name(domain.name());
            for rule in domain.rules() {
                unknown.remove(format!("{name}/{}", rule.policy).as_str());
            }
            unknown.remove(name.as_str());
        }
        unknown.into_iter().collect()
    }
}

/// What a descriptor of a request means.
#[derive(Debug, PartialEq, Eq)]
pub enum Limited {
    /// No limit applies.
    No,
    /// A rule says that there is none.
    Unlimited,
    /// A limit applies.
    By(AppliedLimit),
}

/// The limit of a descriptor.
#[derive(Debug, PartialEq, Eq)]
pub struct AppliedLimit {
    /// The index of its policy.
    pub policy: usize,
    /// The rule; `None` if the request brought the limit.
    pub rule: Option<usize>,
    /// Its counter.
    pub counter: Counter,
    /// The limit as it is written.
    pub hits: u32,
    /// Its time.
    pub unit: Unit,
}

impl Domain {
    /// Counters for these rules.
    pub fn open(
        rules: Arc<RuleDomain>,
        options: &CountingOptions,
        endpoint: Arc<CallEndpoint>,
        store: Arc<dyn Store>,
    ) -> Self {
        let owed = OwedHits::open(store, options.store.timeout);
        Self::with(rules, options, endpoint, owed)
    }

    /// Makes this domain with other rules. It keeps the hits that the store does not have yet.
    pub fn successor(
        &self,
        rules: Arc<RuleDomain>,
        options: &CountingOptions,
        endpoint: Arc<CallEndpoint>,
    ) -> Self {
        Self::with(rules, options, endpoint, Arc::clone(&self.owed))
    }

    fn with(
        rules: Arc<RuleDomain>,
        options: &CountingOptions,
        endpoint: Arc<CallEndpoint>,
        owed: Arc<OwedHits>,
    ) -> Self {
        let config = configuration(&rules, options);
        let counters = DomainCounters::open(Arc::new(config), endpoint);
        Self { rules, counters, owed }
    }

    /// The rule of a limit, unless the request brought the limit.
    pub fn rule(&self, limit: &AppliedLimit) -> Option<&Rule> {
        limit.rule.and_then(|rule| self.rules.rules().get(rule))
    }

    /// The limits of the descriptors of a request, those apart that other rules replace.
    ///
    /// # Errors
    /// When the request brings a limit without a time.
    pub fn limits(
        &self,
        descriptors: &[Descriptor],
        config: &Config,
    ) -> Result<Vec<Limited>, &'static str> {
        let matches: Vec<_> = descriptors.iter().map(|one| self.rules.find(&one.entries)).collect();
        // A limit in the request precedes the rule, and what that replaces.
        let rule = |index: usize| {
            let of_rule = descriptors.get(index)?.limit.is_none();
            let matched = matches.get(index)?.as_ref().filter(|_| of_rule)?;
            self.rules.rules().get(matched.rule)
        };
        let rules: Vec<Option<&Rule>> = (0..descriptors.len()).map(rule).collect();
        let replaced = replaced(&rules);
        let mut limits = Vec::with_capacity(descriptors.len());
        for ((descriptor, matched), (rule, is_replaced)) in
            descriptors.iter().zip(&matches).zip(rules.iter().zip(replaced))
        {
            let matched = matched.as_ref();
            let partition = matched.map(|matched| &*matched.partition);
            limits.push(match (descriptor.limit, rule.map(|rule| rule.limit)) {
                (Some(limit), _) => {
                    let unit = limit.unit();
                    let index = matched.map(|matched| matched.rule);
                    let all = descriptor.entries.iter();
                    let all = all.map(|entry| (entry.key.as_str(), entry.value.as_str()));
                    let all: Vec<(&str, &str)> = all.collect();
                    let partition = partition.unwrap_or(&all);
                    let hits = limit.requests_per_unit;
                    Limited::By(self.applied(index, None, hits, unit, partition, config)?)
                }
                (None, None) => Limited::No,
                (None, Some(RuleLimit::Unlimited)) => Limited::Unlimited,
                (None, Some(_)) if is_replaced => Limited::No,
                (None, Some(RuleLimit::Hits(hits, unit))) => {
                    let index = matched.map(|matched| matched.rule);
                    let partition = partition.unwrap_or_default();
                    Limited::By(self.applied(index, index, hits, unit, partition, config)?)
                }
            });
        }
        Ok(limits)
    }

    fn applied(
        &self,
        index: Option<usize>,
        rule: Option<usize>,
        hits: u32,
        unit: Unit,
        partition: &[(&str, &str)],
        config: &Config,
    ) -> Result<AppliedLimit, &'static str> {
        let policy = index.unwrap_or(self.rules.rules().len());
        let of = config.policies.get(policy);
        let name = of.map_or(REQUEST_LIMITS, |of| &of.name);
        let key = config.counter_key(name, partition.iter().copied());
        let dialed = of.and_then(|of| of.dialed_quota).filter(|_| rule.is_some());
        let quota = dialed.unwrap_or_else(|| hits.into());
        let window = window(unit).ok_or("the limit of a descriptor needs a unit")?;
        Ok(AppliedLimit { policy, rule, counter: Counter { key, quota, window }, hits, unit })
    }
}

/// A policy for each of these rules, and one for limits that requests bring.
pub fn configuration(rules: &RuleDomain, options: &CountingOptions) -> Config {
    let name = crate::rules::written_name(rules.name());
    let policies = rules.rules().iter().map(|rule| policy(&name, rule, options));
    // Operators see the greatest limit that a request may bring.
    let of_requests = hosted(&name, REQUEST_LIMITS.into(), u32::MAX, Unit::Second, options);
    let policies: Vec<HostedPolicy> = policies.chain([of_requests]).collect();
    Config::hosted(&name, options.store.clone(), policies)
}

/// The checks of a request: one for each counter, in the order of the policies. `wanted` has the
/// limits that count, with their hits; `mode` says how each of them refuses.
pub fn checks<'l>(
    wanted: impl IntoIterator<Item = (&'l AppliedLimit, NonZeroU64, Mode)>,
) -> Result<Vec<Check>, &'static str> {
    let mut checks: BTreeMap<(usize, &Counter), (u64, Mode)> = BTreeMap::new();
    for (limit, hits, mode) in wanted {
        let (sum, strictest) = checks.entry((limit.policy, &limit.counter)).or_insert((0, mode));
        *sum = sum.saturating_add(hits.get());
        if mode == Mode::Enforce || *strictest == Mode::Shadow {
            *strictest = mode;
        }
    }
    let check = |((policy, counter), (hits, mode)): ((usize, &Counter), (u64, Mode))| {
        let cost = NonZeroU64::new(hits).filter(|cost| cost.get() <= MAX_UNITS);
        let cost = cost.ok_or("hits_addend must be at most 9007199254740991")?;
        Ok(Check { policy, counter: counter.clone(), cost, mode })
    };
    checks.into_iter().map(check).collect()
}

fn policy(domain: &str, rule: &Rule, options: &CountingOptions) -> HostedPolicy {
    // Unlimited rules have a policy, too, so that the indexes are the same. It counts nothing.
    let (hits, unit, mode) = match rule.limit {
        RuleLimit::Unlimited => (u32::MAX, Unit::Second, Mode::Off),
        RuleLimit::Hits(hits, unit) if rule.shadow_mode => (hits, unit, Mode::Shadow),
        RuleLimit::Hits(hits, unit) => (hits, unit, Mode::Enforce),
    };
    let partition_by = rule.partition_by.clone();
    let policy = hosted(domain, Arc::clone(&rule.policy), hits, unit, options);
    HostedPolicy { mode, partition_by, ..policy }
}

fn hosted(
    domain: &str,
    name: Arc<str>,
    hits: u32,
    unit: Unit,
    options: &CountingOptions,
) -> HostedPolicy {
    let precision = options.precision_of(domain, &name);
    HostedPolicy {
        name,
        quota: hits.into(),
        window: window(unit).unwrap_or(Window::Fixed(const { fixed(1) })),
        mode: Mode::Enforce,
        partition_by: Vec::new(),
        precision,
        count_denied: options.count_refused && precision == Precision::Exact,
    }
}

/// The window of a unit: aligned, in UTC. Weeks begin on Monday. `None` for no unit.
pub fn window(unit: Unit) -> Option<Window> {
    const SECOND: Fixed = fixed(1);
    const MINUTE: Fixed = fixed(60);
    const HOUR: Fixed = fixed(60 * 60);
    const DAY: Fixed = fixed(24 * 60 * 60);
    let calendar = |unit| Window::Calendar(Calendar { unit, time_zone: "UTC".into() });
    Some(match unit {
        Unit::Unknown => return None,
        Unit::Second => SECOND.into(),
        Unit::Minute => MINUTE.into(),
        Unit::Hour => HOUR.into(),
        Unit::Day => DAY.into(),
        Unit::Week => calendar(quotagate_protocol::Unit::Week),
        Unit::Month => calendar(quotagate_protocol::Unit::Month),
        Unit::Year => calendar(quotagate_protocol::Unit::Year),
    })
}

#[allow(clippy::panic, reason = "Evaluated by the compiler only")]
const fn fixed(seconds: u32) -> Fixed {
    match Fixed::new(seconds, 0) {
        Some(window) => window,
        None => panic!("the length of a window is out of its bounds"),
    }
}
