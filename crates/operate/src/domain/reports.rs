//! The policies that proxies report. This process keeps them, and writes each one to the backend
//! for other stores if it is new, has changed, or was last written ten minutes ago.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quotagate_protocol::dials::{
    MAX_PARTITION_BY, MAX_REPORT, PartitionEntry, PolicyReport, Report,
};
use quotagate_protocol::{MAX_UNITS, Window};

use quotagate_protocol::is_policy;

use crate::api::PolicyInfo;
use crate::record::{is_document_digest, policy_field, write};
use crate::{MAX_FORMS, REPORTED, millis};
use quotagate_store::control::Field;

/// How often an unchanged entry is written again.
const REWRITE: Duration = Duration::from_secs(600);
/// How often an entry is written at most while it changes.
const AGAIN: Duration = Duration::from_secs(10);

/// The policies of a domain that proxies have reported to this store, by name and by the digest of
/// the document: at most [`MAX_FORMS`].
#[derive(Default)]
pub struct Known(Mutex<BTreeMap<(String, String), KnownPolicy>>);

struct KnownPolicy {
    info: PolicyInfo,
    /// What was last written, and when.
    written: Option<(PolicyInfo, Instant)>,
}

impl KnownPolicy {
    fn is_due(&self) -> bool {
        self.written.as_ref().is_none_or(|(written, at)| {
            let same = PolicyInfo { seen_ms: written.seen_ms, ..self.info.clone() } == *written;
            at.elapsed() > if same { REWRITE } else { AGAIN }
        })
    }
}

impl Known {
    /// Reads a report and remembers its policies; `None` if it is unreadable.
    pub fn learn(&self, text: &[u8], at: Option<Duration>) -> Option<Report> {
        if text.len() > MAX_REPORT {
            return None;
        }
        let mut report: Report = serde_json::from_slice(text).ok()?;
        report.policies.retain(is_sound);
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seen_ms = millis(at.unwrap_or_else(now));
        if !is_document_digest(&report.digest) {
            report.digest.clear();
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len().saturating_add(report.policies.len()) > MAX_FORMS {
            // Those of earlier documents.
            let since = seen_ms.saturating_sub(millis(REPORTED));
            known.retain(|_, entry| entry.info.seen_ms >= since);
        }
        for policy in &report.policies {
            let info =
                |said| PolicyInfo { digest: report.digest.clone(), ..info(policy, said, seen_ms) };
            let room = known.len() < MAX_FORMS;
            match known.get_mut(&(policy.name.clone(), report.digest.clone())) {
                Some(entry) => entry.info = info(entry.info.partition_by.take()),
                None if room => {
                    let name = (policy.name.clone(), report.digest.clone());
                    known.insert(name, KnownPolicy { info: info(None), written: None });
                }
                None => {}
            }
        }
        Some(report)
    }

    /// The policies that proxies reported to this store in the last 15 minutes. Older ones are in
    /// the backend, unless an operator has removed them since.
    pub fn policies(&self, at: Option<Duration>) -> Vec<PolicyInfo> {
        let since = at.map_or(0, |now| millis(now.saturating_sub(REPORTED)));
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .values()
            .map(|entry| entry.info.clone())
            .filter(|info| info.seen_ms >= since)
            .collect()
    }

    /// The entries that are due, marked as written.
    pub fn due(&self) -> Vec<Field> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = known.values_mut().filter(|entry| entry.is_due());
        due.map(|entry| {
            entry.written = Some((entry.info.clone(), Instant::now()));
            (policy_field(&entry.info), write(&entry.info))
        })
        .collect()
    }

    /// Whether an entry is due.
    pub fn is_due(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().any(KnownPolicy::is_due)
    }

    /// Forgets all reports to this store.
    pub fn forget_reports(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Makes everything due again within [`AGAIN`], because it may not have been written, or was
    /// lost.
    pub fn write_again(&self) {
        let before = Instant::now().checked_sub(REWRITE.saturating_sub(AGAIN));
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in known.values_mut() {
            let written = entry.written.take().zip(before);
            entry.written = written.map(|((info, at), before)| (info, at.min(before)));
        }
    }
}

fn is_sound(policy: &PolicyReport) -> bool {
    is_policy(&policy.name)
        && policy.quota <= MAX_UNITS
        && Window::of(&policy.kind, policy.window_s, 0).is_some()
}

/// The entry of a policy after a report. If the report does not say what the policy counts by, the
/// entry keeps what an earlier report `said`.
fn info(policy: &PolicyReport, said: Option<Vec<PartitionEntry>>, seen_ms: u64) -> PolicyInfo {
    let PolicyReport {
        quota, window_s, stagger, mode, on_failure, tiers, overrides, settles, ..
    } = *policy;
    let partition_by = policy.partition_by.clone().filter(|entries| is_printable(entries)).or(said);
    let (name, kind) = (policy.name.clone(), policy.kind.clone());
    PolicyInfo {
        name,
        quota,
        kind,
        window_s,
        stagger,
        mode,
        on_failure,
        partition_by,
        tiers,
        overrides,
        settles,
        seen_ms,
        digest: String::new(),
        gone: false,
        also: Vec::new(),
    }
}

/// Whether a field can hold it, and operators can read it.
fn is_printable(entries: &[PartitionEntry]) -> bool {
    let graphic = |text: &String| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
    entries.iter().all(|entry| graphic(&entry.name) && entry.forms.iter().all(graphic))
        && write(&entries).len() <= MAX_PARTITION_BY
}

#[cfg(test)]
mod tests {
    use quotagate_protocol::Kind;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn policy_is_known_with_its_window_unless_it_has_none() {
        let calendar = |zone: &str| json!({"calendar": {"unit": "day", "time_zone": zone}});
        let policy = |name: &str, kind: Value, window_s: u32| {
            json!({"name": name, "quota": 5, "kind": kind, "window_s": window_s, "stagger": false,
                "mode": "enforce", "on_failure": "allow", "settles": true})
        };
        let report = json!({"policies": [
            policy("fixed", json!("fixed"), 60),
            policy("sliding", json!("sliding"), 60),
            policy("calendar", calendar("Europe/Berlin"), 0),
            policy("none", json!("sliding"), 0),
            policy("two-lengths", calendar("Europe/Berlin"), 60),
            policy("escape", calendar("\u{1b}[2J"), 0),
            policy("long", calendar(&"Z".repeat(65)), 0),
        ]});
        let known = Known::default();
        known.learn(report.to_string().as_bytes(), None).unwrap();
        let policies = known.policies(None);
        let names: Vec<_> = policies.iter().map(|policy| (&*policy.name, policy.settles)).collect();
        assert_eq!(names, [("calendar", true), ("fixed", true), ("sliding", true)]);
        assert_eq!(policies[2].kind, Kind::Sliding);
        for (name, value) in known.due() {
            assert!(crate::record::read_policy(&name, &value).is_some(), "{name}");
        }
    }

    #[test]
    fn report_that_was_not_written_is_due_again_soon_and_not_at_once() {
        let policy = json!({"name": "p", "quota": 5, "window_s": 60, "stagger": false,
            "mode": "enforce", "on_failure": "allow"});
        let report = json!({"policies": [policy]}).to_string();
        let known = Known::default();
        known.learn(report.as_bytes(), None).unwrap();
        assert_eq!(known.due().len(), 1);
        known.write_again();
        assert!(!known.is_due());
        for entry in known.0.lock().unwrap().values_mut() {
            let (_, at) = entry.written.as_mut().unwrap();
            *at = at.checked_sub(AGAIN).unwrap();
        }
        assert!(known.is_due());
    }

    #[test]
    fn policy_of_a_newer_version_is_left_out_alone() {
        let policy = |name: &str, kind: &str| {
            json!({"name": name, "quota": 5, "kind": kind, "window_s": 60, "stagger": false,
                "mode": "enforce", "on_failure": "allow"})
        };
        let report = json!({"protocol": 99, "build": "9.9.9",
            "policies": [policy("odd", "lunar"), policy("good", "sliding")]});
        let known = Known::default();
        known.learn(report.to_string().as_bytes(), None).unwrap();
        let names: Vec<String> = known.policies(None).into_iter().map(|p| p.name).collect();
        assert_eq!(names, ["good"]);
    }
}
