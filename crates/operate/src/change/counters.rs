//! Reads and resets the counters of a party.
//!
//! Windows follow the clock of the server that counts. After a reset, a worker may refund units
//! that it had reserved before; a counter never goes below zero.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use quotagate_protocol::dials::DialFields;
use quotagate_protocol::{CounterKey, Window};

use super::history::History;
use super::overrides::{
    Overrides, canonical, check_partition, counted, read_allow, unmatched as no_match,
};
use super::shape::{arrange, may_contain};
use crate::api::{
    Allow, Changed, Event, MAX_FOUND, OverrideEntry, PartiesPage, PartyUsage, PolicyInfo,
    QuotaFrom, Reset, Usage, UsageReply,
};
use crate::control::ControlHandle;
use crate::domain::directory::clean;
use crate::domain::view::in_force;
use crate::watch::CallSight;
use crate::{Fault, millis};
use quotagate_store::control::{FoundKeys, HashName, Key, KeyState};
use quotagate_store::store::StoreError;
use quotagate_store::window::Position;

/// Counters that are read together.
const TOGETHER: usize = 16;
/// How many times a counter is read if its window ends meanwhile.
const TRIES: usize = 3;

/// No search for a party begins later than this, over all domains: a command waits for 5 s.
const SEARCH: Duration = Duration::from_secs(2);

/// Partitions that may have a counter, and overrides that no request can match.
#[derive(Default)]
struct Candidates {
    /// By policy and partition.
    partitions: BTreeSet<(String, String)>,
    unmatched: Vec<(String, Vec<u8>)>,
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
            let policies = self.overrides.directory.policies(domain).await?;
            let Candidates { partitions, unmatched, incomplete } =
                self.candidates(domain, party, &policies, until).await?;
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
                    for (form, window) in windows(policy, partition) {
                        looks.push(async move {
                            let policy = (policy, form);
                            self.counter(domain, policy, partition, &window, dial, calls).await
                        });
                    }
                }
                for usage in join_all(looks).await {
                    reply.found.extend(usage?);
                }
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
        if reply.found.is_empty() && reply.unmatched.is_empty() {
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
        let page = self.control.page(&domain, &policy.name, from).await?;
        let partitions = page.keys.iter().filter_map(|key| CounterKey::split(key));
        let looks = partitions.flat_map(|CounterKey { partition, .. }| {
            windows(&policy, partition).into_iter().map(move |window| (partition, window))
        });
        let looks: Vec<_> = looks.collect();
        let mut found = Vec::with_capacity(looks.len());
        for some in looks.chunks(TOGETHER) {
            let looks = some.iter().map(|(partition, (form, window))| {
                self.counter(&domain, (&policy, form), partition, window, dial, calls)
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
        let contains = |partition: &str| {
            entries.iter().all(|entry| partition.split(',').any(|own| own == *entry))
        };
        for key in keys {
            let parts = CounterKey::split(&key).filter(|key| contains(key.partition));
            let Some(CounterKey { policy, partition, .. }) = parts else { continue };
            found.partitions.insert((policy.to_owned(), partition.to_owned()));
        }
        let snapshot = self.control.read(HashName::Overrides, domain).await?;
        for (field, value) in snapshot.fields {
            let parts = field.strip_suffix('}').and_then(|field| field.split_once(":{"));
            let Some((policy, partition)) = parts.filter(|(_, partition)| contains(partition))
            else {
                continue;
            };
            if no_match(policies, policy, partition).is_none() {
                found.partitions.insert((policy.to_owned(), partition.to_owned()));
            } else if found.unmatched.len() < MAX_FOUND {
                found.unmatched.push((field, value));
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
        dial: DialFields,
        calls: &dyn CallSight,
    ) -> Result<Option<PartyUsage>, Fault> {
        let key = check_partition(domain, &policy.name, partition)?;
        let (position, seen) = self.current(&key, window).await?;
        let counter = units(&seen);
        let over = self.control.get(Key::Override(&key)).await?;
        let over = over.value.as_deref().and_then(read_allow);
        let refused = calls.refused(&key);
        if counter.is_none() && over.is_none() && refused.is_none() {
            return Ok(None);
        }
        // A store that counted may have kept the quota. This one may have seen it itself.
        let last = seen.own_quota.or_else(|| calls.last(&key, position.number));
        let window_of = |of: &PolicyInfo| (of.kind.clone(), of.window_s, of.stagger);
        let is_disputed = policy.forms().any(|other| {
            (other.quota != form.quota || other.tiers)
                && window_of(other) == window_of(form)
                && calls.is_in_force(domain, &other.digest)
        });
        let (quota, quota_from) = match (over, last, dial.quota) {
            (Some(Allow::Unlimited), ..) => (None, QuotaFrom::Override),
            (Some(Allow::Blocked), ..) => (Some(0), QuotaFrom::Override),
            (Some(Allow::Quota(quota)), ..) => (Some(quota), QuotaFrom::Override),
            (None, Some(quota), _) => (Some(quota), QuotaFrom::Reservation),
            (None, None, Some(quota)) => (Some(quota), QuotaFrom::Dial),
            (None, None, None) if form.tiers || is_disputed => (None, QuotaFrom::Unknown),
            (None, None, None) => (Some(form.quota), QuotaFrom::Policy),
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
            mode: dial.mode.unwrap_or(form.mode),
            gone: policy.gone,
            refused: refused.as_ref().map_or(0, |refused| refused.requests),
            refused_for_ms: refused.map(|refused| refused.for_ms),
        }))
    }

    /// The current window, and what its counter holds.
    async fn current(&self, key: &str, window: &Window) -> Result<(Position, KeyState), Fault> {
        let (mut position, mut seen) = (Position::at(window, Duration::ZERO), KeyState::default());
        for _ in 0..TRIES {
            let key = Key::Counter { key, id: position.id };
            seen = self.control.get(key).await?;
            let (before, now) = (position.id, Position::at(window, seen.now));
            position = now;
            if now.id == before {
                break;
            }
            seen.value = None;
        }
        Ok((position, seen))
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
            let (position, seen) = self.current(&key, &window).await?;
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

/// The units that a counter holds.
fn units(seen: &KeyState) -> Option<u64> {
    seen.value.as_deref()?.parse().ok()
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

fn window(form: &PolicyInfo, partition: &str) -> Option<Window> {
    let window = Window::of(&form.kind, form.window_s, 0)?;
    Some(if form.stagger { window.staggered(partition) } else { window })
}
