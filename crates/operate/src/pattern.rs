//! Overrides of every partition that contains a party, written `jwt.sub=alice,*`, in one policy or
//! in all.
//!
//! No counter has such a partition, so no key beside a counter can hold such an override, and its
//! entry in the index is all of it. Stores keep these entries in memory, and look a reservation up
//! when it arrives.
//!
//! Bound: [`MAX_PATTERNS`] for each domain.

use std::collections::HashMap;

use quotagate_protocol::dials::ALL_POLICIES;
use quotagate_protocol::{MAX_UNITS, is_policy};
use quotagate_store::control::Field;

use crate::api::Allow;
use crate::record::OverrideRecord;

/// Most of these overrides that a domain may have.
pub const MAX_PATTERNS: usize = 1024;
/// What stands for any further entries, or for none. No key has an entry like it.
const REST: &str = ",*";

/// The entries that a partition must contain, if `text` is such a pattern.
pub fn party_of(text: &str) -> Option<&str> {
    text.strip_suffix(REST).filter(|party| !party.is_empty())
}

/// The pattern of all partitions that contain this party.
pub fn of_party(party: &str) -> String {
    format!("{party}{REST}")
}

/// Whether a partition contains all entries of a party.
pub fn contains(partition: &str, party: &str) -> bool {
    party.split(',').all(|entry| partition.split(',').any(|own| own == entry))
}

/// The policy and the partition of an entry of the index.
pub fn parts(field: &str) -> Option<(&str, &str)> {
    field.strip_suffix('}')?.split_once(":{")
}

/// The overrides with a pattern of a domain.
#[derive(Clone, Debug, Default)]
pub struct PatternOverrides {
    /// By the entry of the party that the fewest parties have, so that a reservation is compared
    /// with few of them.
    by_entry: HashMap<String, Vec<PatternOverride>>,
    count: usize,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternOverride {
    /// The policy, or [`ALL_POLICIES`].
    pub policy: String,
    /// The pattern.
    pub partition: String,
    /// What it grants.
    pub allow: Allow,
    until_ms: Option<u64>,
}

impl PatternOverrides {
    /// Those among the entries of an index.
    pub fn of(fields: &[Field]) -> Self {
        let mut patterns = Vec::new();
        for (field, value) in fields {
            let Some((policy, partition)) = parts(field) else { continue };
            let Some(party) = party_of(partition) else { continue };
            let known = policy == ALL_POLICIES || is_policy(policy);
            let record = serde_json::from_slice::<OverrideRecord>(value).ok().filter(|_| known);
            let Some(OverrideRecord { allow, until_ms, .. }) = record else { continue };
            if patterns.len() >= MAX_PATTERNS {
                break;
            }
            patterns.push((party, (policy, partition, allow, until_ms)));
        }
        let mut parties: HashMap<&str, usize> = HashMap::new();
        let entries = patterns.iter().flat_map(|(party, _)| party.split(','));
        entries.for_each(|entry| *parties.entry(entry).or_default() += 1);
        let mut all = Self { count: patterns.len(), ..Self::default() };
        for (party, (policy, partition, allow, until_ms)) in patterns {
            let rarest = party.split(',').min_by_key(|entry| parties.get(entry)).unwrap_or(party);
            let (policy, partition) = (policy.to_owned(), partition.to_owned());
            let one = PatternOverride { policy, partition, allow, until_ms };
            all.by_entry.entry(rarest.to_owned()).or_default().push(one);
        }
        all
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The override in force for a partition: that of the policy before that of all, then the one
    /// that names more entries, then the one that grants less.
    pub fn find(&self, policy: &str, partition: &str, now_ms: u64) -> Option<&PatternOverride> {
        let named = partition.split(',').filter_map(|entry| self.by_entry.get(entry)).flatten();
        let in_force = named.filter(|one| {
            one.until_ms.is_none_or(|until| until > now_ms) && one.covers(policy, partition)
        });
        in_force.min_by_key(|one| {
            let entries = one.partition.split(',').count();
            (one.policy == ALL_POLICIES, std::cmp::Reverse(entries), one.quota())
        })
    }
}

impl PatternOverride {
    /// The quota of each partition that it covers.
    pub const fn quota(&self) -> u64 {
        match self.allow {
            Allow::Quota(quota) => quota,
            Allow::Unlimited => MAX_UNITS,
            Allow::Blocked => 0,
        }
    }

    fn covers(&self, policy: &str, partition: &str) -> bool {
        (self.policy == policy || self.policy == ALL_POLICIES)
            && party_of(&self.partition).is_some_and(|party| contains(partition, party))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(entries: &[(&str, &str)]) -> PatternOverrides {
        let fields: Vec<Field> = entries
            .iter()
            .map(|(field, record)| ((*field).to_owned(), record.as_bytes().to_vec()))
            .collect();
        PatternOverrides::of(&fields)
    }

    #[test]
    fn closest_override_of_a_party_decides() {
        let all = patterns(&[
            ("*:{jwt.sub=x,*}", r#"{"allow":"blocked"}"#),
            ("p:{jwt.sub=x,*}", r#"{"allow":{"quota":7}}"#),
            ("p:{jwt.sub=x,method=GET,*}", r#"{"allow":{"quota":9}}"#),
            ("p:{method=GET,*}", r#"{"allow":"unlimited"}"#),
            ("q:{jwt.sub=y,*}", r#"{"allow":"unlimited","until_ms":50}"#),
            ("p:{jwt.sub=z}", r#"{"allow":"blocked"}"#),
            ("p!:{jwt.sub=z,*}", r#"{"allow":"blocked"}"#),
            ("p:{,*}", r#"{"allow":"blocked"}"#),
            ("p:{jwt.sub=w,*}", "loud"),
        ]);
        let quota = |policy: &str, partition: &str| {
            all.find(policy, partition, 50).map(PatternOverride::quota)
        };
        for (policy, partition, expected) in [
            ("other", "jwt.sub=x", Some(0)),
            ("other", "path=/,jwt.sub=x", Some(0)),
            ("p", "jwt.sub=x", Some(7)),
            ("p", "jwt.sub=x,method=PUT", Some(7)),
            ("p", "method=GET,jwt.sub=x", Some(9)),
            ("p", "jwt.sub=other,method=GET", Some(MAX_UNITS)),
            ("p", "jwt.sub=xx", None),
            ("q", "jwt.sub=y", None),
            ("p", "jwt.sub=z", None),
            ("p", "jwt.sub=w", None),
            ("p", "*", None),
        ] {
            assert_eq!(quota(policy, partition), expected, "{policy} {partition}");
        }
        assert_eq!(all.find("q", "jwt.sub=y", 49).map(PatternOverride::quota), Some(MAX_UNITS));
        assert!(!all.is_empty() && PatternOverrides::default().is_empty());
    }

    #[test]
    fn reservation_is_compared_with_few_patterns() {
        let entry = |n: usize| {
            (format!("p:{{host=shop,jwt.sub={n},*}}"), br#"{"allow":"blocked"}"#.to_vec())
        };
        let all = PatternOverrides::of(&(0..1000).map(entry).collect::<Vec<_>>());
        assert_eq!(all.by_entry.values().map(Vec::len).max(), Some(1));
        assert!(all.find("p", "jwt.sub=999,host=shop", 0).is_some());
        assert!(all.find("p", "jwt.sub=1000,host=shop", 0).is_none());
    }

    #[test]
    fn patterns_are_bounded() {
        let entry = |n: usize| (format!("p:{{jwt.sub={n},*}}"), br#"{"allow":"blocked"}"#.to_vec());
        let fields: Vec<Field> = (0..MAX_PATTERNS + 1).map(entry).collect();
        let all = PatternOverrides::of(&fields);
        assert_eq!(all.count, MAX_PATTERNS);
        assert_eq!(all.find("p", &format!("jwt.sub={MAX_PATTERNS}"), 0), None);
    }
}
