//! The [`ControlStore`] in this process. Its content is gone when the process ends.
//!
//! Bounds: [`MAX_OVERRIDES`] overrides of all domains, and [`MAX_HISTORY`] changes of each domain.
//! The callers bound the fields of hashes.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::{FutureExt, ready};
use quotagate_protocol::{CounterKey, MAX_UNITS};

use super::counter::Counter;
use super::{Memory, SHARDS, lock};
use crate::control::{
    Change, ChangesVersion, ControlStore, CounterPage, FoundKeys, HashName, KeptCounters, Key,
    KeyState, LAST_DOCUMENT, MAX_HISTORY, MAX_OVERRIDES, Publication, Released, Reply, SlotsState,
    Snapshot, Upsert, has_entry, unknown_page,
};
use crate::store::StoreError;
use crate::window::CounterId;

/// A page has counters of further shards until it has so many.
const PAGE: usize = 1000;

/// What operators changed.
#[derive(Default)]
pub struct OperatorState {
    hashes: Mutex<Hashes>,
    overrides: RwLock<HashMap<Box<str>, OverrideEntry>>,
    /// Whether an override was ever set. Until then reservations do not look for any.
    overridden: AtomicBool,
}

#[derive(Default)]
struct Hashes {
    fields: HashMap<(HashName, String), BTreeMap<String, Vec<u8>>>,
    versions: HashMap<String, ChangesVersion>,
    histories: HashMap<String, VecDeque<Vec<u8>>>,
    /// The texts of published documents, by domain and number.
    documents: HashMap<String, BTreeMap<u64, Vec<u8>>>,
    /// When the hashes expire that were upserted.
    ends: HashMap<(HashName, String), Duration>,
}

struct OverrideEntry {
    value: String,
    until: Option<Duration>,
}

impl OverrideEntry {
    /// How long it is still in force, `Some(None)` for ever. `None` if it has expired.
    fn left_at(&self, now: Duration) -> Option<Option<Duration>> {
        match self.until {
            Some(until) => until.checked_sub(now).filter(|left| !left.is_zero()).map(Some),
            None => Some(None),
        }
    }
}

impl OperatorState {
    /// The quota in force for a key: its override, or the `quota` of the reservation.
    pub fn quota(&self, key: &str, quota: u64, now: Duration) -> u64 {
        if !self.overridden.load(Relaxed) {
            return quota;
        }
        let overrides = self.overrides.read().unwrap_or_else(PoisonError::into_inner);
        let held = overrides.get(key).filter(|held| held.left_at(now).is_some());
        held.map_or(quota, |held| match held.value.as_str() {
            "unlimited" => MAX_UNITS,
            "blocked" => 0,
            number => number.parse().map_or(quota, |number: u64| number.min(MAX_UNITS)),
        })
    }

    /// Frees overrides that have expired.
    pub fn sweep(&self, now: Duration) {
        if self.overridden.load(Relaxed) {
            let mut overrides = self.overrides.write().unwrap_or_else(PoisonError::into_inner);
            overrides.retain(|_, held| held.left_at(now).is_some());
        }
    }

    /// Nothing panics while the lock is held, so the content of a poisoned lock is intact.
    fn hashes(&self) -> MutexGuard<'_, Hashes> {
        self.hashes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hashes {
    fn change(&mut self, domain: &str, change: &Change, now: Duration) -> Option<u64> {
        let hash = self.fields.entry((change.hash, domain.to_owned())).or_default();
        if hash.get(&change.field) != change.old.as_ref() {
            return None;
        }
        match &change.new {
            Some(value) => drop(hash.insert(change.field.clone(), value.clone())),
            None => drop(hash.remove(&change.field)),
        }
        let version = self.versions.entry(domain.to_owned()).or_default();
        if let Some(event) = &change.event {
            let at_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
            *version = ChangesVersion { number: version.number.saturating_add(1), at_us };
            let history = self.histories.entry(domain.to_owned()).or_default();
            history.push_front(event.clone());
            history.truncate(MAX_HISTORY);
        }
        Some(version.number)
    }

    fn publish(&mut self, domain: &str, publication: &Publication, now: Duration) -> Option<u64> {
        let Publication { old, number, record, last, text, dropped, event } = publication;
        let change = Change {
            hash: HashName::Documents,
            field: LAST_DOCUMENT.to_owned(),
            old: old.clone(),
            new: Some(last.clone()),
            event: Some(event.clone()),
        };
        let version = self.change(domain, &change, now)?;
        let name = (HashName::Documents, domain.to_owned());
        let (records, texts) = (
            self.fields.entry(name).or_default(),
            self.documents.entry(domain.to_owned()).or_default(),
        );
        records.insert(number.to_string(), record.clone());
        if let Some(text) = text {
            texts.insert(*number, text.clone());
        }
        if let Some(dropped) = dropped {
            records.remove(&dropped.to_string());
            texts.remove(dropped);
        }
        Some(version)
    }

    fn upsert(&mut self, hash: HashName, domain: &str, upsert: &Upsert, now: Duration) {
        let Self { fields, ends, .. } = self;
        ends.retain(|name, end| {
            let kept = *end > now;
            if !kept {
                fields.remove(name);
            }
            kept
        });
        let name = (hash, domain.to_owned());
        let hash = fields.entry(name.clone()).or_default();
        upsert.delete.iter().for_each(|field| drop(hash.remove(field)));
        for (field, value) in &upsert.fields {
            if hash.len() < upsert.max_fields || hash.contains_key(field) {
                hash.insert(field.clone(), value.clone());
            }
        }
        ends.insert(name, now.saturating_add(upsert.keep_for));
    }
}

impl Memory {
    fn state_of(&self, key: Key<'_>) -> KeyState {
        let now = (self.clock)();
        let (value, left, own_quota) = match key {
            Key::Override(key) => {
                let overrides =
                    self.operators.overrides.read().unwrap_or_else(PoisonError::into_inner);
                let held = overrides
                    .get(key)
                    .and_then(|held| Some((held.value.clone(), held.left_at(now)?)));
                held.map_or((None, None, None), |(value, left)| (Some(value), left, None))
            }
            Key::Counter { key, id } => {
                let shard = self.shard(key);
                let counter = shard.get(key).and_then(|held| {
                    held.iter().find(|counter| counter.id == id && now < counter.kept_until())
                });
                let counter = counter.filter(|counter| counter.is_shown(now));
                let is_open = matches!(id, CounterId::Sliding(_) | CounterId::InFlight);
                let ends = counter.filter(|_| is_open);
                let left = ends.map(|counter| counter.end().saturating_sub(now));
                let own_quota = counter.and_then(|counter| counter.own_quota(now));
                (counter.map(|counter| counter.used(now).to_string()), left, own_quota)
            }
        };
        let ttl_ms = left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        KeyState { now, value, ttl_ms, own_quota }
    }

    fn slots_of(&self, key: &str) -> SlotsState {
        let shard = self.shard(key);
        let now = (self.clock)();
        let slots = shard.get(key).and_then(|held| held.iter().find_map(Counter::slots));
        slots.map_or_else(|| SlotsState { now, ..SlotsState::default() }, |slots| slots.state(now))
    }

    fn release_slots(&self, key: &str, of: Option<&str>) -> Released {
        let mut shard = self.shard(key);
        let now = (self.clock)();
        let slots =
            shard.get_mut(key).and_then(|held| held.iter_mut().find_map(Counter::slots_mut));
        slots.map_or_else(Released::default, |slots| slots.release(of, now))
    }

    /// Searches all keys, one shard at a time.
    fn search(&self, domain: &str, entry: &str, kept: KeptCounters, max: usize) -> FoundKeys {
        let now = (self.clock)();
        let mut found = FoundKeys::default();
        let own = |key: &str| key.strip_prefix(domain).is_some_and(|rest| rest.starts_with(':'));
        for shard in self.shards.all() {
            let shard = lock(shard);
            let keys = shard.iter().filter(|(key, held)| {
                own(key) && has_entry(key, entry) && are_found(held, kept, now)
            });
            let keys = keys.take(max.saturating_add(1)).map(|(key, _)| String::from(&**key));
            found.keys.extend(keys);
            if found.keys.len() > max {
                found.keys.truncate(max);
                found.incomplete = Some(format!("more than {max} counters were found"));
                break;
            }
        }
        found
    }

    /// The counters of a policy in some shards; `from` is the index of the first one.
    fn page_of(&self, domain: &str, policy: &str, kept: KeptCounters, from: usize) -> CounterPage {
        let now = (self.clock)();
        let start = format!("{domain}:{policy}:{{");
        let (mut keys, mut next) = (BTreeSet::new(), from);
        for shard in self.shards.all().skip(from) {
            if keys.len() >= PAGE {
                break;
            }
            next = next.saturating_add(1);
            let shard = lock(shard);
            let own = shard
                .iter()
                .filter(|(key, held)| key.starts_with(&*start) && are_found(held, kept, now));
            let found: Vec<Box<str>> = own.map(|(key, _)| key.clone()).collect();
            drop(shard);
            keys.extend(found.into_iter().map(String::from));
        }
        keys.retain(|key| CounterKey::split(key).is_some());
        CounterPage { keys, next: (next < SHARDS).then(|| next.to_string()), incomplete: None }
    }

    fn insert_override(
        &self,
        key: &str,
        value: &str,
        for_ms: Option<u64>,
    ) -> Result<(), StoreError> {
        let now = (self.clock)();
        let mut overrides =
            self.operators.overrides.write().unwrap_or_else(PoisonError::into_inner);
        if overrides.len() >= MAX_OVERRIDES && !overrides.contains_key(key) {
            overrides.retain(|_, held| held.left_at(now).is_some());
            if overrides.len() >= MAX_OVERRIDES {
                return Err(StoreError::Refused(format!(
                    "{MAX_OVERRIDES} overrides fill the memory"
                )));
            }
        }
        let until = for_ms.map(|for_ms| now.saturating_add(Duration::from_millis(for_ms)));
        overrides.insert(key.into(), OverrideEntry { value: value.to_owned(), until });
        self.operators.overridden.store(true, Relaxed);
        Ok(())
    }

    fn remove(&self, key: Key<'_>) -> bool {
        let existed = self.state_of(key).value.is_some();
        match key {
            Key::Override(key) => {
                let mut overrides =
                    self.operators.overrides.write().unwrap_or_else(PoisonError::into_inner);
                overrides.remove(key);
            }
            Key::Counter { key, id } => {
                if let Some(held) = self.shard(key).get_mut(key) {
                    held.retain(|counter| counter.id != id);
                }
            }
        }
        existed
    }
}

/// Whether a search finds a key with these counters.
fn are_found(held: &[Counter], kept: KeptCounters, now: Duration) -> bool {
    kept == KeptCounters::Found || held.iter().any(|counter| now < counter.end())
}

impl ControlStore for Memory {
    fn backend(&self) -> &'static str {
        "memory"
    }

    fn durable(&self) -> bool {
        false
    }

    fn read<'a>(&'a self, hash: HashName, domain: &'a str) -> Reply<'a, Snapshot> {
        let hashes = self.operators.hashes();
        let version = match hash {
            HashName::Dials => hashes.versions.get(domain).copied().unwrap_or_default(),
            _ => ChangesVersion::default(),
        };
        let name = (hash, domain.to_owned());
        let ended = hashes.ends.get(&name).is_some_and(|end| *end <= (self.clock)());
        let fields = hashes.fields.get(&name).filter(|_| !ended).cloned().unwrap_or_default();
        ready(Ok(Snapshot::within_bounds(hash, fields.into_iter(), (self.clock)(), version, 0)))
            .boxed()
    }

    fn change<'a>(&'a self, domain: &'a str, change: &'a Change) -> Reply<'a, Option<u64>> {
        ready(Ok(self.operators.hashes().change(domain, change, (self.clock)()))).boxed()
    }

    fn publish<'a>(
        &'a self,
        domain: &'a str,
        publication: &'a Publication,
    ) -> Reply<'a, Option<u64>> {
        ready(Ok(self.operators.hashes().publish(domain, publication, (self.clock)()))).boxed()
    }

    fn document<'a>(&'a self, domain: &'a str, number: u64) -> Reply<'a, Option<Vec<u8>>> {
        let hashes = self.operators.hashes();
        let text = hashes.documents.get(domain).and_then(|texts| texts.get(&number)).cloned();
        ready(Ok(text)).boxed()
    }

    fn forget_documents<'a>(&'a self, domain: &'a str, last: Option<&'a [u8]>) -> Reply<'a, bool> {
        let mut hashes = self.operators.hashes();
        let name = (HashName::Documents, domain.to_owned());
        let held = hashes.fields.get(&name).and_then(|records| records.get(LAST_DOCUMENT));
        let is_last = held.map(Vec::as_slice) == last;
        if is_last {
            hashes.fields.remove(&name);
            hashes.documents.remove(domain);
        }
        ready(Ok(is_last)).boxed()
    }

    fn upsert<'a>(&'a self, hash: HashName, domain: &'a str, upsert: &'a Upsert) -> Reply<'a, ()> {
        self.operators.hashes().upsert(hash, domain, upsert, (self.clock)());
        ready(Ok(())).boxed()
    }

    fn history<'a>(&'a self, domain: &'a str, limit: usize) -> Reply<'a, Vec<Vec<u8>>> {
        let hashes = self.operators.hashes();
        let entries =
            hashes.histories.get(domain).into_iter().flatten().take(limit).cloned().collect();
        ready(Ok(entries)).boxed()
    }

    fn get<'a>(&'a self, key: Key<'a>) -> Reply<'a, KeyState> {
        ready(Ok(self.state_of(key))).boxed()
    }

    fn find<'a>(
        &'a self,
        domain: &'a str,
        entry: &'a str,
        kept: KeptCounters,
        max: usize,
    ) -> Reply<'a, FoundKeys> {
        ready(Ok(self.search(domain, entry, kept, max))).boxed()
    }

    fn page<'a>(
        &'a self,
        domain: &'a str,
        policy: &'a str,
        kept: KeptCounters,
        from: Option<&'a str>,
    ) -> Reply<'a, CounterPage> {
        let from = from.map_or(Ok(0), str::parse).map_err(|_| unknown_page());
        ready(from.map(|from| self.page_of(domain, policy, kept, from))).boxed()
    }

    fn set_override<'a>(
        &'a self,
        key: &'a str,
        value: &'a str,
        for_ms: Option<u64>,
    ) -> Reply<'a, ()> {
        ready(self.insert_override(key, value, for_ms)).boxed()
    }

    fn delete<'a>(&'a self, key: Key<'a>) -> Reply<'a, bool> {
        ready(Ok(self.remove(key))).boxed()
    }

    fn slots<'a>(&'a self, key: &'a str) -> Reply<'a, SlotsState> {
        ready(Ok(self.slots_of(key))).boxed()
    }

    fn release<'a>(&'a self, key: &'a str, of: Option<&'a str>) -> Reply<'a, Released> {
        ready(Ok(self.release_slots(key, of))).boxed()
    }
}
