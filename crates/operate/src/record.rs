//! The values of fields in the backend's hashes, as JSON. An unreadable value counts as absent.

pub mod documents;

use std::time::Duration;

use quotagate_protocol::dials::{
    ALL_POLICIES, DOCUMENT_DIGEST, Dial, DialFields, EnforcedShare, PROXY_ID,
};
use quotagate_protocol::{MAX_UNITS, Window, is_policy};
use serde::{Deserialize, Serialize};

use crate::api::{Allow, DialEntry, PolicyInfo};
use crate::millis;

/// The dial of a policy, or of all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DialRecord {
    /// What it sets.
    #[serde(flatten)]
    pub fields: DialFields,
    /// When it reverts, in milliseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
    /// The operator who set it.
    #[serde(default)]
    pub by: String,
    /// When it was set, in milliseconds since the Unix epoch.
    #[serde(default)]
    pub at_ms: u64,
}

/// An entry in the index of overrides. The override itself is stored beside the counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideRecord {
    /// What it was set to.
    pub allow: Allow,
    /// When it ends, in milliseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
    /// The operator who set it.
    #[serde(default)]
    pub by: String,
    /// When it was set, in milliseconds since the Unix epoch.
    #[serde(default)]
    pub at_ms: u64,
}

/// When proxies reported a domain, in milliseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainRecord {
    /// When one last did.
    pub seen_ms: u64,
    /// When the domain came into the list.
    pub since_ms: u64,
}

impl DomainRecord {
    /// Reads a record; `None` if anything else was written.
    pub fn read(value: &[u8]) -> Option<Self> {
        serde_json::from_slice(value).ok()
    }
}

impl DialRecord {
    /// Reads the dial of a policy.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(policy: &str, value: &[u8]) -> Result<Self, String> {
        if policy != ALL_POLICIES && !is_policy(policy) {
            return Err("no policy can have this name".to_owned());
        }
        let dial: Self = serde_json::from_slice(value).map_err(|error| error.to_string())?;
        match dial.fields.quota {
            Some(_) if policy == ALL_POLICIES => {
                Err("all policies together have no quota".to_owned())
            }
            Some(quota) if quota > MAX_UNITS => Err(format!("the quota is above {MAX_UNITS}")),
            _ if dial.fields.is_empty() => Err("it sets no field".to_owned()),
            _ if dial.fields.enforced_for.as_ref().is_some_and(|share| !share.is_sound()) => {
                Err("enforced_for is out of its bounds".to_owned())
            }
            _ => Ok(dial),
        }
    }

    /// Milliseconds left at `now`: `None` once its time is over, `Some(None)` if it has no end.
    pub fn left_at(&self, now: Duration) -> Option<Option<u64>> {
        left_at(self.until_ms, now)
    }

    /// The dial as filters read it.
    pub fn dial(&self, policy: &str, now: Duration) -> Option<Dial> {
        let for_ms = self.left_at(now)?;
        Some(Dial { policy: policy.to_owned(), fields: self.fields.clone(), for_ms })
    }

    /// The dial as operators read it.
    pub fn entry(&self, policy: &str, now: Duration) -> Option<DialEntry> {
        Some(DialEntry {
            policy: policy.to_owned(),
            fields: self.fields.clone(),
            remaining_ms: self.left_at(now)?,
            by: self.by.clone(),
            at_ms: self.at_ms,
        })
    }
}

/// The fields that a dial sets, in words.
pub fn dial_words(fields: &DialFields) -> String {
    let share = fields.enforced_for.as_ref().map(|share| format!(", {}", share_words(share)));
    let share = share.unwrap_or_default();
    let mode = fields.mode.map(|mode| format!("mode {}{share}", word(&mode)));
    let quota = fields.quota.map(|quota| format!("quota {quota}"));
    let on_failure =
        fields.on_failure.map(|on_failure| format!("on_failure {}", word(&on_failure)));
    [mode, quota, on_failure].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// For whom a policy in mode shadow refuses all the same, in words.
pub fn share_words(share: &EnforcedShare) -> String {
    let percent = (share.percent > 0).then(|| format!("{} %", share.percent));
    let named = (!share.only.is_empty()).then(|| share.only.join(" and "));
    let parts: Vec<_> = percent.into_iter().chain(named).collect();
    format!("enforced for {}", parts.join(" and "))
}

/// Milliseconds left at `now` until `until_ms`: `None` once that is past, `Some(None)` without an
/// end.
pub fn left_at(until_ms: Option<u64>, now: Duration) -> Option<Option<u64>> {
    match until_ms {
        Some(until) => until.checked_sub(millis(now)).filter(|left| *left > 0).map(Some),
        None => Some(None),
    }
}

/// The field of a policy in the hash of its domain: each document has its own entry.
pub fn policy_field(policy: &PolicyInfo) -> String {
    let PolicyInfo { name, digest, .. } = policy;
    if digest.is_empty() { name.clone() } else { format!("{name}#{digest}") }
}

/// Reads the entry of a policy.
pub fn read_policy(field: &str, value: &[u8]) -> Option<PolicyInfo> {
    let info: PolicyInfo = serde_json::from_slice(value).ok()?;
    let sound = Window::of(&info.kind, info.window_s, 0).is_some()
        && is_policy(&info.name)
        && (info.digest.is_empty() || is_document_digest(&info.digest));
    (sound && policy_field(&info) == field).then_some(info)
}

/// Whether this may be the digest of a document.
pub fn is_document_digest(text: &str) -> bool {
    is_hexadecimal(text, DOCUMENT_DIGEST)
}

/// Whether this may name a process.
pub fn is_process_id(text: &str) -> bool {
    is_hexadecimal(text, PROXY_ID)
}

fn is_hexadecimal(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// A record as the value of a field.
pub fn write(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(record).unwrap_or_default()
}

/// A length of time as people write it: `1h30m`.
pub fn span(ms: u64) -> String {
    let seconds = ms.div_ceil(1000);
    let parts = [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];
    let mut rest = seconds;
    let mut text = String::new();
    for (unit, length) in parts {
        if rest >= length {
            text += &format!("{}{unit}", rest / length);
            rest %= length;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use quotagate_protocol::Mode;

    use super::*;

    #[test]
    fn invalid_dials_are_rejected() {
        let good = DialRecord::read(
            "a-1",
            br#"{"mode":"shadow","quota":8,"by":"ann","at_ms":5,"more":1}"#,
        )
        .unwrap();
        assert_eq!(
            (good.fields.mode, good.fields.quota, dial_words(&good.fields)),
            (Some(Mode::Shadow), Some(8), "mode shadow, quota 8".into())
        );
        assert_eq!(good.dial("a-1", Duration::from_secs(9)).unwrap().for_ms, None);
        assert!(DialRecord::read("*", br#"{"on_failure":"deny"}"#).is_ok());
        for (policy, bad) in [
            ("a", &b""[..]),
            ("a", b"{"),
            ("a", b"{}"),
            ("a", b"[]"),
            ("a", b"7"),
            ("a", br#"{"mode":"loud"}"#),
            ("a", br#"{"quota":-1}"#),
            ("a", br#"{"quota":9007199254740992}"#),
            ("a", br#"{"quota":1,"until_ms":"soon"}"#),
            ("*", br#"{"quota":1}"#),
            ("a!", br#"{"quota":1}"#),
            ("#version", br#"{"quota":1}"#),
        ] {
            assert!(
                DialRecord::read(policy, bad).is_err(),
                "{policy} {}",
                String::from_utf8_lossy(bad)
            );
        }
    }

    #[test]
    fn a_dial_ends_when_its_time_is_over() {
        let fields = DialFields { mode: Some(Mode::Off), ..DialFields::default() };
        let dial = DialRecord { fields, until_ms: Some(5000), ..DialRecord::default() };
        assert_eq!(dial.left_at(Duration::from_millis(4999)), Some(Some(1)));
        assert_eq!(dial.left_at(Duration::from_millis(5000)), None);
        assert!(dial.dial("p", Duration::from_secs(6)).is_none());
    }

    #[test]
    fn spans_use_days_hours_minutes_and_seconds() {
        for (ms, text) in
            [(0, "0s"), (1, "1s"), (3000, "3s"), (5_400_000, "1h30m"), (90_061_000, "1d1h1m1s")]
        {
            assert_eq!(span(ms), text);
        }
    }
}
