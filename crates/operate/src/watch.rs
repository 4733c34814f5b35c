//! What a process observes in its calls: reservations and units per policy, how full the windows
//! of partitions are, and the partitions with the most requests beyond their quota. It decides
//! nothing.
//!
//! Bounds: `MAX_POLICIES` policies over all domains, the rest counts as `other`;
//! `table::MAX_WATCHED` partitions in their current window; `top::KEPT` keys in each slice of both
//! sketches. A process sees only its own calls: if several serve a partition, each knows
//! its counter as of its own last call. [`Fleet`](crate::Fleet) merges what they saw.

mod builds;
mod calls;
mod documents;
mod in_flight;
mod in_force;
mod in_force_sightings;
mod picture;
mod policy;
mod rules;
mod sight;
mod table;
mod top;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use quotagate_protocol::dials::{ALL_POLICIES, MAX_REFUSALS, MAX_REPORTED_KEY, Report};

use quotagate_protocol::{CounterKey, is_domain, is_policy};
use quotagate_store::store::{CheckedReservation, Reserved};

use self::builds::Builds;
pub use self::calls::{Calls, Totals};
pub use self::documents::{MAX_REFUSED_DOCUMENTS, RefusedDocumentSighting, RefusedDocuments};
use self::in_flight::SlotSums;
pub use self::in_force::{ReportedDocuments, SilentWorkers};
pub use self::in_force_sightings::{DocumentSighting, ProxySighting, WorkerSighting, merged};
pub use self::picture::{Pace, PolicyTotals, Series, Sighting, SlotTotals, StoreTotals, Wanted};
pub use self::policy::OutcomeCounts;
use self::policy::{Debt, Families, PolicyMetrics};
pub use self::policy::{STEP, STEPS};
pub use self::rules::{OwnRules, RulesSighting};
pub use self::sight::CallSight;
pub use self::table::are_alike;
use self::table::{Observation, Seen, Table};
use self::top::{Sketch, Tally};
use crate::api::{QuotaFrom, Refused, Usage};
use crate::millis;

/// Most policies over all domains that have their own metrics.
const MAX_POLICIES: usize = 1024;
/// The domain and the policy under which the rest is counted.
const OTHER: &str = "other";

/// What happened to requests beyond their quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beyond {
    /// They were refused.
    Refused,
    /// The mode of the policy, shadow or mark, let them through.
    LetThrough,
}

/// Everything that this process observes in its calls.
#[derive(Default)]
pub struct Watch {
    families: Families,
    /// By `<domain>:<policy>`.
    policies: RwLock<HashMap<Box<str>, Arc<PolicyMetrics>>>,
    table: Table,
    refused: Mutex<Sketch>,
    let_through: Mutex<Sketch>,
    watched: Gauge,
    unwatched: Counter,
    /// The calls that were answered.
    pub calls: Calls,
    reports: AtomicU64,
    builds: Builds,
    /// The documents that filters refused.
    pub documents: RefusedDocuments,
    /// The documents in force.
    pub in_force: ReportedDocuments,
    /// The rules in force, if this process is a rate limit service.
    pub rules: OwnRules,
}

impl Watch {
    /// Adds its metrics to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        self.families.register(registry);
        self.builds.register(registry);
        let help = "Partitions watched in their current window";
        registry.register("partitions_watched", help, self.watched.clone());
        let help = "Reservations of partitions that are not watched because the table is full";
        registry.register("partitions_unwatched", help, self.unwatched.clone());
    }

    /// Adds the metrics whose names say themselves what they are of.
    pub fn register_named(&self, registry: &mut Registry) {
        self.families.slots.register(registry);
        self.families.register_settled(registry);
    }

    /// Records the outcome of a reservation.
    pub fn reserved(&self, ask: &CheckedReservation, reserved: &Reserved) {
        let Some((metrics, partition)) = self.metrics_of(&ask.key) else { return };
        metrics.reserved(ask, reserved);
        let Ok(grant) = reserved else { return };
        // A reservation does not say how many requests wait for it. If it is not granted in full,
        // at least one of them is beyond the quota.
        if grant.granted < ask.want && !in_flight::waits(ask) {
            let beyond = if ask.shadow { Beyond::LetThrough } else { Beyond::Refused };
            self.sketch(beyond).add(&ask.key, 1, Instant::now());
        }
        if !partition.is_empty() {
            match self.table.see(ask, grant) {
                Observation::Watched => {}
                Observation::Ended(fullness) => metrics.ended(fullness),
                Observation::NoRoom => drop(self.unwatched.inc()),
            }
        }
    }

    /// Records a reservation that was rejected for its values.
    pub fn invalid(&self, key: &str) {
        if let Some((metrics, _)) = self.metrics_of(key) {
            metrics.invalid();
        }
    }

    /// Records refunded units.
    pub fn refunded(&self, key: &str, units: u64) {
        if let Some((metrics, _)) = self.metrics_of(key) {
            metrics.refunded(units);
        }
    }

    /// Records units that a settled cost took beyond its reservation.
    pub fn charged(&self, key: &str, units: u64) {
        if let Some((metrics, _)) = self.metrics_of(key) {
            metrics.charged(units);
        }
    }

    /// Records a proxy's report of its requests in this domain.
    pub fn reported(&self, domain: &str, report: &Report) {
        let now = Instant::now();
        self.reports.fetch_add(1, Relaxed);
        self.builds.reported(report);
        self.documents.reported(domain, report, now);
        self.in_force.reported(domain, report, now);
        for policy in &report.policies {
            self.metrics(&format!("{domain}:{}", policy.name)).reported(policy, now);
        }
        let refused = report.refused.iter().take(MAX_REFUSALS).map(|of| (Beyond::Refused, of));
        let let_through =
            report.would_refuse.iter().take(MAX_REFUSALS).map(|of| (Beyond::LetThrough, of));
        for (beyond, refusals) in refused.chain(let_through) {
            let own = refusals.key.strip_prefix(domain).is_some_and(|rest| rest.starts_with(':'));
            let graphic = refusals.key.bytes().all(|b| b.is_ascii_graphic());
            if own
                && graphic
                && refusals.key.len() <= MAX_REPORTED_KEY
                && CounterKey::split(&refusals.key).is_some()
            {
                self.sketch(beyond).add(&refusals.key, refusals.requests.min(policy::MOST), now);
            }
        }
    }

    /// Drops windows that have ended, and counts debt and slots.
    pub fn sweep(&self, now: Instant) {
        self.table.sweep(now, |key, fullness| {
            if let Some((metrics, _)) = self.metrics_of(key) {
                metrics.ended(fullness);
            }
        });
        self.watched.set(i64::try_from(self.table.len()).unwrap_or(i64::MAX));
        let mut debts: HashMap<String, Debt> = HashMap::new();
        self.table.each_over(|key, units| {
            if self.metrics_of(key).is_some_and(|(metrics, _)| metrics.settles()) {
                let name = key.split_once(":{").map_or(key, |(name, _)| name);
                debts.entry(name.to_owned()).or_default().add(units);
            }
        });
        // Policies beyond the bound are one.
        let mut slots: HashMap<*const PolicyMetrics, SlotSums> = HashMap::new();
        self.table.each_in_flight(now, |key, held, waiting| {
            if let Some((metrics, _)) = self.metrics_of(key) {
                slots.entry(Arc::as_ptr(&metrics)).or_default().add(held, waiting);
            }
        });
        let policies = self.policies.read().unwrap_or_else(PoisonError::into_inner);
        for (name, metrics) in policies.iter() {
            metrics.owes(debts.get(&**name).copied().unwrap_or_default());
            metrics.holds(slots.get(&Arc::as_ptr(metrics)).copied().unwrap_or_default());
        }
    }

    /// Sweeps once a second. Never returns.
    pub async fn keep_swept(&self) {
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        loop {
            ticks.tick().await;
            self.sweep(Instant::now());
        }
    }

    /// The quota that the last reservation of this key named in this window, if it is watched.
    pub fn quota(&self, key: &str, number: u64) -> Option<u64> {
        self.table.asked(key, number)
    }

    /// Forgets the quotas that reservations named, because a dial of the policy, or of all
    /// policies, has changed.
    pub fn forget(&self, domain: &str, policy: &str) {
        let meant = |key: &str| {
            CounterKey::split(key).is_some_and(|CounterKey { domain: of, policy: name, .. }| {
                of == domain && (policy == ALL_POLICIES || policy == name)
            })
        };
        self.table.forget_asked(meant);
    }

    /// The fullest partitions, the fullest first.
    pub fn fullest(&self, limit: usize, wanted: Wanted<'_>) -> Vec<Sighting> {
        let now = Instant::now();
        let found = self.table.fullest(limit, now, |key| is_wanted(key, wanted));
        found.into_iter().filter_map(|(key, seen)| self.sighting_of(&key, seen, now)).collect()
    }

    /// What this process last saw of a partition.
    pub fn sighting(&self, usage: &Usage) -> Option<Sighting> {
        let key = format!("{}:{}:{{{}}}", usage.domain, usage.policy, usage.partition);
        self.sighting_of(&key, self.table.get(&key)?, Instant::now())
    }

    /// The partitions with the most requests beyond their quota, those with the most first.
    pub fn beyond(&self, beyond: Beyond, limit: usize, wanted: Wanted<'_>) -> Vec<Refused> {
        let now = Instant::now();
        let most = self.sketch(beyond).most(limit, now, |key| is_wanted(key, wanted));
        most.into_iter().filter_map(|(key, tally)| refused(&key, tally, now)).collect()
    }

    /// The requests of the partition with this key that were beyond its quota.
    pub fn beyond_of(&self, beyond: Beyond, key: &str) -> Option<Refused> {
        let now = Instant::now();
        let tally = self.sketch(beyond).of(key, now)?;
        refused(key, tally, now)
    }

    /// The partition of a policy, or an entry of the partitions of a domain, that differs from this
    /// one by so few letters that an operator may have meant it.
    pub fn similar(&self, domain: &str, policy: Option<&str>, typed: &str) -> Option<String> {
        let (label, value) = typed.rsplit_once('=')?;
        let most = value.len() / 3;
        let mut best: Option<(usize, String)> = None;
        let own = policy.map_or(format!("{domain}:"), |policy| format!("{domain}:{policy}:{{"));
        self.table.each_key(&own, |key| {
            let Some(of) = CounterKey::split(key) else { return };
            let whole = std::iter::once(of.partition).filter(|_| policy.is_some());
            let entries = of.partition.split(',').filter(|_| policy.is_none());
            for known in whole.chain(entries) {
                let Some((_, other)) = known.rsplit_once('=').filter(|(of, _)| *of == label) else {
                    continue;
                };
                if other.len().abs_diff(value.len()) > most {
                    continue;
                }
                let errors = strsim::damerau_levenshtein(value, other);
                if errors <= most.min(2) && best.as_ref().is_none_or(|(least, _)| errors < *least) {
                    best = Some((errors, known.to_owned()));
                }
            }
        });
        best.map(|(_, known)| known)
    }

    /// The requests of all policies within the last five minutes, as proxies reported them.
    pub fn series(&self) -> Vec<Series> {
        let now = Instant::now();
        let policies = self.policies.read().unwrap_or_else(PoisonError::into_inner);
        policies.values().filter_map(|metrics| metrics.series(now)).collect()
    }

    /// The requests of all policies since this process started, as proxies reported them.
    pub fn totals(&self) -> Vec<PolicyTotals> {
        let policies = self.policies.read().unwrap_or_else(PoisonError::into_inner);
        policies.values().filter_map(|metrics| metrics.totals()).collect()
    }

    /// Records the rules of all domains, if this process is a rate limit service.
    pub fn rules_in_force(&self, rules: Vec<RulesSighting>) {
        if self.rules.set(rules, Instant::now()) {
            self.reports.fetch_add(1, Relaxed);
        }
    }

    /// A number that changes whenever a call was answered, a proxy reported or rules changed.
    pub fn pulse(&self) -> u64 {
        self.calls.totals().calls.wrapping_add(self.reports.load(Relaxed))
    }

    fn sighting_of(&self, key: &str, seen: Seen, now: Instant) -> Option<Sighting> {
        let CounterKey { domain, policy, partition } = CounterKey::split(key)?;
        let (metrics, _) = self.metrics_of(key)?;
        let quota = Some(seen.quota);
        let usage = Usage {
            domain: domain.to_owned(),
            policy: policy.to_owned(),
            partition: partition.to_owned(),
            used: seen.used,
            debt: Usage::debt(seen.used, quota, metrics.settles()),
            quota,
            quota_from: match seen.asked {
                Some(asked) if asked != seen.quota => QuotaFrom::Override,
                _ => QuotaFrom::Reservation,
            },
            kind: seen.kind,
            window_s: seen.window_s,
            reset_ms: millis(seen.end.saturating_duration_since(now)),
        };
        let age_ms = millis(now.saturating_duration_since(seen.at));
        Some(Sighting { usage, window: seen.number, age_ms })
    }

    /// Whether a policy has metrics of its own.
    pub fn has_metrics(&self, domain: &str, policy: &str) -> bool {
        let policies = self.policies.read().unwrap_or_else(PoisonError::into_inner);
        policies.contains_key(&*format!("{domain}:{policy}"))
    }

    /// The metrics of a counter's key, and its partition.
    fn metrics_of<'a>(&self, key: &'a str) -> Option<(Arc<PolicyMetrics>, &'a str)> {
        let (name, partition) = key.split_once(":{")?;
        Some((self.metrics(name), partition))
    }

    fn metrics(&self, name: &str) -> Arc<PolicyMetrics> {
        if let Some(metrics) =
            self.policies.read().unwrap_or_else(PoisonError::into_inner).get(name)
        {
            return Arc::clone(metrics);
        }
        let (domain, policy) = name.split_once(':').unwrap_or((OTHER, OTHER));
        let mut policies = self.policies.write().unwrap_or_else(PoisonError::into_inner);
        let known = is_domain(domain) && is_policy(policy) && policies.len() < MAX_POLICIES;
        let (domain, policy) = if known { (domain, policy) } else { (OTHER, OTHER) };
        let name = format!("{domain}:{policy}").into_boxed_str();
        let make = || Arc::new(self.families.policy(domain, policy));
        Arc::clone(policies.entry(name).or_insert_with(make))
    }

    /// No panic can happen while it is locked, so a poisoned lock guards nothing that is broken.
    fn sketch(&self, beyond: Beyond) -> MutexGuard<'_, Sketch> {
        let sketch = match beyond {
            Beyond::Refused => &self.refused,
            Beyond::LetThrough => &self.let_through,
        };
        sketch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refused(key: &str, tally: Tally, now: Instant) -> Option<Refused> {
    let CounterKey { domain, policy, partition } = CounterKey::split(key)?;
    let (domain, policy, partition) = (domain.to_owned(), policy.to_owned(), partition.to_owned());
    let for_ms = millis(now.saturating_duration_since(tally.since));
    let Tally { count: requests, error, .. } = tally;
    Some(Refused { domain, policy, partition, requests, error, for_ms })
}

fn is_wanted(key: &str, wanted: Wanted<'_>) -> bool {
    wanted.is_all() || CounterKey::split(key).is_some_and(|key| wanted.has(key.domain, key.policy))
}
