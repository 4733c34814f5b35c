//! Reads and resets the counters of a party.
//!
//! Windows follow the clock of the server that counts. After a reset, a worker may refund units
//! that it had reserved before; a counter never goes below zero.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use quotagate_protocol::dials::{DialFields, DocumentOverrides};
use quotagate_protocol::{CounterKey, Window};

use super::current::{current, units, window};
use super::history::History;
use super::overrides::{
    Overrides, canonical, check_partition, counted, read_allow, unmatched as no_match,
};
use super::parties::is_pattern;
use super::shape::{arrange, may_contain};
use crate::api::{
    Allow, Changed, Event, MAX_FOUND, OverrideEntry, PartiesPage, PartyUsage, PatternName,
    PolicyInfo, QuotaFrom, Reset, Usage, UsageReply,
};
use crate::control::ControlHandle;
use crate::domain::directory::clean;
use crate::domain::view::in_force;
use crate::pattern::{PatternOverride, PatternOverrides, contains, parts, party_of};
use crate::watch::{Beyond, CallSight};
use crate::{Fault, millis};
use quotagate_store::control::{Field, FoundKeys, HashName, Key, Snapshot};
use quotagate_store::store::StoreError;

/// Counters that are read together.
const TOGETHER: usize = 16;

/// No search for a party begins later than this, over all domains: a command waits for 5 s.
const SEARCH: Duration = Duration::from_secs(2);

/// Partitions that may have a counter, and overrides that no request can match.
#[derive(Default)]
struct Candidates {
    /// By policy and partition.
    partitions: BTreeSet<(String, String)>,
    unmatched: Vec<Field>,
    /// The overrides of every partition that contains the party, or a part of it.
    patterns: Vec<Field>,
    incomplete: Option<String>,
}

/// Counters of partitions in their current windows.
pub struct Counters {
    control: ControlHandle,
    history: Arc<History>,
    overrides: Arc<Overrides>,
}

impl Counters {
    pub(crate) fn new(history: Arc<History>, overrides: Arc<Overrides>) -> Self {
        Self { control: history.control.clone(), history, overrides }
    }

    /// The counters of all partitions that contain a party, including composite ones, and its
    /// overrides that no request can match.
    ///
    /// # Errors
    /// If the domain is not known, no policy counts the party, or the backend fails.
    pub async fn usage(
        &self,
        domain: Option<&str>,
        party: &str,
        calls: &dyn CallSight,
    ) -> Result<UsageReply, Fault> {
        let party = &*canonical("", "any", party)?;
        check_partition("", "any", party)?;
        let names = self.overrides.directory.some_or_all(domain).await?;
        let mut reply = UsageReply::default();
        let until = Instant::now() + SEARCH;
        for domain in &names {
            let dials = self.control.read(HashName::Dials, domain).await?;
            let overrides = self.control.read(HashName::Overrides, domain).await?;
            let patterns = PatternOverrides::of(&overrides.fields);
            let policies = self.overrides.directory.policies(domain).await?;
            let Candidates { partitions, unmatched, patterns: listed, incomplete } =
                self.candidates(domain, party, &policies, &overrides, until).await?;
            reply.incomplete = reply.incomplete.or(incomplete);
            let mut partitions: Vec<_> = partitions.into_iter().collect();
            // If there are too many, keep those with the fewest entries besides the party.
            partitions.sort_by_key(|(_, partition)| partition.split(',').count());
            let before = reply.found.len();
            for some in partitions.chunks(TOGETHER) {
                if reply.found.len().saturating_sub(before) > MAX_FOUND {
                    break;
                }
                let mut looks = Vec::with_capacity(some.len());
                for (name, partition) in some {
                    let Some(policy) = policies.iter().find(|policy| policy.name == *name) else {
                        continue;
                    };
                    let dial = in_force(&dials, name);
                    let pattern = patterns.find(name, partition, millis(overrides.now));
                    for (form, window) in windows(policy, partition) {
                        let dial = dial.clone();
                        looks.push(async move {
                            let (policy, control) = ((policy, form), (&dial, pattern));
                            self.counter(domain, policy, partition, &window, control, calls).await
                        });
                    }
                }
                for usage in join_all(looks).await {
                    reply.found.extend(usage?);
                }
            }
            for (field, value) in listed {
                reply.overrides.extend(self.overrides.listed(domain, &field, &value).await?);
            }
            for (field, value) in unmatched {
                let entry = self.overrides.listed(domain, &field, &value).await?;
                reply.unmatched.extend(entry.map(|entry| OverrideEntry {
                    unmatched: no_match(&policies, &entry.policy, &entry.partition),
                    ..entry
                }));
            }
        }
        if reply.found.len() > MAX_FOUND {
            reply.found.sort_by_key(|found| found.usage.partition.split(',').count());
            reply.found.truncate(MAX_FOUND);
            reply.incomplete = Some(format!("more than {MAX_FOUND} partitions were found"));
        }
        let name = |found: &PartyUsage| {
            let Usage { domain, policy, partition, .. } = &found.usage;
            (domain.clone(), policy.clone(), partition.clone())
        };
        reply.found.sort_by_cached_key(name);
        if reply.found.is_empty() && reply.unmatched.is_empty() && reply.overrides.is_empty() {
            let incomplete = reply
                .incomplete
                .map_or_else(String::new, |why| format!("; the search was not complete: {why}"));
            return Err(Fault::Absent(format!("no policy counts this partition now{incomplete}")));
        }
        Ok(reply)
    }

    /// A page of the counters of a policy, by partition: the first one, or the one that
    /// [`PartiesPage::next`] names. A partition may be on several pages.
    ///
    /// # Errors
    /// If a name is not known, or the backend fails.
    pub async fn parties(
        &self,
        domain: Option<&str>,
        policy: &str,
        from: Option<&str>,
        calls: &dyn CallSight,
    ) -> Result<PartiesPage, Fault> {
        let (domain, policy) = self.overrides.directory.domain_and_policy(domain, policy).await?;
        let dials = self.control.read(HashName::Dials, &domain).await?;
        let dial = in_force(&dials, &policy.name);
        let overrides = self.control.read(HashName::Overrides, &domain).await?;
        let patterns = PatternOverrides::of(&overrides.fields);
        let page = self.control.page(&domain, &policy.name, from).await?;
        let partitions = page.keys.iter().filter_map(|key| CounterKey::split(key));
        let looks = partitions.flat_map(|CounterKey { partition, .. }| {
            windows(&policy, partition).into_iter().map(move |window| (partition, window))
        });
        let looks: Vec<_> = looks.collect();
        let mut found = Vec::with_capacity(looks.len());
        for some in looks.chunks(TOGETHER) {
            let looks = some.iter().map(|(partition, (form, window))| {
                let pattern = patterns.find(&policy.name, partition, millis(overrides.now));
                self.counter(&domain, (&policy, form), partition, window, (&dial, pattern), calls)
            });
            for usage in join_all(looks).await {
                found.extend(usage?);
            }
        }
        Ok(PartiesPage { found, next: page.next })
    }

    /// Where a party may be counted: under its own name, and in the partitions of counters and
    /// overrides that contain it.
    async fn candidates(
        &self,
        domain: &str,
        party: &str,
        policies: &[PolicyInfo],
        overrides: &Snapshot,
        until: Instant,
    ) -> Result<Candidates, StoreError> {
        let mut found = Candidates::default();
        for policy in policies {
            // Each document may have its own order.
            for form in policy.forms() {
                if let Ok(partition) = arrange(form, party) {
                    found.partitions.insert((policy.name.clone(), partition));
                }
            }
        }
        let entries: Vec<&str> = party.split(',').collect();
        // An entry without a label is `*` or the digest of a whole partition. No other partition
        // contains it.
        let Some(first) = entries.iter().find(|entry| entry.contains('=')) else {
            return Ok(found);
        };
        let search = async {
            if !policies.iter().any(|policy| may_contain(policy, party)) {
                return Ok(FoundKeys::default());
            }
            if Instant::now() < until {
                return self.control.find(domain, first, MAX_FOUND).await;
            }
            let reason =
                "the search ran out of time before the last domain: choose one with --domain"
                    .to_owned();
            Ok(FoundKeys { keys: Vec::new(), incomplete: Some(reason) })
        };
        let keys = match search.await {
            Ok(FoundKeys { keys, incomplete }) => {
                found.incomplete = incomplete;
                keys
            }
            Err(error) => {
                found.incomplete = Some(error.to_string());
                Vec::new()
            }
        };
        for key in keys {
            let key = CounterKey::split(&key).filter(|key| contains(key.partition, party));
            let Some(CounterKey { policy, partition, .. }) = key else { continue };
            found.partitions.insert((policy.to_owned(), partition.to_owned()));
        }
        for (field, value) in &overrides.fields {
            let Some((policy, partition)) = parts(field) else { continue };
            let covers = party_of(partition).is_some_and(|own| contains(party, own));
            if !covers && !contains(partition, party) {
                continue;
            }
            let list = if no_match(policies, policy, partition).is_some() {
                &mut found.unmatched
            } else if is_pattern(policy, partition) {
                &mut found.patterns
            } else {
                found.partitions.insert((policy.to_owned(), partition.to_owned()));
                continue;
            };
            if list.len() < MAX_FOUND {
                list.push((field.clone(), value.clone()));
            }
        }
        Ok(found)
    }

    /// The counter of a partition in the current window of one document's form of a policy.
    async fn counter(
        &self,
        domain: &str,
        (policy, form): (&PolicyInfo, &PolicyInfo),
        partition: &str,
        window: &Window,
        (dial, pattern): (&DialFields, Option<&PatternOverride>),
        calls: &dyn CallSight,
    ) -> Result<Option<PartyUsage>, Fault> {
        let key = check_partition(domain, &policy.name, partition)?;
        let (position, seen) = current(&self.control, &key, window).await?;
        let counter = units(&seen);
        let over = self.control.get(Key::Override(&key)).await?;
        let own = over.value.as_deref().and_then(read_allow);
        let pattern = pattern.filter(|_| own.is_none());
        let over = own.or(pattern.map(|pattern| pattern.allow));
        let refused = calls.beyond(Beyond::Refused, &key);
        let let_through = calls.beyond(Beyond::LetThrough, &key);
        let beyond = refused.as_ref().or(let_through.as_ref());
        if counter.is_none() && over.is_none() && beyond.is_none() {
            return Ok(None);
        }
        let window_of = |of: &PolicyInfo| (of.kind.clone(), of.window_s, of.stagger);
        let same_window = || policy.forms().filter(|other| window_of(other) == window_of(form));
        let may_vary = same_window().any(|of| of.tiers || of.overrides != DocumentOverrides::None);
        // A store that counted may have kept the quota, and this one may have seen it itself. What
        // is kept may be of an earlier document, which had tiers or overrides.
        let (kept, last) = (seen.own_quota, calls.last(&key, position.number));
        let last = if may_vary { kept.or(last) } else { last.or(kept) };
        let is_disputed = || {
            same_window().any(|other| {
                (other.quota != form.quota || other.tiers)
                    && calls.is_in_force(domain, &other.digest)
            })
        };
        // An override of the document comes before a dial. It is kept with the counter, unless an
        // override of a party was in force.
        let is_hidden =
            form.overrides != DocumentOverrides::None && (counter.is_none() || pattern.is_some());
        // What holds without a runtime override.
        let (named, named_from) = match (last, dial.quota) {
            (Some(quota), dialed) if dialed == Some(quota) => (Some(quota), QuotaFrom::Dial),
            (Some(quota), _) => (Some(quota), QuotaFrom::Reservation),
            (None, _) if is_hidden => (None, QuotaFrom::Unknown),
            (None, Some(quota)) => (Some(quota), QuotaFrom::Dial),
            (None, None) if form.tiers || is_disputed() => (None, QuotaFrom::Unknown),
            (None, None) => (Some(form.quota), QuotaFrom::Policy),
        };
        let (quota, quota_from) = match over {
            Some(Allow::Unlimited) => (None, QuotaFrom::Override),
            Some(Allow::Blocked) => (Some(0), QuotaFrom::Override),
            Some(Allow::Quota(quota)) => (Some(quota), QuotaFrom::Override),
            None => (named, named_from),
        };
        let used = counter.unwrap_or_default();
        let usage = Usage {
            domain: domain.to_owned(),
            policy: policy.name.clone(),
            partition: partition.to_owned(),
            used,
            debt: Usage::debt(used, quota, form.settles),
            quota,
            quota_from,
            kind: form.kind.clone(),
            window_s: position.window_s().max(form.window_s),
            // Without a counter, no unit has to return.
            reset_ms: match window {
                Window::Sliding(_) => seen.ttl_ms.unwrap_or_default(),
                Window::Fixed(_) | Window::Calendar(_) => {
                    millis(Duration::from_secs(position.span.end).saturating_sub(seen.now))
                }
            },
        };
        Ok(Some(PartyUsage {
            usage,
            mode: dial.mode_of(partition).unwrap_or(form.mode),
            gone: policy.gone,
            refused: refused.as_ref().map_or(0, |refused| refused.requests),
            would_refuse: let_through.as_ref().map_or(0, |of| of.requests),
            refused_error: beyond.map_or(0, |of| of.error),
            refused_for_ms: beyond.map(|of| of.for_ms),
            without_override: named.filter(|_| over.is_some()),
            pattern: pattern.map(|PatternOverride { policy, partition, .. }| PatternName {
                policy: policy.clone(),
                partition: partition.clone(),
            }),
        }))
    }

    /// Deletes the counter of a partition in its current window.
    ///
    /// # Errors
    /// If a name is not known, there is no counter, or the backend fails.
    pub async fn reset(&self, wish: &Reset) -> Result<Changed, Fault> {
        check_partition("", &wish.policy, &canonical("", &wish.policy, &wish.partition)?)?;
        let (domain, policy) = self
            .overrides
            .directory
            .domain_and_policy(wish.domain.as_deref(), &wish.policy)
            .await?;
        let partition = counted(&domain, &policy, &wish.partition)?;
        let key = check_partition(&domain, &wish.policy, &partition)?;
        let absent = || {
            let text =
                format!("{} counts nothing of {partition} in its current window", wish.policy);
            Fault::Absent(text)
        };
        let mut reset = None;
        for (_, window) in windows(&policy, &partition) {
            let (position, seen) = current(&self.control, &key, &window).await?;
            if self.control.delete(Key::Counter { key: &key, id: position.id }).await? {
                reset = Some(seen);
            }
        }
        let seen = reset.ok_or_else(absent)?;
        let used =
            units(&seen).map_or_else(String::new, |used| format!(", {used} units were used"));
        let done = format!("reset {} {partition}{used}", wish.policy);
        let before = units(&seen).map(|used| format!("{{\"used\":{used}}}").into_bytes());
        let event = Event::new(millis(seen.now), &clean(&wish.by), done)
            .of(&wish.policy, Some(&partition))
            .values(before.as_deref(), None);
        let made = self.history.record(&domain, event).await?;
        Ok(self.history.reply(domain, made, Some(partition)))
    }
}

/// The windows of one partition, each with the latest document that has it.
fn windows<'p>(policy: &'p PolicyInfo, partition: &str) -> Vec<(&'p PolicyInfo, Window)> {
    let mut windows: Vec<(&PolicyInfo, Window)> = Vec::new();
    for form in policy.forms() {
        let Some(window) = window(form, partition) else { continue };
        if windows.iter().all(|(_, other)| *other != window) {
            windows.push((form, window));
        }
    }
    windows
}
