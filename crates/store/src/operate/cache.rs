//! The dials of domains that filters ask for, kept at hand.
//!
//! What was asked for within the last [`WANTED`] is read anew once a second, and at once after a change by this store.
//! While the backend cannot be read the last known stays. Of spoilt data each complaint is logged once, not once a second.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use quotagate_quota::wire::dials::DialsReply;

use super::record::{DialRecord, OverrideRecord, left_at};
use super::reports::Known;
use super::{MAX_DOMAINS, Operate};
use crate::desk::{Sheet, Shelf};
use crate::store::StoreError;

/// How long a domain is read for that nobody asks for.
const WANTED: Duration = Duration::from_secs(60);
/// How often it is read.
const EVERY: Duration = Duration::from_secs(1);
/// How often it is read where the backend refuses to be asked.
const REFUSED: Duration = Duration::from_secs(10);
/// How often the index of overrides is read without a new version.
const INDEX: Duration = Duration::from_secs(60);
/// Spoilt fields that a complaint names.
const NAMED: usize = 3;

/// The domains at hand: [`MAX_DOMAINS`].
#[derive(Default)]
pub struct Cache(RwLock<HashMap<Box<str>, Arc<Cached>>>);

/// Too many domains are asked for at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_DOMAINS} domains are asked for already")]
pub struct Full;

/// A domain at hand.
pub struct Cached {
    /// Its name.
    pub name: Box<str>,
    version: AtomicU64,
    state: Mutex<State>,
    /// One reads at a time.
    reading: tokio::sync::Mutex<()>,
    pub(super) known: Mutex<Known>,
}

struct State {
    asked: Instant,
    view: Option<Arc<View>>,
    /// What was last complained of.
    complaint: String,
    /// It is not read sooner.
    not_before: Instant,
}

/// What was last read of a domain.
struct View {
    sheet: Sheet,
    at: Instant,
    dials: Vec<(String, DialRecord)>,
    overrides: Arc<Index>,
}

/// Which policies have overrides, and until when the last of them is in force: `None` for ever.
struct Index {
    version: u64,
    at: Instant,
    policies: BTreeMap<String, Option<u64>>,
    /// Until when each is in force.
    ends: Vec<Option<u64>>,
}

impl View {
    fn now(&self) -> Duration {
        self.sheet.now.saturating_add(self.at.elapsed())
    }
}

impl Cached {
    fn new(name: &str) -> Self {
        let now = Instant::now();
        Self {
            name: name.into(),
            version: AtomicU64::new(0),
            state: Mutex::new(State { asked: now, view: None, complaint: String::new(), not_before: now }),
            reading: tokio::sync::Mutex::default(),
            known: Mutex::default(),
        }
    }

    /// What filters are told; `None` where it was never read.
    pub fn reply(&self) -> Option<DialsReply> {
        let view = self.view()?;
        let now = view.now();
        let dials = view.dials.iter().filter_map(|(policy, dial)| dial.dial(policy, now)).collect();
        let policies = view.overrides.policies.iter();
        let overridden = policies.filter(|(_, until)| left_at(**until, now).is_some());
        let overridden = overridden.map(|(policy, _)| policy.clone()).collect();
        Some(DialsReply { version: view.sheet.version, dials, overridden })
    }

    /// The backend's time, as far as known.
    pub fn now(&self) -> Option<Duration> {
        self.view().map(|view| view.now())
    }

    fn view(&self) -> Option<Arc<View>> {
        self.state().view.clone()
    }

    fn complain(&self, complaint: String) {
        let mut state = self.state();
        if state.complaint != complaint {
            if !complaint.is_empty() {
                tracing::warn!("dials of {}: {complaint}", self.name);
            }
            state.complaint = complaint;
        }
    }

    /// No panic can happen while it is locked, so a poisoned lock guards nothing that is broken.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cache {
    /// The domains at hand.
    pub fn all(&self) -> Vec<Arc<Cached>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// A domain, where it is at hand.
    pub fn get(&self, domain: &str) -> Option<Arc<Cached>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(domain).cloned()
    }

    /// A domain, which is at hand from now on.
    fn want(&self, domain: &str) -> Result<Arc<Cached>, Full> {
        let now = Instant::now();
        if let Some(cached) = self.get(domain) {
            cached.state().asked = now;
            return Ok(cached);
        }
        let mut domains = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if domains.len() >= MAX_DOMAINS {
            domains.retain(|_, cached| cached.state().asked + WANTED > now);
            if domains.len() >= MAX_DOMAINS {
                return Err(Full);
            }
        }
        Ok(Arc::clone(domains.entry(domain.into()).or_insert_with(|| Arc::new(Cached::new(domain)))))
    }
}

impl Operate {
    /// The version of a domain that is at hand; 0 of any other.
    pub fn version(&self, domain: &str) -> u64 {
        let domains = self.cache.0.read().unwrap_or_else(PoisonError::into_inner);
        domains.get(domain).map_or(0, |cached| cached.version.load(Relaxed))
    }

    /// Of each domain at hand, how many dials and overrides are in force.
    pub fn in_force(&self) -> Vec<(String, usize, usize)> {
        let count = |cached: Arc<Cached>| {
            let view = cached.view()?;
            let now = view.now();
            let dials = view.dials.iter().filter(|(_, dial)| dial.left_at(now).is_some()).count();
            let overrides =
                view.overrides.ends.iter().filter(|until| left_at(**until, now).is_some()).count();
            Some((cached.name.to_string(), dials, overrides))
        };
        self.cache.all().into_iter().filter_map(count).collect()
    }

    /// A domain that a filter asks for, read at least once if the backend lets it be.
    ///
    /// # Errors
    /// Where too many others are asked for.
    pub async fn wanted(&self, domain: &str) -> Result<Arc<Cached>, Full> {
        let cached = self.cache.want(domain)?;
        if cached.view().is_none() {
            let _turn = cached.reading.lock().await;
            if cached.view().is_none() {
                self.read_into(&cached).await;
            }
        }
        Ok(cached)
    }

    /// Reads what is at hand once a second, for ever.
    pub async fn keep_fresh(&self) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = Instant::now();
            let due = |cached: &Arc<Cached>| {
                let state = cached.state();
                state.asked + WANTED > now && state.not_before <= now
            };
            let all: Vec<_> = self.cache.all().into_iter().filter(due).collect();
            join_all(all.iter().map(|cached| async {
                let _turn = cached.reading.lock().await;
                self.read_into(cached).await;
            }))
            .await;
        }
    }

    /// Reads a domain anew after a change, where it is at hand.
    pub(super) async fn reread(&self, domain: &str) {
        if let Some(cached) = self.cache.get(domain) {
            let _turn = cached.reading.lock().await;
            self.read_into(&cached).await;
        }
    }

    async fn read_into(&self, cached: &Cached) {
        let domain = &*cached.name;
        let sheet = match self.desk().read(Shelf::Dials, domain).await {
            Ok(sheet) => sheet,
            Err(StoreError::Refused(reason)) => {
                cached.complain(format!("they cannot be read: {reason}"));
                let mut state = cached.state();
                state.not_before = Instant::now() + REFUSED;
                // Counting goes on without dials.
                let now = std::time::SystemTime::now();
                let now = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
                let none =
                    Index { version: 0, at: Instant::now(), policies: BTreeMap::new(), ends: Vec::new() };
                state.view.get_or_insert_with(|| {
                    let sheet = Sheet { now, ..Sheet::default() };
                    Arc::new(View { sheet, at: Instant::now(), dials: Vec::new(), overrides: Arc::new(none) })
                });
                return;
            }
            // It says so in /readyz.
            Err(_) => return,
        };
        let at = Instant::now();
        let last = cached.view();
        let overrides = self.index(domain, &sheet, last.as_deref()).await;
        let same =
            last.filter(|last| last.sheet.fields == sheet.fields && last.sheet.left_out == sheet.left_out);
        let dials = match same {
            Some(last) => last.dials.clone(),
            None => {
                let (dials, complaint) = understand(&sheet);
                cached.complain(complaint);
                dials
            }
        };
        cached.version.store(sheet.version, Relaxed);
        cached.state().view = Some(Arc::new(View { sheet, at, dials, overrides }));
    }

    async fn index(&self, domain: &str, sheet: &Sheet, last: Option<&View>) -> Arc<Index> {
        let last = last.map(|last| &last.overrides);
        let fresh = last.filter(|last| last.version == sheet.version && last.at.elapsed() < INDEX);
        if let Some(last) = fresh {
            return Arc::clone(last);
        }
        let none = || Index { version: 0, at: Instant::now(), policies: BTreeMap::new(), ends: Vec::new() };
        match self.desk().read(Shelf::Overrides, domain).await {
            Ok(found) => {
                let mut index = Index { version: sheet.version, ..none() };
                for (field, value) in &found.fields {
                    let Some((policy, _)) = field.split_once(":{") else { continue };
                    let Ok(entry) = serde_json::from_slice::<OverrideRecord>(value) else { continue };
                    index.ends.push(entry.until_ms);
                    let until = index.policies.entry(policy.to_owned()).or_insert(Some(0));
                    *until = until.zip(entry.until_ms).map(|(one, other)| one.max(other));
                }
                Arc::new(index)
            }
            Err(_) => last.map_or_else(|| Arc::new(none()), Arc::clone),
        }
    }
}

/// The dials that can be read, and what is said of the rest.
pub(super) fn understand(sheet: &Sheet) -> (Vec<(String, DialRecord)>, String) {
    let (mut dials, mut faults) = (Vec::new(), Vec::new());
    for (policy, value) in &sheet.fields {
        match DialRecord::read(policy, value) {
            Ok(dial) => dials.push((policy.clone(), dial)),
            Err(fault) => {
                let shown: String = policy.chars().take(64).collect();
                faults.push(format!("{shown:?}: {fault}"));
            }
        }
    }
    let bad = faults.len().saturating_add(usize::try_from(sheet.left_out).unwrap_or(usize::MAX));
    if bad == 0 {
        return (dials, String::new());
    }
    faults.truncate(NAMED);
    let named = if faults.is_empty() { String::new() } else { format!(" ({})", faults.join("; ")) };
    (dials, format!("ignored what is no dial, {bad} in all{named}"))
}
