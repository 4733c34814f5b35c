//! The policies that proxies report. This process keeps them, and writes each one to the backend
//! for other stores if it is new, has changed, or was last written ten minutes ago.
//!
//! Bounds: [`MAX_NAMES`] domains reported within [`REMEMBERED`], and [`MAX_POLICIES`] policies in
//! each. Older ones are deleted when a store writes, and expire if no store writes any more.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quotagate_quota::protocol::dials::{
    MAX_PARTITION_BY, MAX_REPORT, PartitionEntry, PolicyReport, Report,
};
use quotagate_quota::protocol::{MAX_UNITS, Window};

use quotagate_store::key::{is_domain, is_policy};

use super::directory::Directory;
use super::record::{DomainRecord, read_policy, write};
use super::views::Watched;
use super::{MAX_NAMES, MAX_POLICIES, REMEMBERED, REPORTED, millis};
use crate::api::PolicyInfo;
use quotagate_store::control::{Field, HashName, Snapshot, Upsert};
use quotagate_store::store::StoreError;

/// How often an unchanged entry is written again.
const REWRITE: Duration = Duration::from_secs(600);
/// How often an entry is written at most while proxies report different values.
const AGAIN: Duration = Duration::from_secs(10);

/// The policies of a domain that proxies have reported to this store: at most [`MAX_POLICIES`].
#[derive(Default)]
pub struct Known(BTreeMap<String, Told>);

struct Told {
    info: PolicyInfo,
    /// What was last written, and when.
    written: Option<(PolicyInfo, Instant)>,
}

impl Told {
    fn is_due(&self) -> bool {
        self.written.as_ref().is_none_or(|(written, at)| {
            let same = PolicyInfo { seen_ms: written.seen_ms, ..self.info.clone() } == *written;
            at.elapsed() > if same { REWRITE } else { AGAIN }
        })
    }
}

impl Watched {
    /// Reads a report and remembers its policies; `None` if it is unreadable.
    pub fn learn(&self, text: &[u8]) -> Option<Report> {
        if text.len() > MAX_REPORT {
            return None;
        }
        let mut report: Report = serde_json::from_slice(text).ok()?;
        report.policies.retain(is_sound);
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seen_ms = millis(self.now().unwrap_or_else(now));
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for policy in &report.policies {
            let room = known.0.len() < MAX_POLICIES;
            match known.0.get_mut(&policy.name) {
                Some(told) => told.info = info(policy, told.info.partition_by.take(), seen_ms),
                None if room => {
                    let told = Told { info: info(policy, None, seen_ms), written: None };
                    known.0.insert(policy.name.clone(), told);
                }
                None => {}
            }
        }
        Some(report)
    }

    /// The policies that proxies reported to this store in the last 15 minutes. Older ones are in
    /// the backend, unless an operator has removed them since.
    pub fn policies(&self) -> Vec<PolicyInfo> {
        let since = self.now().map_or(0, |now| millis(now.saturating_sub(REPORTED)));
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .0
            .values()
            .map(|told| told.info.clone())
            .filter(|info| info.seen_ms >= since)
            .collect()
    }

    /// The entries that are due, marked as written.
    fn due(&self) -> Vec<Field> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let due = known.0.values_mut().filter(|told| told.is_due());
        due.map(|told| {
            told.written = Some((told.info.clone(), Instant::now()));
            (told.info.name.clone(), write(&told.info))
        })
        .collect()
    }

    /// Whether an entry is due.
    pub fn is_due(&self) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).0.values().any(Told::is_due)
    }

    /// Forgets all reports to this store.
    pub(super) fn forget_reports(&self) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Known::default();
    }

    fn forget_written(&self) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.0.values_mut().for_each(|told| told.written = None);
    }
}

impl Directory {
    /// Writes the reports of a domain to the backend, where other stores find them.
    pub async fn write_down(&self, cached: &Watched) {
        let due = cached.due();
        let Some(seen_ms) = cached.now().map(millis).filter(|_| !due.is_empty()) else { return };
        let domain = (cached.name.to_string(), write(&DomainRecord { seen_ms }));
        let written = async {
            let known = self.control().read(HashName::Domains, "").await?;
            let (live, dead) = sorted(&known, |name, value| {
                let seen =
                    serde_json::from_slice::<DomainRecord>(value).ok().map(|seen| seen.seen_ms);
                seen.filter(|_| is_domain(name))
            });
            if live >= MAX_NAMES && (known.get(&domain.0).is_none() || dead.contains(&domain.0)) {
                tracing::debug!(
                    "{MAX_NAMES} domains are recorded already: {} is not recorded",
                    cached.name
                );
                return Ok(());
            }
            self.write_to(HashName::Domains, "", &[domain], dead, MAX_NAMES).await?;
            let known = self.control().read(HashName::Policies, &cached.name).await?;
            let (_, dead) =
                sorted(&known, |name, value| read_policy(name, value).map(|policy| policy.seen_ms));
            self.write_to(HashName::Policies, &cached.name, &due, dead, MAX_POLICIES).await
        };
        match written.await {
            Ok(()) => {}
            // The next write is in ten minutes. Until then this store keeps the reports in memory.
            Err(StoreError::Refused(reason)) => {
                tracing::debug!("cannot record the reports of {}: {reason}", cached.name);
            }
            Err(_) => cached.forget_written(),
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
        self.control().upsert(hash, domain, &upsert).await
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

fn is_sound(policy: &PolicyReport) -> bool {
    is_policy(&policy.name)
        && policy.quota <= MAX_UNITS
        && Window::new(policy.window_s, 0).is_some()
}

/// The entry of a policy after a report. If the report does not say what the policy counts by, the
/// entry keeps what an earlier report `said`.
fn info(policy: &PolicyReport, said: Option<Vec<PartitionEntry>>, seen_ms: u64) -> PolicyInfo {
    let PolicyReport { quota, window_s, stagger, mode, on_failure, tiers, .. } = *policy;
    let partition_by = policy.partition_by.clone().filter(|entries| is_printable(entries)).or(said);
    let name = policy.name.clone();
    PolicyInfo { name, quota, window_s, stagger, mode, on_failure, partition_by, tiers, seen_ms }
}

/// Whether a field can hold it, and operators can read it.
fn is_printable(entries: &[PartitionEntry]) -> bool {
    let graphic = |text: &String| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
    entries.iter().all(|entry| graphic(&entry.name) && entry.forms.iter().all(graphic))
        && write(&entries).len() <= MAX_PARTITION_BY
}
