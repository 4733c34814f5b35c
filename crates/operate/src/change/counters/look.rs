//! One counter, and what is known of its quota.

use std::collections::BTreeSet;
use std::time::Duration;

use quotagate_calendar::Span;
use quotagate_protocol::Window;
use quotagate_protocol::dials::{DialFields, DocumentOverrides};
use quotagate_store::control::{KeptCounters, Key, KeyState};
use quotagate_store::store::StoreError;
use quotagate_store::window::Position;

use super::super::current::{current, units, window};
use super::super::overrides::{check_partition, read_allow};
use super::super::remarks::named;
use super::Counters;
use super::release::{held_by, key_state};
use crate::api::{Allow, PartyUsage, PatternName, PolicyInfo, QuotaFrom, Usage, WindowSpan};
use crate::pattern::PatternOverride;
use crate::watch::{Beyond, CallSight};
use crate::{Fault, millis};

/// What became of the look at a counter.
pub(super) enum CounterLook {
    Found(Box<PartyUsage>),
    Absent,
    /// The part of the backend is away that would have it.
    Unread(String, StoreError),
}

/// Counters whose part of the backend is away.
#[derive(Default)]
pub(super) struct Unread {
    names: BTreeSet<String>,
    error: Option<StoreError>,
}

impl Unread {
    /// The counter that was found. Keeps the name of one that could not be read.
    pub(super) fn sort(&mut self, look: CounterLook) -> Option<PartyUsage> {
        match look {
            CounterLook::Found(usage) => return Some(*usage),
            CounterLook::Absent => {}
            CounterLook::Unread(name, error) => {
                self.names.insert(name);
                self.error.get_or_insert(error);
            }
        }
        None
    }

    pub(super) fn sentence(self) -> Option<String> {
        let names = named(self.names.into_iter().collect());
        self.error.map(|error| format!("{names} cannot be read: {error}"))
    }
}

impl Counters {
    /// The counter of a partition in the current window of one document's form of a policy.
    pub(super) async fn counter(
        &self,
        domain: &str,
        (policy, form): (&PolicyInfo, &PolicyInfo),
        partition: &str,
        window: &Window,
        (dial, pattern): (&DialFields, Option<&PatternOverride>),
        (now, calls): (Duration, &dyn CallSight),
    ) -> Result<CounterLook, Fault> {
        let key = check_partition(domain, &policy.name, partition)?;
        let read = async {
            let current = async {
                if *window == Window::InFlight {
                    let slots = self.control.slots(&key).await?;
                    let position = Position::at(window, slots.now);
                    return Ok((position, key_state(&slots), Some(slots)));
                }
                let (position, seen) = current(&self.control, &key, window, now).await?;
                Ok::<_, Fault>((position, seen, None))
            };
            if self.kept == KeptCounters::LeftOut {
                let (current, over) = tokio::join!(current, self.control.get(Key::Override(&key)));
                let (position, seen, slots) = current?;
                return Ok((position, seen, slots, Some(over?)));
            }
            let (position, ..) = current.await?;
            let Some(before) = position.before(window) else {
                return Ok((position, KeyState::default(), None, None));
            };
            let seen = self.control.get(Key::Counter { key: &key, id: before.id }).await?;
            Ok((before, seen, None, None))
        };
        let (position, seen, slots, over) = match read.await {
            Err(Fault::Store(error)) if self.control.is_partial(&error) => {
                return Ok(CounterLook::Unread(format!("{} {partition}", policy.name), error));
            }
            read => read?,
        };
        let counter = units(&seen);
        let window_of = |of: &PolicyInfo| (of.kind.clone(), of.window_s, of.stagger);
        let same_window = || policy.forms().filter(|other| window_of(other) == window_of(form));
        let has_tiers = same_window().any(|of| of.tiers);
        let has_overrides = same_window().any(|of| of.overrides != DocumentOverrides::None);
        let may_vary = has_tiers || has_overrides;
        // A reservation says that its quota is not the policy's, and the documents say whose it may
        // be.
        let named_by_call = |quota| match (seen.own_quota, has_tiers, has_overrides) {
            (Some(_), true, false) => QuotaFrom::Tier,
            (Some(_), false, true) => QuotaFrom::Document,
            (None, ..) if counter.is_some() && quota == form.quota => QuotaFrom::Policy,
            _ => QuotaFrom::Reservation,
        };
        let mode = dial.mode_of(partition).unwrap_or(form.mode);
        let usage = |used, (quota, quota_from)| Usage {
            domain: domain.to_owned(),
            policy: policy.name.clone(),
            partition: partition.to_owned(),
            used,
            debt: Usage::debt(used, quota, form.settles),
            quota,
            quota_from,
            kind: form.kind.clone(),
            window_s: position.window_s().max(form.window_s),
            reset_ms: 0,
        };
        let Some(over) = over else {
            let Some(used) = counter else { return Ok(CounterLook::Absent) };
            let quota = match seen.own_quota {
                Some(quota) => (Some(quota), named_by_call(quota)),
                // Nobody knows what was in force then.
                None if may_vary || dial.quota.is_some() => (None, QuotaFrom::Unknown),
                None => (Some(form.quota), QuotaFrom::Policy),
            };
            let Span { start, end } = position.span;
            let span = Some(WindowSpan { start_s: start, end_s: end });
            let found = PartyUsage { span, ..PartyUsage::of(usage(used, quota), mode) };
            return Ok(CounterLook::Found(Box::new(PartyUsage { gone: policy.gone, ..found })));
        };
        let own = over.value.as_deref().and_then(read_allow);
        let pattern = pattern.filter(|_| own.is_none());
        let over = own.or(pattern.map(|pattern| pattern.allow));
        let refused = calls.beyond(Beyond::Refused, &key);
        let let_through = calls.beyond(Beyond::LetThrough, &key);
        let beyond = refused.as_ref().or(let_through.as_ref());
        if counter.is_none() && over.is_none() && beyond.is_none() {
            return Ok(CounterLook::Absent);
        }
        // A store that counted may have kept the quota, and this one may have seen it itself. What
        // is kept may be of an earlier document, which had tiers or overrides.
        let (kept, last) = (seen.own_quota, calls.last(&key, position.number));
        let last = if may_vary { kept.or(last) } else { last.or(kept) };
        let is_disputed = || {
            same_window().any(|other| {
                (other.quota != form.quota || other.tiers)
                    && !calls.numbers(domain, &other.digest).is_empty()
            })
        };
        // An override of the document comes before a dial. It is kept with the counter.
        let is_hidden = form.overrides != DocumentOverrides::None && counter.is_none();
        // What holds without a runtime override.
        let (named, named_from) = match (last, dial.quota) {
            (Some(quota), dialed) if dialed == Some(quota) => (Some(quota), QuotaFrom::Dial),
            (Some(quota), _) => (Some(quota), named_by_call(quota)),
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
        let usage = Usage {
            // Without a counter, no unit has to return.
            reset_ms: match window {
                Window::Sliding(_) => seen.ttl_ms.unwrap_or_default(),
                Window::InFlight => 0,
                Window::Fixed(_) | Window::Calendar(_) => {
                    millis(Duration::from_secs(position.span.end).saturating_sub(seen.now))
                }
            },
            ..usage(counter.unwrap_or_default(), (quota, quota_from))
        };
        let numbers = same_window().flat_map(|of| calls.numbers(domain, &of.digest));
        let numbers: BTreeSet<u64> = numbers.collect();
        Ok(CounterLook::Found(Box::new(PartyUsage {
            gone: policy.gone,
            documents: numbers.into_iter().collect(),
            refused: refused.as_ref().map_or(0, |refused| refused.requests),
            would_refuse: let_through.as_ref().map_or(0, |of| of.requests),
            refused_error: beyond.map_or(0, |of| of.error),
            refused_for_ms: beyond.map(|of| of.for_ms),
            settled_if_missing: match form.settles {
                true => calls.settled_if_missing(domain, &policy.name),
                false => 0,
            },
            without_override: named.filter(|_| over.is_some()),
            pattern: pattern.map(|PatternOverride { policy, partition, .. }| PatternName {
                policy: policy.clone(),
                partition: partition.clone(),
            }),
            slots: slots.map(held_by),
            ..PartyUsage::of(usage, mode)
        })))
    }
}

/// The windows of one partition, each with the latest document that has it.
pub(super) fn windows<'p>(
    policy: &'p PolicyInfo,
    partition: &str,
) -> Vec<(&'p PolicyInfo, Window)> {
    let mut windows: Vec<(&PolicyInfo, Window)> = Vec::new();
    for form in policy.forms() {
        let Some(window) = window(form, partition) else { continue };
        if windows.iter().all(|(_, other)| *other != window) {
            windows.push((form, window));
        }
    }
    windows
}
