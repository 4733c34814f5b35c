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
use super::shape::arrange;
use crate::api::{
    Allow, Changed, Event, MAX_FOUND, OverrideEntry, PartyUsage, PatternName, PolicyInfo,
    QuotaFrom, Refused, Reset, Usage, UsageReply,
};
use crate::control::ControlHandle;
use crate::domain::directory::clean;
use crate::domain::view::in_force;
use crate::pattern::{PatternOverride, PatternOverrides, contains, parts, party_of};
use crate::watch::Beyond;
use crate::{Fault, millis};
use quotagate_store::control::{Field, FoundKeys, HashName, Key, Snapshot};
use quotagate_store::store::StoreError;

/// Counters that are read together.
const TOGETHER: usize = 16;

/// The quota that the last reservation of this key named in the window with this number, before any
/// override.
pub type LastQuota<'a> = dyn Fn(&str, u64) -> Option<u64> + Sync + 'a;

/// The requests beyond the quota of the partition with this key.
pub type BeyondOf<'a> = dyn Fn(Beyond, &str) -> Option<Refused> + Sync + 'a;

/// What calls showed of counters. The rest is read from the backend.
#[derive(Clone, Copy)]
pub struct CallSight<'a> {
    /// The quota that calls named.
    pub last: &'a LastQuota<'a>,
    /// What was beyond the quota lately.
    pub beyond: &'a BeyondOf<'a>,
}

impl CallSight<'_> {
    /// Of a process that has seen no call.
    pub const NONE: Self = Self { last: &|_, _| None, beyond: &|_, _| None };
}

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
        calls: CallSight<'_>,
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
                    looks.push(self.counter(domain, policy, partition, dial, pattern, calls));
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
            if let Ok(partition) = arrange(policy, party) {
                found.partitions.insert((policy.name.clone(), partition));
            }
        }
        let entries: Vec<&str> = party.split(',').collect();
        // An entry without a label is `*` or the digest of a whole partition. No other partition
        // contains it.
        let Some(first) = entries.iter().find(|entry| entry.contains('=')) else {
            return Ok(found);
        };
        let search = async {
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

    async fn counter(
        &self,
        domain: &str,
        policy: &PolicyInfo,
        partition: &str,
        dial: DialFields,
        pattern: Option<&PatternOverride>,
        calls: CallSight<'_>,
    ) -> Result<Option<PartyUsage>, Fault> {
        let key = check_partition(domain, &policy.name, partition)?;
        let Some(window) = window(policy, partition) else { return Ok(None) };
        let (position, seen) = current(&self.control, &key, &window).await?;
        let counter = units(&seen);
        let over = self.control.get(Key::Override(&key)).await?;
        let own = over.value.as_deref().and_then(read_allow);
        let pattern = pattern.filter(|_| own.is_none());
        let over = own.or(pattern.map(|pattern| pattern.allow));
        let refused = (calls.beyond)(Beyond::Refused, &key);
        let let_through = (calls.beyond)(Beyond::LetThrough, &key);
        let beyond = refused.as_ref().or(let_through.as_ref());
        if counter.is_none() && over.is_none() && beyond.is_none() {
            return Ok(None);
        }
        let last = (calls.last)(&key, position.number);
        // What holds without a runtime override.
        let (named, named_from) = match (last, dial.quota) {
            (Some(quota), dialed) if dialed == Some(quota) => (Some(quota), QuotaFrom::Dial),
            (Some(quota), _) => (Some(quota), QuotaFrom::Reservation),
            // An override of the document comes before a dial.
            (None, _) if policy.overrides != DocumentOverrides::None => (None, QuotaFrom::Unknown),
            (None, Some(quota)) => (Some(quota), QuotaFrom::Dial),
            (None, None) if policy.tiers => (None, QuotaFrom::Unknown),
            (None, None) => (Some(policy.quota), QuotaFrom::Policy),
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
            debt: Usage::debt(used, quota, policy.settles),
            quota,
            quota_from,
            kind: policy.kind.clone(),
            window_s: position.window_s().max(policy.window_s),
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
            mode: dial.mode_of(partition).unwrap_or(policy.mode),
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
        let window = window(&policy, &partition).ok_or_else(absent)?;
        let (position, seen) = current(&self.control, &key, &window).await?;
        let key = Key::Counter { key: &key, id: position.id };
        if !self.control.delete(key).await? {
            return Err(absent());
        }
        let used =
            units(&seen).map_or_else(String::new, |used| format!(", {used} units were used"));
        let done = format!("reset {} {partition}{used}", wish.policy);
        let event = Event { at_ms: millis(seen.now), by: clean(&wish.by), done };
        let made = self.history.record(&domain, event).await?;
        Ok(self.history.reply(domain, made, Some(partition)))
    }
}
