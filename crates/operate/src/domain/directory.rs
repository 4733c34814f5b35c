//! The known domains and policies, and the name of the operator who makes a change.
//!
//! Bounds: [`MAX_NAMES`] domains reported within [`REMEMBERED`], and in each of them [`MAX_FORMS`]
//! policies, where each document has its own. Older ones are deleted when a store writes, and
//! expire if no store writes any more. So are those of an earlier document, once its successor has
//! them.
//!
//! While the part of the backend is away that has one of these lists, the last read stands for it.
//! Bound: the policies of [`MAX_DOMAINS`] domains.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quotagate_protocol::is_domain;

use super::views::{Views, Watched};
use crate::api::{MAX_BY, PolicyInfo};
use crate::control::ControlHandle;
use crate::record::{DomainRecord, read_policy, write};
use crate::text::is_harmful;
use crate::{Fault, MAX_DOMAINS, MAX_FORMS, MAX_NAMES, REMEMBERED, REPORTED, millis};
use quotagate_store::control::{Field, HashName, Snapshot, Upsert};
use quotagate_store::store::StoreError;

/// The age at which the entry of a policy gives way to that of a later document: every store has
/// written by then what its proxies still report.
const REPLACED: Duration = Duration::from_secs(30 * 60);

/// Policies recorded in the backend.
pub(crate) type Written = Arc<[PolicyInfo]>;

/// The domains and policies that proxies have reported, to this store or another.
pub struct Directory {
    pub(crate) control: ControlHandle,
    pub(crate) views: Arc<Views>,
    last: Mutex<LastRead>,
}

/// What was last read from the backend.
#[derive(Default)]
struct LastRead {
    domains: Option<(Instant, Snapshot)>,
    policies: HashMap<String, Written>,
}

/// The names of domains.
#[derive(Clone, Debug)]
pub struct DomainNames {
    /// The names, in order.
    pub names: Vec<String>,
    /// Why some may be missing.
    pub incomplete: Option<String>,
}

impl From<String> for DomainNames {
    fn from(only: String) -> Self {
        Self { names: vec![only], incomplete: None }
    }
}

impl Directory {
    pub(crate) fn new(control: ControlHandle, views: Arc<Views>) -> Self {
        Self { control, views, last: Mutex::default() }
    }

    /// No panic can happen while it is locked, so a poisoned lock guards consistent data.
    fn last(&self) -> MutexGuard<'_, LastRead> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The given domain, or all if none is given.
    ///
    /// # Errors
    /// If the domain is not known, or the backend fails.
    pub(crate) async fn some_or_all(&self, domain: Option<&str>) -> Result<DomainNames, Fault> {
        match domain {
            Some(domain) => Ok(DomainNames::from(self.domain(Some(domain)).await?)),
            None => self.named().await,
        }
    }

    /// The names of all domains that proxies have reported.
    pub async fn domains(&self) -> Result<Vec<String>, Fault> {
        Ok(self.named().await?.names)
    }

    /// The list of domains, and why it may be an old one.
    pub(crate) async fn list(&self) -> Result<(Snapshot, Option<String>), StoreError> {
        match self.control.read(HashName::Domains, "").await {
            Ok(read) => {
                self.views.recorded(&read);
                let mut last = self.last();
                last.domains = Some((Instant::now(), read.clone()));
                last.policies.retain(|domain, _| read.get(domain).is_some());
                drop(last);
                // Else other stores would learn of a domain only when its entries are renewed.
                let is_lost = |of: &Arc<Watched>| read.get(&of.name).is_none();
                if read.fields.len() < MAX_NAMES {
                    self.views
                        .all()
                        .iter()
                        .filter(|of| is_lost(of))
                        .for_each(|of| of.write_again());
                }
                Ok((read, None))
            }
            Err(error) if self.control.is_partial(&error) => {
                let why =
                    format!("the list of domains cannot be read, so some may be missing: {error}");
                let last = self.last().domains.clone();
                let last = last.map(|(at, read)| Snapshot {
                    now: read.now.saturating_add(at.elapsed()),
                    ..read
                });
                Ok((last.unwrap_or_default(), Some(why)))
            }
            Err(error) => Err(error),
        }
    }

    /// The names of all domains that proxies have reported, and why some may be missing.
    ///
    /// # Errors
    /// If the backend fails.
    pub async fn named(&self) -> Result<DomainNames, Fault> {
        let (snapshot, incomplete) = self.list().await?;
        let since = millis(snapshot.now.saturating_sub(REMEMBERED));
        let mut names: BTreeSet<String> = BTreeSet::new();
        for (name, value) in &snapshot.fields {
            let seen = DomainRecord::read(value);
            if is_domain(name) && seen.is_some_and(|seen| seen.seen_ms >= since) {
                names.insert(name.clone());
            }
        }
        let here = self.views.all().into_iter().filter(|cached| cached.is_reported());
        names.extend(here.map(|cached| cached.name.to_string()));
        let names = names.into_iter().take(MAX_NAMES).collect();
        Ok(DomainNames { names, incomplete })
    }

    /// The given domain, or the only one if none is given. A given domain is also known by its
    /// policies, so that nothing else needs to be read for it.
    ///
    /// # Errors
    /// If it is not known, or if none is given and several are known.
    pub async fn domain(&self, given: Option<&str>) -> Result<String, Fault> {
        if let Some(given) = given.filter(|given| is_domain(given)) {
            let here = self.views.get(given).is_some_and(|cached| cached.is_reported());
            if here || !self.written(given).await?.is_empty() {
                return Ok(given.to_owned());
            }
        }
        let DomainNames { names: known, incomplete } = self.named().await?;
        if let (None, Some(why)) = (given, incomplete) {
            // Another one may be meant, although only one is known.
            let reason = format!("{why}. Name one");
            return Err(Fault::Invalid { field: "domain", reason, known });
        }
        match (given, known.as_slice()) {
            (Some(given), known) if known.iter().any(|name| name == given) => Ok(given.to_owned()),
            (Some(given), _) => {
                let reason = format!("no filter has reported a domain {given:?}");
                Err(Fault::Unknown { field: "domain", reason, known })
            }
            (None, [only]) => Ok(only.clone()),
            (None, []) => {
                let reason = "no filter has reported a domain yet".to_owned();
                Err(Fault::Unknown { field: "domain", reason, known })
            }
            (None, _) => {
                let reason = "several domains are known: name one".to_owned();
                Err(Fault::Invalid { field: "domain", reason, known })
            }
        }
    }

    /// All policies of a domain, by name, reported to this store or another.
    pub async fn policies(&self, domain: &str) -> Result<Vec<PolicyInfo>, StoreError> {
        let here = self.views.get(domain);
        let written = match self.written(domain).await {
            Err(error) if self.control.is_partial(&error) && here.is_some() => Written::default(),
            written => written?,
        };
        Ok(merged(&written, here.as_deref()))
    }

    /// The policies of a domain in the backend, recorded by this store or another.
    pub(crate) async fn written(&self, domain: &str) -> Result<Written, StoreError> {
        let snapshot = match self.control.read(HashName::Policies, domain).await {
            Err(error) if self.control.is_partial(&error) => {
                return self.last().policies.get(domain).cloned().ok_or(error);
            }
            read => read?,
        };
        let since = millis(snapshot.now.saturating_sub(REMEMBERED));
        let reported = millis(snapshot.now.saturating_sub(REPORTED));
        let written = snapshot.fields.iter().filter_map(|(name, value)| read_policy(name, value));
        let known = written.filter(|policy| policy.seen_ms >= since);
        let written: Written =
            known.map(|policy| PolicyInfo { gone: policy.seen_ms < reported, ..policy }).collect();
        let mut last = self.last();
        let room = last.policies.len() < MAX_DOMAINS || last.policies.contains_key(domain);
        if room && !written.is_empty() {
            last.policies.insert(domain.to_owned(), Arc::clone(&written));
        }
        drop(last);
        Ok(written)
    }

    /// A policy that proxies have reported.
    ///
    /// # Errors
    /// If no proxy has.
    pub(crate) async fn policy(&self, domain: &str, name: &str) -> Result<PolicyInfo, Fault> {
        let mut policies = self.policies(domain).await?;
        match policies.iter().position(|policy| policy.name == name) {
            Some(at) => Ok(policies.swap_remove(at)),
            None => {
                let known = policies.into_iter().map(|policy| policy.name).collect();
                let reason = format!("no filter has reported a policy {name:?} of {domain}");
                Err(Fault::Unknown { field: "policy", reason, known })
            }
        }
    }

    /// Checks that one of these domains has a policy of this name.
    ///
    /// # Errors
    /// If none has, with the names that are known; or if one of them cannot be read, and the others
    /// have none.
    pub async fn check_policy(&self, domains: &DomainNames, name: &str) -> Result<(), Fault> {
        let mut unread = domains.incomplete.clone().map(StoreError::Unreachable);
        let mut known = BTreeSet::new();
        for domain in &domains.names {
            match self.policies(domain).await {
                Ok(policies) if policies.iter().any(|policy| policy.name == name) => return Ok(()),
                Ok(policies) => known.extend(policies.into_iter().map(|policy| policy.name)),
                Err(error) if self.control.is_partial(&error) => {
                    unread.get_or_insert(error);
                }
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(error) = unread {
            return Err(error.into());
        }
        let reason = format!("no filter has reported a policy {name:?}");
        Err(Fault::Unknown { field: "policy", reason, known: known.into_iter().collect() })
    }

    /// The given domain, or the only one, and its policy of this name.
    pub(crate) async fn domain_and_policy(
        &self,
        domain: Option<&str>,
        policy: &str,
    ) -> Result<(String, PolicyInfo), Fault> {
        let domain = self.domain(domain).await?;
        let policy = self.policy(&domain, policy).await?;
        Ok((domain, policy))
    }

    /// Writes the reports of a domain to the backend, where other stores find them.
    pub async fn write_down(&self, cached: &Watched) {
        let due = cached.due();
        let Some(seen_ms) = cached.now().map(millis).filter(|_| !due.is_empty()) else { return };
        let name = cached.name.to_string();
        let listed = async {
            let known = self.control.read(HashName::Domains, "").await?;
            let (live, dead) = sorted(&known, |name, value| {
                let seen = DomainRecord::read(value).map(|seen| seen.seen_ms);
                seen.filter(|_| is_domain(name))
            });
            let listed = known.get(&name).filter(|_| !dead.contains(&name));
            if live >= MAX_NAMES && listed.is_none() {
                tracing::debug!(
                    "{MAX_NAMES} domains are recorded already: {} is not recorded",
                    cached.name
                );
                return Ok(false);
            }
            let since_ms = listed.and_then(DomainRecord::read).map_or(seen_ms, |of| of.since_ms);
            let domain = (name.clone(), write(&DomainRecord { seen_ms, since_ms }));
            self.write_to(HashName::Domains, "", &[domain], dead, MAX_NAMES).await?;
            Ok(true)
        };
        let written = async {
            // Of a domain that is not listed, its policies are known to those who name it.
            let listed = match listed.await {
                Ok(false) => return Ok(()),
                Err(error) if !self.control.is_partial(&error) => return Err(error),
                listed => listed.map(drop),
            };
            let known = self.control.read(HashName::Policies, &cached.name).await?;
            let replaced = millis(cached.now().unwrap_or_default().saturating_sub(REPLACED));
            let here: BTreeSet<String> =
                cached.policies().into_iter().map(|policy| policy.name).collect();
            let (_, dead) = sorted(&known, |name, value| {
                let policy = read_policy(name, value)?;
                let is_old = policy.seen_ms < replaced && here.contains(&policy.name);
                (!is_old).then_some(policy.seen_ms)
            });
            self.write_to(HashName::Policies, &cached.name, &due, dead, MAX_FORMS).await?;
            listed
        };
        match written.await {
            Ok(()) => {}
            // The next write is in ten minutes. Until then this store keeps the reports in memory.
            Err(StoreError::Refused(reason)) => {
                tracing::debug!("cannot record the reports of {}: {reason}", cached.name);
            }
            Err(_) => cached.write_again(),
        }
    }

    async fn write_to(
        &self,
        hash: HashName,
        domain: &str,
        fields: &[Field],
        dead: Vec<String>,
        most: usize,
    ) -> Result<(), StoreError> {
        let upsert = Upsert {
            delete: dead,
            fields: fields.to_vec(),
            max_fields: most,
            keep_for: REMEMBERED,
        };
        self.control.upsert(hash, domain, &upsert).await
    }
}

/// How many fields were reported within [`REMEMBERED`], and the names of the rest.
fn sorted(
    snapshot: &Snapshot,
    seen_ms: impl Fn(&str, &[u8]) -> Option<u64>,
) -> (usize, Vec<String>) {
    let since = millis(snapshot.now.saturating_sub(REMEMBERED));
    let is_dead = |(name, value): &&Field| seen_ms(name, value).is_none_or(|seen| seen < since);
    let dead: Vec<_> =
        snapshot.fields.iter().filter(is_dead).map(|(name, _)| name.clone()).collect();
    (snapshot.fields.len().saturating_sub(dead.len()), dead)
}

/// The policies in the backend and those reported to this store, by name: each as the latest report
/// says, and as other documents say that were reported at about the same time.
pub(crate) fn merged(written: &[PolicyInfo], here: Option<&Watched>) -> Vec<PolicyInfo> {
    let here = here.map(Watched::policies).unwrap_or_default();
    let mut forms: BTreeMap<(String, String), PolicyInfo> = BTreeMap::new();
    for mut policy in written.iter().cloned().chain(here) {
        let name = (policy.name.clone(), policy.digest.clone());
        let known = forms.get(&name);
        if known.is_some_and(|known| known.seen_ms > policy.seen_ms) {
            continue;
        }
        // A report may leave out what a policy counts by.
        policy.partition_by = policy.partition_by.or_else(|| known?.partition_by.clone());
        forms.insert(name, policy);
    }
    let mut policies: Vec<PolicyInfo> = Vec::new();
    for form in forms.into_values() {
        match policies.last_mut() {
            Some(policy) if policy.name == form.name => policy.also.push(form),
            _ => policies.push(form),
        }
    }
    policies.into_iter().map(latest_first).collect()
}

/// A policy with its forms in order, without those of earlier documents.
fn latest_first(mut policy: PolicyInfo) -> PolicyInfo {
    let mut forms = std::mem::take(&mut policy.also);
    forms.push(policy.clone());
    forms.sort_by_key(|form| Reverse(form.seen_ms));
    let mut forms = forms.into_iter();
    let Some(mut latest) = forms.next() else { return policy };
    let since = latest.seen_ms.saturating_sub(millis(REPORTED));
    let others: Vec<PolicyInfo> = forms.collect();
    // Until a new document has said what the policy counts by, an earlier one says it.
    let said = others.iter().find_map(|form| form.partition_by.clone());
    latest.partition_by = latest.partition_by.or(said);
    latest.also = others.into_iter().filter(|form| form.seen_ms >= since).collect();
    latest
}

/// A name that is safe in logs and tables: no harmful characters, at most [`MAX_BY`] bytes.
pub fn clean(by: &str) -> String {
    let name = clean_text(by, MAX_BY);
    if name.is_empty() { "unknown".to_owned() } else { name }
}

/// A text without [harmful](is_harmful) characters, of at most so many bytes.
pub fn clean_text(text: &str, most: usize) -> String {
    let mut text: String = text.chars().filter(|c| !is_harmful(*c)).collect();
    text = text.trim().to_owned();
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_and_lose_control_characters() {
        assert_eq!(clean("ann\r\n\u{1b}[31m\0"), "ann[31m");
        assert_eq!(clean("a\u{202e}n\u{2028}n\u{200b}é"), "anné");
        assert_eq!(clean(" \t"), "unknown");
        let long = clean(&"ä".repeat(100));
        assert_eq!((long.len(), long.chars().count()), (128, 64));
    }
}
