//! The answer to a request of Envoy.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;
use quotagate_protocol::{MAX_UNITS, Mode};
use quotagate_quota::config::Config;
use quotagate_quota::decision::{Admission, Balance, Decision, Held, Standing, Uncounted};
use quotagate_quota::evaluate::Counter;
use quotagate_quota::time::Monotonic;
use quotagate_store::window::Position;

use crate::counting::{CounterReading, DomainCounters};
use crate::domain::{AppliedLimit, Domain, Limited, checks};
use crate::headers::{HeaderNames, headers};
use crate::messages::{
    Code, CurrentLimit, Descriptor, DescriptorStatus, RateLimitRequest, RateLimitResponse,
};
use crate::metadata;
use crate::metrics::{ErrorKind, HitOutcome, HitsOver, ServiceMetrics};
use crate::owed::{OwedHits, UntakenHits};

/// Answers requests with the rules in force.
///
/// Call order: [`new`](Self::new), then [`replace_domains`](Self::replace_domains) whenever rules
/// come. [`should_rate_limit`](Self::should_rate_limit) may be called at any time. After the last
/// request, [`settle`](Self::settle) it.
pub struct RateLimitService {
    options: AnswerOptions,
    domains: RwLock<Option<Domains>>,
    replaced: Mutex<ReplacedDomains>,
    /// What the original's metrics say.
    pub metrics: ServiceMetrics,
}

/// What is left of domains that others replaced, for as long as it has something to send to the
/// store.
#[derive(Default)]
struct ReplacedDomains {
    counters: Vec<Weak<DomainCounters>>,
    /// Those that no later domain has taken over.
    owed: Vec<Weak<OwedHits>>,
}

/// The part of a limit from which on its hits are near it, unless a setting says another one.
pub const NEAR_LIMIT: f64 = 0.8;

/// The domains in force, by their names.
pub type Domains = Arc<BTreeMap<Arc<str>, Arc<Domain>>>;

/// What answers contain, and how strict they are.
#[derive(Clone, Debug)]
pub struct AnswerOptions {
    /// The headers for clients, if there are any.
    pub headers: Option<HeaderNames>,
    /// Whether answers carry the request and the metadata of its rules.
    pub metadata: bool,
    /// Whether no request is refused.
    pub shadow_mode: bool,
    /// Whether a request is refused only if all its limits are used up.
    pub quota_mode: bool,
    /// The part of a limit from which on its hits are near it: 0 to 1. For metrics.
    pub near_limit: f64,
}

impl Default for AnswerOptions {
    fn default() -> Self {
        Self {
            headers: None,
            metadata: false,
            shadow_mode: false,
            quota_mode: false,
            near_limit: NEAR_LIMIT,
        }
    }
}

/// Why a request has no answer. gRPC calls get the status `UNKNOWN` with this text, and Envoy's
/// `failure_mode_deny` decides.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// The request makes no sense.
    #[error("{0}")]
    Request(&'static str),
    /// The store failed, and `on_failure` is `deny`.
    #[error("the store cannot count the request by the rule {0}")]
    Store(String),
}

/// A descriptor with its limit and its hits.
struct LimitedDescriptor<'r> {
    descriptor: &'r Descriptor,
    limit: Limited,
    hits: u64,
}

/// What a limit says of the hits that a descriptor takes.
struct LimitVerdict {
    granted: bool,
    /// Whether it may refuse.
    refuses: bool,
    /// `None` if nothing is known of the counter.
    balance: Option<Balance>,
}

/// The hits that a request takes. When this is dropped, each descriptor either holds its hits, or
/// they are owed.
struct TakenHits<'r> {
    domain: &'r Arc<Domain>,
    config: &'r Config,
    /// All that the request should take.
    wanted: Vec<WantedHits<'r>>,
    standings: Vec<Standing>,
    held: Vec<Held>,
    /// Whether it keeps what it holds.
    is_admitted: bool,
}

/// The hits of a descriptor.
struct WantedHits<'r> {
    limit: &'r AppliedLimit,
    hits: NonZeroU64,
    /// How its limit refuses.
    mode: Mode,
    /// Whether the descriptor gave them.
    is_given: bool,
}

impl LimitedDescriptor<'_> {
    /// Whether it only looks, or refunds.
    fn takes_nothing(&self) -> bool {
        self.hits == 0 || self.descriptor.is_negative_hits
    }
}

impl TakenHits<'_> {
    /// Takes what the core decided. Returns whether the request is refused.
    fn decided(&mut self, decision: Decision) -> Result<bool, Uncounted> {
        match decision {
            // Every policy holds its units.
            Decision::Admit(Admission { standings, held, .. }) => {
                (self.standings, self.held) = (standings, held);
                Ok(false)
            }
            Decision::Refuse(refusal) => {
                self.standings = refusal.standings;
                Ok(true)
            }
            Decision::Unavailable(uncounted) => Err(uncounted),
        }
    }

    /// What the limits of descriptors say, by their counters.
    fn standings(&self) -> HashMap<&Counter, &Standing> {
        self.standings.iter().map(|standing| (&standing.counter, standing)).collect()
    }
}

impl TakenHits<'_> {
    /// Keeps what an admitted request holds, and owes what the request does not hold. Returns
    /// whether the store must have that before the request is answered.
    fn settle(&mut self) -> bool {
        let (wanted, mut held) = (std::mem::take(&mut self.wanted), std::mem::take(&mut self.held));
        if !self.is_admitted && !held.is_empty() {
            self.domain.counters.refund(std::mem::take(&mut held));
        }
        if held.len() == wanted.len() {
            return false;
        }
        let held: HashSet<&Counter> = held.iter().map(|held| &held.counter).collect();
        let (now, standings) = (self.domain.counters.now(), self.standings());
        let untaken = wanted.iter().filter_map(|&WantedHits { limit, hits, mode, is_given }| {
            let counter = &limit.counter;
            let standing = standings.get(counter);
            let policy = self.config.policies.get(limit.policy);
            let counts_refused = policy.is_some_and(|policy| policy.count_denied);
            let was_counted = counts_refused
                && standing.is_some_and(|standing| !standing.granted && standing.by_store);
            let reset = standing.map(|standing| standing.balance.resets.since(now));
            let reset = reset.unwrap_or_else(|| counter.window.length());
            let (hits, counts) = (hits.get(), mode != Mode::Off);
            (!held.contains(counter) && !was_counted).then_some(UntakenHits {
                counter,
                hits,
                is_given,
                counts,
                reset,
            })
        });
        self.domain.owed.add_untaken(untaken)
    }
}

impl Drop for TakenHits<'_> {
    fn drop(&mut self) {
        self.settle();
    }
}

impl RateLimitService {
    /// A service without rules: it answers no request.
    pub fn new(options: AnswerOptions) -> Self {
        let (domains, replaced) = (RwLock::default(), Mutex::default());
        Self { options, domains, replaced, metrics: ServiceMetrics::default() }
    }

    /// The domains in force; `None` before the first rules have come.
    pub fn domains(&self) -> Option<Domains> {
        self.domains.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts other rules in force. Requests under way end by the old ones.
    pub fn replace_domains(&self, domains: Domains) {
        let before = {
            let mut current = self.domains.write().unwrap_or_else(PoisonError::into_inner);
            current.replace(Arc::clone(&domains)).unwrap_or_default()
        };
        let mut replaced = self.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        replaced.counters.retain(|counters| counters.strong_count() > 0);
        replaced.owed.retain(|owed| owed.strong_count() > 0);
        for (name, domain) in before.iter() {
            let current = domains.get(name);
            if !current.is_some_and(|current| Arc::ptr_eq(&current.counters, &domain.counters)) {
                replaced.counters.push(Arc::downgrade(&domain.counters));
            }
            if !current.is_some_and(|current| Arc::ptr_eq(&current.owed, &domain.owed)) {
                replaced.owed.push(Arc::downgrade(&domain.owed));
            }
        }
    }

    /// Waits until the store has what requests refunded and owe, those of replaced domains
    /// included. Call it when no request comes any more.
    pub async fn settle(&self) {
        let ReplacedDomains { counters, owed } =
            std::mem::take(&mut *self.replaced.lock().unwrap_or_else(PoisonError::into_inner));
        let domains = self.domains().unwrap_or_default();
        let counters = counters.iter().filter_map(Weak::upgrade);
        let counters: Vec<_> =
            counters.chain(domains.values().map(|domain| Arc::clone(&domain.counters))).collect();
        // First, because a call that ends may owe hits.
        join_all(counters.iter().map(|counters| counters.settled())).await;
        let owed = owed.iter().filter_map(Weak::upgrade);
        let owed: Vec<_> =
            owed.chain(domains.values().map(|domain| Arc::clone(&domain.owed))).collect();
        join_all(owed.iter().map(|owed| owed.flushed())).await;
    }

    /// Answers a request, and counts it: it takes the hits of all its descriptors, or of none if it
    /// is refused.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn should_rate_limit(
        &self,
        request: &RateLimitRequest,
    ) -> Result<RateLimitResponse, NoAnswer> {
        let begun = Instant::now();
        let answer = self.decide(request).await;
        self.metrics.answered(begun.elapsed());
        match &answer {
            Ok(_) => {}
            Err(NoAnswer::Store(_)) => self.metrics.failed(ErrorKind::Redis),
            Err(NoAnswer::Request(_)) => self.metrics.failed(ErrorKind::Service),
        }
        answer
    }

    /// Records a request that is refused before it is decoded.
    pub(crate) fn refuse(&self, fault: &'static str) -> NoAnswer {
        self.metrics.failed(ErrorKind::Service);
        NoAnswer::Request(fault)
    }

    async fn decide(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, NoAnswer> {
        if request.domain.is_empty() {
            return Err(NoAnswer::Request("rate limit domain must not be empty"));
        }
        if request.descriptors.is_empty() {
            return Err(NoAnswer::Request("rate limit descriptor list must not be empty"));
        }
        let domains =
            self.domains().ok_or(NoAnswer::Request("no rate limit configuration loaded"))?;
        let Some(domain) = domains.get(request.domain.as_str()) else {
            let statuses = request.descriptors.iter().map(|_| unlimited(0)).collect();
            return Ok(self.answer(request, None, &[], statuses, Code::Ok));
        };
        let config = domain.counters.begin();
        let limits = domain.limits(&request.descriptors, &config).map_err(NoAnswer::Request)?;
        let asked: Vec<LimitedDescriptor<'_>> = request
            .descriptors
            .iter()
            .zip(limits)
            .map(|(descriptor, limit)| LimitedDescriptor {
                descriptor,
                limit,
                hits: hits(request, descriptor),
            })
            .collect();
        self.count(request, domain, &config, &asked).await
    }

    async fn count(
        &self,
        request: &RateLimitRequest,
        domain: &Arc<Domain>,
        config: &Config,
        asked: &[LimitedDescriptor<'_>],
    ) -> Result<RateLimitResponse, NoAnswer> {
        let deadline = tokio::time::Instant::now() + config.store.timeout;
        let wanted = asked.iter().filter(|asked| !asked.takes_nothing());
        let wanted = wanted.filter_map(|asked| match &asked.limit {
            Limited::By(limit) => Some(WantedHits {
                limit,
                hits: NonZeroU64::new(asked.hits)?,
                mode: self.mode(domain, config, limit),
                is_given: asked.descriptor.hits_addend.is_some(),
            }),
            Limited::No | Limited::Unlimited => None,
        });
        let wanted: Vec<_> = wanted.collect();
        let counted = wanted.iter().map(|wanted| (wanted.limit, wanted.hits, wanted.mode));
        let checks = checks(counted.filter(|(_, _, mode)| *mode != Mode::Off));
        let checks = checks.map_err(NoAnswer::Request)?;
        let (standings, held, is_admitted) = (Vec::new(), Vec::new(), false);
        let mut taken = TakenHits { domain, config, wanted, standings, held, is_admitted };
        // Envoy may reset the call while it looks, so the hits are held as soon as they are taken.
        let decide = async {
            taken.decided(if checks.is_empty() {
                Decision::Admit(Admission::default())
            } else {
                domain.counters.decide(checks).await
            })
        };
        let (refused, readings) = tokio::join!(decide, look_or_refund(domain, config, asked));
        let refused = refused.map_err(|uncounted| {
            let policy = config.policies.get(uncounted.policy);
            NoAnswer::Store(policy.map_or_else(String::new, |policy| policy.name.to_string()))
        })?;
        let readings = readings?;
        let (now, standings) = (domain.counters.now(), taken.standings());
        let mut statuses = Vec::with_capacity(asked.len());
        let (mut quota_limits, mut quota_over) = (0, 0);
        let mut over = refused;
        for asked in asked {
            let status = match &asked.limit {
                Limited::No => unlimited(0),
                Limited::Unlimited => unlimited(u32::MAX),
                Limited::By(limit) if asked.takes_nothing() => {
                    let reading = readings.get(&limit.counter);
                    self.status_of_reading(domain, config, limit, asked, reading)
                }
                Limited::By(limit) => {
                    let standing = standings.get(&limit.counter);
                    let verdict = LimitVerdict {
                        granted: standing.is_none_or(|standing| standing.granted),
                        refuses: refuses(config, limit),
                        balance: standing.map(|standing| standing.balance),
                    };
                    let status = status(domain, limit, asked.hits, &verdict, now);
                    self.count_hits(domain, asked, &status, &verdict);
                    status
                }
            };
            let is_over = status.code() == Code::OverLimit;
            if self.is_quota_limit(domain, &asked.limit) {
                quota_limits += 1;
                quota_over += usize::from(is_over);
            } else {
                over |= is_over;
            }
            statuses.push(status);
        }
        over |= quota_limits > 0 && quota_limits == quota_over;
        let passes = !over || self.options.shadow_mode;
        taken.is_admitted = passes;
        if taken.settle() {
            let owed = Arc::clone(&domain.owed);
            let flush = domain.counters.spawn(async move { owed.flush().await });
            // A request waits for the store no longer than the timeout, with its decision. If the
            // store is away, the flush follows later, and further requests do not wait for it.
            let _ = tokio::time::timeout_at(deadline, flush).await;
        }
        let code = if passes { Code::Ok } else { Code::OverLimit };
        Ok(self.answer(request, Some(domain), asked, statuses, code))
    }

    fn answer(
        &self,
        request: &RateLimitRequest,
        domain: Option<&Arc<Domain>>,
        asked: &[LimitedDescriptor<'_>],
        statuses: Vec<DescriptorStatus>,
        code: Code,
    ) -> RateLimitResponse {
        let names = self.options.headers.as_ref();
        let is_quota = |index: usize| {
            let limit = asked.get(index).map(|asked| &asked.limit);
            limit.zip(domain).is_some_and(|(limit, domain)| self.is_quota_limit(domain, limit))
        };
        let response_headers_to_add =
            names.map(|names| headers(names, &statuses, is_quota)).unwrap_or_default();
        let dynamic_metadata = self.options.metadata.then(|| {
            let passed = asked.iter().zip(&statuses).filter_map(|(asked, status)| {
                let Limited::By(AppliedLimit { rule: Some(rule), .. }) = &asked.limit else {
                    return None;
                };
                let passed = status.code() != Code::OverLimit;
                domain?.rules.rules().get(*rule).filter(|_| passed)?.metadata.as_ref()
            });
            metadata::of(request, passed)
        });
        RateLimitResponse {
            overall_code: code.into(),
            statuses,
            response_headers_to_add,
            dynamic_metadata,
        }
    }

    /// How a limit refuses.
    fn mode(&self, domain: &Domain, config: &Config, limit: &AppliedLimit) -> Mode {
        match dialed_mode(config, limit) {
            Mode::Enforce if self.options.shadow_mode => Mode::Shadow,
            // The request waits for it, and the service refuses.
            Mode::Enforce if self.is_quota(domain, limit) => Mode::Mark,
            mode => mode,
        }
    }

    fn is_quota(&self, domain: &Domain, limit: &AppliedLimit) -> bool {
        let rule = domain.rule(limit);
        self.options.quota_mode || rule.is_some_and(|rule| rule.quota_mode)
    }

    /// Whether a request is refused only if this limit and all others of this kind are used up.
    fn is_quota_limit(&self, domain: &Domain, limit: &Limited) -> bool {
        match limit {
            Limited::No => self.options.quota_mode,
            Limited::Unlimited => false,
            Limited::By(limit) => self.is_quota(domain, limit),
        }
    }

    /// The status of a descriptor that looks, or refunds. A refund is never over the limit.
    fn status_of_reading(
        &self,
        domain: &Domain,
        config: &Config,
        limit: &AppliedLimit,
        asked: &LimitedDescriptor<'_>,
        reading: Option<&CounterReading>,
    ) -> DescriptorStatus {
        let now = domain.counters.now();
        let is_over = asked.hits == 0 && reading.is_some_and(|reading| reading.debt > 0);
        let refuses = refuses(config, limit);
        let balance = reading.map(|reading| reading.balance);
        if let Some(balance) = balance.filter(|_| is_over) {
            domain.counters.count_refusal(&Standing {
                policy: limit.policy,
                counter: limit.counter.clone(),
                granted: false,
                by_store: true,
                mode: self.mode(domain, config, limit),
                cost: NonZeroU64::MIN,
                counts_until: balance.resets,
                balance,
            });
        }
        let verdict = LimitVerdict { granted: !is_over, refuses, balance };
        status(domain, limit, asked.hits, &verdict, now)
    }

    /// Counts the hits of a descriptor for the metrics of the original.
    fn count_hits(
        &self,
        domain: &Domain,
        asked: &LimitedDescriptor<'_>,
        status: &DescriptorStatus,
        verdict: &LimitVerdict,
    ) {
        let Limited::By(limit) = &asked.limit else { return };
        let Some(rule) = domain.rule(limit) else { return };
        let quota = status.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
        let near_from = (f64::from(quota) * self.options.near_limit) as u64;
        let (quota, hits) = (u64::from(quota), asked.hits);
        let outcome = if verdict.granted {
            let used = quota.saturating_sub(status.limit_remaining.into());
            HitOutcome::Within { near: used.saturating_sub(near_from).min(hits) }
        } else {
            // Nothing of the hits is in the balance, unless refused requests count.
            let remaining = verdict.balance.map_or(0, |balance| balance.remaining).min(hits);
            let used = quota.saturating_sub(remaining);
            let near = quota.saturating_sub(used.max(near_from)).min(remaining);
            let hits = HitsOver { over: hits - remaining, near };
            if verdict.refuses { HitOutcome::Over(hits) } else { HitOutcome::Shadow(hits) }
        };
        let entries = &asked.descriptor.entries;
        if rule.names_values {
            let path = domain.rules.metric_path(rule, entries);
            self.metrics.count(&path, &rule.path, asked.hits, outcome);
        } else {
            self.metrics.count(&rule.path, &rule.path, asked.hits, outcome);
        }
    }
}

/// Refunds hits of descriptors, and looks at their counters and at those of descriptors that only
/// look.
async fn look_or_refund(
    domain: &Arc<Domain>,
    config: &Config,
    asked: &[LimitedDescriptor<'_>],
) -> Result<BTreeMap<Counter, CounterReading>, NoAnswer> {
    let (mut looks, mut refunds) = (BTreeSet::new(), BTreeMap::new());
    let mut rule = String::new();
    for LimitedDescriptor { descriptor, limit, hits } in
        asked.iter().filter(|it| it.takes_nothing())
    {
        let Limited::By(limit) = limit else { continue };
        // Hits that were taken before a dial are refunded.
        if !descriptor.is_negative_hits && dialed_mode(config, limit) == Mode::Off {
            continue;
        }
        if *hits == 0 {
            domain.owed.note_look(&limit.counter);
        } else {
            let sum: &mut u64 = refunds.entry(limit.counter.clone()).or_default();
            *sum = sum.saturating_add(*hits).min(MAX_UNITS);
        }
        looks.insert(limit.counter.clone());
        rule = domain.rule(limit).map_or_else(String::new, |rule| rule.policy.to_string());
    }
    if looks.is_empty() {
        return Ok(BTreeMap::new());
    }
    let domain = Arc::clone(domain);
    // A task of its own ends what it began, even if the caller leaves.
    let reading = Arc::clone(&domain.counters).spawn(async move {
        if !refunds.is_empty() {
            domain.owed.refund(refunds).await;
        }
        domain.counters.look(looks.into_iter().collect()).await
    });
    let failed = |error: &dyn std::fmt::Display| {
        tracing::debug!("a look or a refund failed: {error}");
        NoAnswer::Store(rule.clone())
    };
    let readings = tokio::time::timeout(config.store.timeout, reading).await;
    let readings = readings.map_err(|late| failed(&late))?.map_err(|panic| failed(&panic))?;
    readings.map_err(|error| failed(&error))
}

fn status(
    domain: &Domain,
    limit: &AppliedLimit,
    hits: u64,
    verdict: &LimitVerdict,
    now: Monotonic,
) -> DescriptorStatus {
    let LimitVerdict { granted, refuses, balance } = *verdict;
    let code = if granted || !refuses { Code::Ok } else { Code::OverLimit };
    let quota = limit.counter.quota;
    let (quota, remaining) =
        balance.map_or((quota, quota), |balance| (balance.quota, balance.remaining));
    DescriptorStatus {
        code: code.into(),
        current_limit: Some(current_limit(domain, limit, quota)),
        limit_remaining: if granted { bounded(remaining) } else { 0 },
        duration_until_reset: Some(reset(limit, hits, verdict, now)),
    }
}

/// Until the window of a limit ends. The store says when, unless it was not asked: because the hits
/// are more than the limit, or because another limit refused the request. Then it is the end of the
/// window by this machine's clock.
fn reset(
    limit: &AppliedLimit,
    hits: u64,
    verdict: &LimitVerdict,
    now: Monotonic,
) -> prost_types::Duration {
    let LimitVerdict { granted, balance, .. } = *verdict;
    let was_asked = balance.is_some_and(|balance| granted || hits <= balance.quota);
    if let Some(balance) = balance.filter(|_| was_asked) {
        return whole_seconds(balance.resets.since(now));
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let end = Position::at(&limit.counter.window, now).span.end;
    whole_seconds(Duration::from_secs(end).saturating_sub(now))
}

fn current_limit(domain: &Domain, limit: &AppliedLimit, quota: u64) -> CurrentLimit {
    let rule = domain.rule(limit);
    CurrentLimit {
        name: rule.map(|rule| rule.name.to_string()).unwrap_or_default(),
        requests_per_unit: bounded(quota),
        unit: limit.unit.into(),
    }
}

/// The mode of a limit: its rule's, or that of a dial.
fn dialed_mode(config: &Config, limit: &AppliedLimit) -> Mode {
    let policy = limit.rule.and_then(|_| config.policies.get(limit.policy));
    policy.map_or(Mode::Enforce, |policy| policy.mode_of(&limit.counter.key))
}

/// Whether a limit may refuse: by its rule, or by a dial.
fn refuses(config: &Config, limit: &AppliedLimit) -> bool {
    dialed_mode(config, limit) == Mode::Enforce
}

/// The hits of a descriptor.
fn hits(request: &RateLimitRequest, descriptor: &Descriptor) -> u64 {
    let hits = descriptor.hits_addend.unwrap_or_else(|| u64::from(request.hits_addend).max(1));
    hits.min(MAX_UNITS + 1)
}

fn unlimited(limit_remaining: u32) -> DescriptorStatus {
    DescriptorStatus { code: Code::Ok.into(), limit_remaining, ..DescriptorStatus::default() }
}

fn bounded(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

/// In whole seconds, rounded up.
fn whole_seconds(left: Duration) -> prost_types::Duration {
    let left = left + Duration::from_nanos(999_999_999);
    let seconds = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
    prost_types::Duration { seconds, nanos: 0 }
}
