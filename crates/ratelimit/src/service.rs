//! The answer to a request of Envoy.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use quotagate_protocol::{MAX_UNITS, Mode, Window};
use quotagate_quota::config::Config;
use quotagate_quota::decision::{Admission, Balance, Decision, GrantedUnits, Held, Standing};
use quotagate_quota::time::Monotonic;

use quotagate_store::store::StoreError;

use crate::domain::{AppliedLimit, Domain, Limited, checks};
use crate::headers::{HeaderNames, headers};
use crate::messages::{
    Code, CurrentLimit, Descriptor, DescriptorStatus, RateLimitRequest, RateLimitResponse,
};
use crate::metadata;
use crate::metrics::{ErrorKind, HitOutcome, ServiceMetrics};

/// Answers requests with the rules in force.
///
/// Call order: [`new`](Self::new), then [`replace_domains`](Self::replace_domains) whenever rules
/// come. [`should_rate_limit`](Self::should_rate_limit) may be called at any time.
pub struct RateLimitService {
    options: AnswerOptions,
    domains: RwLock<Option<Domains>>,
    /// What the original's metrics say.
    pub metrics: ServiceMetrics,
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
struct Asked<'r> {
    descriptor: &'r Descriptor,
    limit: Limited,
    hits: u64,
}

/// What a limit says of its descriptor.
struct StandingOf {
    granted: bool,
    /// Whether it may refuse.
    refuses: bool,
    /// `None` if nothing is known of the counter.
    balance: Option<Balance>,
}

impl Asked<'_> {
    /// Whether it only looks, or refunds.
    fn takes_nothing(&self) -> bool {
        self.hits == 0 || self.descriptor.is_negative_hits
    }
}

impl RateLimitService {
    /// A service without rules: it answers no request.
    pub fn new(options: AnswerOptions) -> Self {
        Self { options, domains: RwLock::default(), metrics: ServiceMetrics::default() }
    }

    /// The domains in force; `None` before the first rules have come.
    pub fn domains(&self) -> Option<Domains> {
        self.domains.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts other rules in force. Requests under way end by the old ones.
    pub fn replace_domains(&self, domains: Domains) {
        *self.domains.write().unwrap_or_else(PoisonError::into_inner) = Some(domains);
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
        let asked: Vec<Asked<'_>> = request
            .descriptors
            .iter()
            .zip(limits)
            .map(|(descriptor, limit)| Asked { descriptor, limit, hits: hits(request, descriptor) })
            .collect();
        self.count(request, domain, &config, &asked).await
    }

    async fn count(
        &self,
        request: &RateLimitRequest,
        domain: &Arc<Domain>,
        config: &Config,
        asked: &[Asked<'_>],
    ) -> Result<RateLimitResponse, NoAnswer> {
        let counted = asked.iter().filter(|asked| !asked.takes_nothing());
        let wanted = counted.filter_map(|asked| {
            let Limited::By(limit) = &asked.limit else { return None };
            Some((limit, NonZeroU64::new(asked.hits)?, self.mode(domain, config, limit)))
        });
        let wanted: Vec<_> = wanted.filter(|(_, _, mode)| *mode != Mode::Off).collect();
        let checks = checks(wanted).map_err(NoAnswer::Request)?;
        let decision = if checks.is_empty() {
            Decision::Admit(Admission::default())
        } else {
            domain.counters.decide(checks).await
        };
        let (standings, held, refused) = match decision {
            // Every policy holds its units.
            Decision::Admit(Admission { standings, held, .. }) => (standings, held, false),
            Decision::Refuse(refusal) => (refusal.standings, Vec::new(), true),
            Decision::Unavailable(uncounted) => {
                let policy = config.policies.get(uncounted.policy);
                let name = policy.map_or_else(String::new, |policy| policy.name.to_string());
                return Err(NoAnswer::Store(name));
            }
        };
        let now = domain.counters.now();
        let mut statuses = Vec::with_capacity(asked.len());
        let (mut quota_limits, mut quota_over) = (0, 0);
        let mut over = refused;
        for asked in asked {
            let status = match &asked.limit {
                Limited::No => unlimited(0),
                Limited::Unlimited => unlimited(u32::MAX),
                Limited::By(limit) if asked.takes_nothing() => {
                    match self.apart(domain, limit, asked).await {
                        Ok(status) => status,
                        Err(error) => {
                            tracing::debug!("a look or a refund failed: {error}");
                            domain.counters.refund(held);
                            let rule = domain.rule(limit);
                            let name =
                                rule.map_or_else(String::new, |rule| rule.policy.to_string());
                            return Err(NoAnswer::Store(name));
                        }
                    }
                }
                Limited::By(limit) => {
                    let standing = standings.iter().find(|standing| {
                        standing.policy == limit.policy && standing.key == limit.counter.key
                    });
                    let standing = StandingOf {
                        granted: standing.is_none_or(|standing| standing.granted),
                        refuses: refuses(config, limit),
                        balance: standing.map(|standing| standing.balance),
                    };
                    let status = self.status(domain, limit, asked.hits, &standing, now);
                    self.count_hits(domain, asked, &status, &standing);
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
        let mut code = Code::Ok;
        if over && !self.options.shadow_mode {
            code = Code::OverLimit;
            domain.counters.refund(held);
            self.leave_credits(domain, asked, &standings, now).await;
        }
        Ok(self.answer(request, Some(domain), asked, statuses, code))
    }

    fn answer(
        &self,
        request: &RateLimitRequest,
        domain: Option<&Arc<Domain>>,
        asked: &[Asked<'_>],
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
        let dialed = config.policies.get(limit.policy).filter(|_| limit.rule.is_some());
        match dialed.map_or(Mode::Enforce, |policy| policy.mode) {
            Mode::Enforce if self.options.shadow_mode => Mode::Shadow,
            Mode::Enforce if self.is_quota(domain, limit) => Mode::Shadow,
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

    /// A refused request took nothing, so what it refunds later must not free what others hold.
    async fn leave_credits(
        &self,
        domain: &Domain,
        asked: &[Asked<'_>],
        standings: &[Standing],
        now: Monotonic,
    ) {
        for Asked { limit, hits, .. } in asked.iter().filter(|asked| !asked.takes_nothing()) {
            let Limited::By(limit) = limit else { continue };
            let standing = standings.iter().find(|standing| standing.key == limit.counter.key);
            let longest = limit.counter.window.length();
            let reset = standing.map_or(longest, |standing| standing.balance.resets.since(now));
            domain.refunds.refused(limit.policy, &limit.counter, *hits, reset).await;
        }
    }

    /// Counts the hits of a descriptor for the metrics of the original.
    fn count_hits(
        &self,
        domain: &Domain,
        asked: &Asked<'_>,
        status: &DescriptorStatus,
        standing: &StandingOf,
    ) {
        let Limited::By(limit) = &asked.limit else { return };
        let Some(rule) = domain.rule(limit) else { return };
        let outcome = match (standing.granted, standing.refuses) {
            (true, _) => {
                let quota =
                    status.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
                let used = u64::from(quota.saturating_sub(status.limit_remaining));
                let near = (f64::from(quota) * self.options.near_limit) as u64;
                HitOutcome::Within { near: used.saturating_sub(near).min(asked.hits) }
            }
            (false, true) => HitOutcome::Over,
            (false, false) => HitOutcome::Shadow,
        };
        let entries = &asked.descriptor.entries;
        if rule.names_values {
            let path = domain.rules.metric_path(rule, entries);
            self.metrics.count(&path, &rule.path, asked.hits, outcome);
        } else {
            self.metrics.count(&rule.path, &rule.path, asked.hits, outcome);
        }
    }

    /// The status of a descriptor that looks, or refunds.
    async fn apart(
        &self,
        domain: &Domain,
        limit: &AppliedLimit,
        asked: &Asked<'_>,
    ) -> Result<DescriptorStatus, StoreError> {
        let counter = &limit.counter;
        let (grant, lowered) = if asked.hits == 0 {
            (domain.refunds.look(counter).await?, 0)
        } else {
            domain.refunds.refund(limit.policy, counter, asked.hits).await?
        };
        if lowered > 0 {
            // By the worker, so that it knows that the counter is no longer spent.
            let now = domain.counters.now();
            let resets = now + Duration::from_millis(grant.reset_ms);
            let window = grant.window;
            let units = GrantedUnits { amount: lowered, window, spendable_until: now, resets };
            let held = Held { policy: limit.policy, counter: counter.clone(), units };
            domain.counters.refund(vec![held]);
        }
        let used = grant.used - lowered;
        let code = if used > grant.quota { Code::OverLimit } else { Code::Ok };
        let rule = domain.rule(limit);
        Ok(DescriptorStatus {
            code: code.into(),
            current_limit: Some(CurrentLimit {
                name: rule.map(|rule| rule.name.to_string()).unwrap_or_default(),
                requests_per_unit: bounded(grant.quota),
                unit: limit.unit.into(),
            }),
            limit_remaining: bounded(grant.quota.saturating_sub(used)),
            duration_until_reset: Some(whole_seconds(Duration::from_millis(grant.reset_ms))),
        })
    }

    fn status(
        &self,
        domain: &Domain,
        limit: &AppliedLimit,
        hits: u64,
        standing: &StandingOf,
        now: Monotonic,
    ) -> DescriptorStatus {
        let StandingOf { granted, refuses, balance } = *standing;
        let code = if granted || !refuses { Code::Ok } else { Code::OverLimit };
        let (quota, remaining) = balance.map_or((limit.hits, limit.hits), |balance| {
            (bounded(balance.quota), bounded(balance.remaining))
        });
        let rule = domain.rule(limit);
        DescriptorStatus {
            code: code.into(),
            current_limit: Some(CurrentLimit {
                name: rule.map(|rule| rule.name.to_string()).unwrap_or_default(),
                requests_per_unit: quota,
                unit: limit.unit.into(),
            }),
            limit_remaining: if granted { remaining } else { 0 },
            duration_until_reset: reset(limit, hits, standing, now),
        }
    }
}

/// Until the window of a limit ends. Redis says when, unless it was not asked: because the hits are
/// more than the limit, or because another limit refused the request. Then it is the end of a fixed
/// window by this machine's clock.
fn reset(
    limit: &AppliedLimit,
    hits: u64,
    standing: &StandingOf,
    now: Monotonic,
) -> Option<prost_types::Duration> {
    let StandingOf { granted, balance, .. } = *standing;
    let was_asked = balance.is_some_and(|balance| granted || hits <= balance.quota);
    if let (false, Window::Fixed(window)) = (was_asked, &limit.counter.window) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        return Some(whole_seconds(window.remaining_at(now)));
    }
    balance.map(|balance| seconds(balance.resets, now))
}

/// Whether a limit may refuse: by its rule, or by a dial.
fn refuses(config: &Config, limit: &AppliedLimit) -> bool {
    let policy = limit.rule.and_then(|_| config.policies.get(limit.policy));
    policy.is_none_or(|policy| policy.mode == Mode::Enforce)
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

/// Until a moment, in whole seconds, rounded up.
fn seconds(until: Monotonic, now: Monotonic) -> prost_types::Duration {
    whole_seconds(until.since(now))
}

fn whole_seconds(left: Duration) -> prost_types::Duration {
    let left = left + Duration::from_nanos(999_999_999);
    let seconds = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
    prost_types::Duration { seconds, nanos: 0 }
}
