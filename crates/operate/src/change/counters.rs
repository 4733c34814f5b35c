//! Finds and resets the counters of a party.
//!
//! Windows follow the clock of the server that counts. After a reset, a worker may refund units
//! that it had reserved before; a counter never goes below zero.

mod look;
mod release;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use quotagate_protocol::{CounterKey, Kind, Window};

use self::look::{Unread, windows};
use super::current::{current, units, window};
use super::history::History;
use super::overrides::{Overrides, canonical, check_partition, counted, unmatched as no_match};
use super::parties::is_pattern;
use super::shape::{arrange, may_contain};
use crate::api::{
    Changed, Event, MAX_FOUND, OverrideEntry, PartiesPage, PartyUsage, PolicyInfo, Reset, Usage,
    UsageReply,
};
use crate::control::ControlHandle;
use crate::domain::boards::{Boards, DomainState};
use crate::domain::directory::{DomainNames, clean};
use crate::domain::view::in_force;
use crate::pattern::{contains, parts, party_of};
use crate::watch::CallSight;
use crate::{Fault, millis};
use quotagate_store::control::{Field, FoundKeys, KeptCounters, Key, Snapshot};
use quotagate_store::store::StoreError;
use quotagate_store::window::{KEPT, Position};

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

/// Counters of partitions in their current windows, or in the last ones.
#[derive(Clone)]
pub struct Counters {
    control: ControlHandle,
    history: Arc<History>,
    overrides: Arc<Overrides>,
    boards: Arc<Boards>,
    /// Whether those of windows that have ended are read, instead of the current ones.
    kept: KeptCounters,
}

impl Counters {
    pub(crate) fn new(
        history: Arc<History>,
        overrides: Arc<Overrides>,
        boards: Arc<Boards>,
    ) -> Self {
        let (control, kept) = (history.control.clone(), KeptCounters::LeftOut);
        Self { control, history, overrides, boards, kept }
    }

    /// The counters of the last windows that have ended, as far as they are kept: those of policies
    /// with calendar windows, for as long again as the window was, at most [`KEPT`].
    #[must_use]
    pub fn last(&self) -> Self {
        Self { kept: KeptCounters::Found, ..self.clone() }
    }

    /// The counters of all partitions that contain a party, including composite ones, and its
    /// overrides that no request can match.
    ///
    /// # Errors
    /// If the domain is not known, surely no policy counts the party, or the backend fails.
    pub async fn usage(
        &self,
        domain: Option<&str>,
        party: &str,
        calls: &dyn CallSight,
    ) -> Result<UsageReply, Fault> {
        check_partition("", "any", &canonical("", "any", party)?)?;
        let domains = self.overrides.directory.some_or_all(domain).await?;
        self.usage_of(domains, party, calls).await
    }

    /// The same in these domains.
    ///
    /// # Errors
    /// If no policy counts the party, or the backend fails.
    pub async fn usage_of(
        &self,
        domains: DomainNames,
        party: &str,
        calls: &dyn CallSight,
    ) -> Result<UsageReply, Fault> {
        let party = &*canonical("", "any", party)?;
        check_partition("", "any", party)?;
        let DomainNames { names, incomplete } = domains;
        let (mut reply, mut faults) = (UsageReply::default(), Vec::from_iter(incomplete));
        let until = Instant::now() + SEARCH;
        for domain in &names {
            let DomainState { policies, dials, overrides, patterns, incomplete: old } =
                match self.boards.state(domain).await {
                    Err(Fault::Store(error)) if self.control.is_partial(&error) => {
                        faults.push(format!("{domain} cannot be read: {error}"));
                        continue;
                    }
                    state => state?,
                };
            let patterns = &patterns.patterns;
            let Candidates { partitions, unmatched, patterns: listed, incomplete } =
                self.candidates(domain, party, &policies, &overrides, until).await?;
            faults.extend(old.into_iter().chain(incomplete));
            let mut unread = Unread::default();
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
                            let seen = (overrides.now, calls);
                            self.counter(domain, policy, partition, &window, control, seen).await
                        });
                    }
                }
                for usage in join_all(looks).await {
                    reply.found.extend(unread.sort(usage?));
                }
            }
            faults.extend(unread.sentence());
            for (field, value) in listed {
                let entry = self.overrides.listed(domain, (&field, &value), overrides.now).await?;
                reply.overrides.extend(entry);
            }
            for (field, value) in unmatched {
                let entry = self.overrides.listed(domain, (&field, &value), overrides.now).await?;
                reply.unmatched.extend(entry.map(|entry| OverrideEntry {
                    unmatched: no_match(&policies, &entry.policy, &entry.partition),
                    ..entry
                }));
            }
        }
        if reply.found.len() > MAX_FOUND {
            reply.found.sort_by_key(|found| found.usage.partition.split(',').count());
            reply.found.truncate(MAX_FOUND);
            faults.push(format!("more than {MAX_FOUND} partitions were found"));
        }
        reply.incomplete = (!faults.is_empty()).then(|| faults.join("; "));
        let name = |found: &PartyUsage| {
            let Usage { domain, policy, partition, .. } = &found.usage;
            (domain.clone(), policy.clone(), partition.clone())
        };
        reply.found.sort_by_cached_key(name);
        let nothing =
            reply.found.is_empty() && reply.unmatched.is_empty() && reply.overrides.is_empty();
        if nothing && reply.incomplete.is_none() {
            return Err(Fault::Absent(match self.kept {
                KeptCounters::LeftOut => "no policy counts this partition now".to_owned(),
                KeptCounters::Found => format!(
                    "no policy with a calendar window counted this partition in its last window, or that is no \
                     longer kept: it is kept for as long as it was, at most {} d",
                    KEPT.as_secs() / 86_400
                ),
            }));
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
        let state = self.boards.state(&domain).await?;
        let dial = in_force(&state.dials, &policy.name);
        let patterns = &state.patterns.patterns;
        if self.kept == KeptCounters::Found {
            check_kept(&policy, state.overrides.now)?;
        }
        let page = self.control.page(&domain, &policy.name, self.kept, from).await?;
        let partitions = page.keys.iter().filter_map(|key| CounterKey::split(key));
        let looks = partitions.flat_map(|CounterKey { partition, .. }| {
            windows(&policy, partition).into_iter().map(move |window| (partition, window))
        });
        let looks: Vec<_> = looks.collect();
        let (mut found, mut unread) = (Vec::with_capacity(looks.len()), Unread::default());
        for some in looks.chunks(TOGETHER) {
            let looks = some.iter().map(|(partition, (form, window))| {
                let pattern = patterns.find(&policy.name, partition, millis(state.overrides.now));
                let (of, seen) = ((&policy, *form), (state.overrides.now, calls));
                self.counter(&domain, of, partition, window, (&dial, pattern), seen)
            });
            for usage in join_all(looks).await {
                found.extend(unread.sort(usage?));
            }
        }
        let faults = [state.incomplete, page.incomplete, unread.sentence()];
        let faults: Vec<String> = faults.into_iter().flatten().collect();
        let incomplete = (!faults.is_empty()).then(|| faults.join("; "));
        Ok(PartiesPage { found, next: page.next, incomplete })
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
                return self.control.find(domain, first, self.kept, MAX_FOUND).await;
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
        if policy.forms().all(|form| form.kind == Kind::InFlight) {
            let reason = format!(
                "{} counts requests in flight, which hold their slots until they end: `quotagate \
                 release` frees those of a dead proxy",
                policy.name
            );
            return Err(Fault::invalid("policy", reason));
        }
        let partition = counted(&domain, &policy, &wish.partition)?;
        let key = check_partition(&domain, &wish.policy, &partition)?;
        let absent = || {
            let text =
                format!("{} counts nothing of {partition} in its current window", wish.policy);
            Fault::Absent(text)
        };
        let (mut reset, mut failed) = (None, None);
        // While proxies have several documents, another one may limit requests in flight. Slots of
        // live requests are no counter that may begin again.
        let windows = windows(&policy, &partition).into_iter().map(|(_, window)| window);
        for window in windows.filter(|window| *window != Window::InFlight) {
            let delete = async {
                let current = current(&self.control, &key, &window, Duration::ZERO).await?;
                let counter = Key::Counter { key: &key, id: current.0.id };
                Ok::<_, Fault>(self.control.delete(counter).await?.then_some(current.1))
            };
            match delete.await {
                Ok(seen) => reset = seen.or(reset),
                Err(fault) => failed = Some(fault),
            }
        }
        let seen = match (reset, failed.take()) {
            // History records the part that was done.
            (Some(seen), fault) => {
                failed = fault;
                seen
            }
            (None, fault) => return Err(fault.unwrap_or_else(absent)),
        };
        let used =
            units(&seen).map_or_else(String::new, |used| format!(", {used} units were used"));
        let done = format!("reset {} {partition}{used}", wish.policy);
        let before = units(&seen).map(|used| format!("{{\"used\":{used}}}").into_bytes());
        let event = Event::new(millis(seen.now), &clean(&wish.by), done)
            .of(&wish.policy, Some(&partition))
            .values(before.as_deref(), None);
        let made = self.history.record(&domain, event).await?;
        match failed {
            Some(fault) => Err(fault),
            None => Ok(self.history.reply(domain, made, Some(partition))),
        }
    }
}

/// Checks that counters of the last window of a policy are kept at `now`.
fn check_kept(policy: &PolicyInfo, now: Duration) -> Result<(), Fault> {
    let calendars = policy.forms().filter_map(|form| window(form, ""));
    let last = calendars.filter_map(|window| Position::at(&window, now).before(&window));
    let ends = last.map(|of| Duration::from_secs(of.span.end).saturating_add(of.id.kept_for()));
    match ends.max() {
        None => {
            let why = format!(
                "only calendar windows are kept after their end, and {} has none",
                policy.name
            );
            Err(Fault::invalid("last", why))
        }
        Some(end) if end <= now => Err(Fault::Absent(format!(
            "the last window of {} is no longer kept: it ended more than {} d ago",
            policy.name,
            KEPT.as_secs() / 86_400
        ))),
        Some(_) => Ok(()),
    }
}
