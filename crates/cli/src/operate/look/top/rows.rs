//! The rows of `quotagate top`: which are shown, and one for each partition in the view.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use quotagate_operate::api::{Refused, Top, Usage};

use super::TopSort;

/// A text that a row must contain, in any case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TopFilter(String);

impl FromStr for TopFilter {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_lowercase()))
    }
}

impl fmt::Display for TopFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TopFilter {
    /// Whether a row with these texts is shown.
    fn has(&self, texts: &[&str]) -> bool {
        texts.iter().any(|text| text.to_lowercase().contains(&self.0))
    }

    /// Removes the rows that are not shown.
    pub(super) fn apply(&self, top: &mut Top) {
        top.fullest.retain(|of| self.has(&[&of.domain, &of.policy, &of.partition]));
        top.slots.retain(|of| self.has(&[&of.domain, &of.policy, &of.partition]));
        top.refused.retain(|of| self.has(&[&of.domain, &of.policy, &of.partition]));
        top.would_refuse.retain(|of| self.has(&[&of.domain, &of.policy, &of.partition]));
        top.uncounted.retain(|of| self.has(&[&of.domain, &of.policy]));
    }
}

/// A domain, a policy and a partition.
pub(super) type PartitionName = (String, String, String);

/// What is known of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartitionRow {
    /// Which one it is.
    pub(super) name: PartitionName,
    /// Its refusals.
    pub(super) refused: Option<Refused>,
    /// The requests that only a mode let through.
    pub(super) would_refuse: Option<Refused>,
    /// Its counter, if it is among the fullest.
    pub(super) usage: Option<Usage>,
}

/// One row for each partition of the three lists, in this order.
pub(super) fn rows(top: &Top, sort: TopSort) -> Vec<PartitionRow> {
    let mut rows: BTreeMap<PartitionName, PartitionRow> = BTreeMap::new();
    let mut row =
        |domain: &str, policy: &str, partition: &str, fill: &dyn Fn(&mut PartitionRow)| {
            let name = (domain.to_owned(), policy.to_owned(), partition.to_owned());
            let row = rows.entry(name.clone()).or_insert(PartitionRow {
                name,
                refused: None,
                would_refuse: None,
                usage: None,
            });
            fill(row);
        };
    for of in &top.refused {
        row(&of.domain, &of.policy, &of.partition, &|row| row.refused = Some(of.clone()));
    }
    for of in &top.would_refuse {
        row(&of.domain, &of.policy, &of.partition, &|row| row.would_refuse = Some(of.clone()));
    }
    for of in &top.fullest {
        row(&of.domain, &of.policy, &of.partition, &|row| row.usage = Some(of.clone()));
    }
    // Equal ones stay in the order of their names.
    let mut rows: Vec<_> = rows.into_values().collect();
    rows.sort_by_key(|row| {
        let beyond = (requests(row.refused.as_ref()), requests(row.would_refuse.as_ref()));
        let full = row.usage.as_ref().map(parts_per_million);
        Reverse(match sort {
            TopSort::Refused => (Some(beyond), full, None),
            TopSort::Full => (None, full, Some(beyond)),
        })
    });
    rows
}

fn requests(refused: Option<&Refused>) -> u64 {
    refused.map_or(0, |of| of.requests)
}

fn parts_per_million(usage: &Usage) -> u128 {
    match usage.quota {
        Some(0) => 1_000_000,
        Some(quota) => u128::from(usage.used) * 1_000_000 / u128::from(quota),
        None => 0,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use quotagate_operate::api::QuotaFrom;
    use quotagate_protocol::Kind;

    use super::*;

    /// A partition with refusals of its policy.
    pub(in super::super) fn refused(policy: &str, partition: &str, requests: u64) -> Refused {
        let (policy, partition) = (policy.to_owned(), partition.to_owned());
        Refused { domain: "shop".to_owned(), policy, partition, requests, error: 0, for_ms: 0 }
    }

    /// A partition that has used so much of 10 units.
    pub(in super::super) fn usage(policy: &str, partition: &str, used: u64) -> Usage {
        Usage {
            domain: "shop".to_owned(),
            policy: policy.to_owned(),
            partition: partition.to_owned(),
            used,
            debt: 0,
            quota: Some(10),
            quota_from: QuotaFrom::Reservation,
            kind: Kind::Fixed,
            window_s: 60,
            reset_ms: 12_000,
        }
    }

    /// Alice is refused, Tom would be, and Bob is full.
    pub(in super::super) fn top() -> Top {
        Top {
            fullest: vec![
                usage("per-caller", "jwt.sub=bob", 10),
                usage("per-caller", "jwt.sub=alice", 9),
            ],
            refused: vec![refused("per-caller", "jwt.sub=alice", 17)],
            would_refuse: vec![refused("trial", "jwt.sub=tom", 5)],
            ..Top::default()
        }
    }

    #[test]
    fn partition_has_one_row_and_the_order_is_chosen() {
        let names = |sort| -> Vec<String> {
            rows(&top(), sort).into_iter().map(|row| row.name.2).collect()
        };
        let [alice, bob, tom] = ["jwt.sub=alice", "jwt.sub=bob", "jwt.sub=tom"].map(str::to_owned);
        assert_eq!(names(TopSort::Refused), [alice.clone(), tom.clone(), bob.clone()]);
        assert_eq!(names(TopSort::Full), [bob, alice, tom]);
        let alice = rows(&top(), TopSort::Refused).remove(0);
        assert!(alice.refused.is_some() && alice.usage.is_some() && alice.would_refuse.is_none());
    }

    #[test]
    fn filter_looks_at_every_name_in_any_case() {
        let shown = |text: &str| {
            let mut top = top();
            let Ok(filter) = text.parse::<TopFilter>();
            filter.apply(&mut top);
            (top.fullest.len(), top.refused.len(), top.would_refuse.len())
        };
        assert_eq!(shown("ALICE"), (1, 1, 0));
        assert_eq!(shown("trial"), (0, 0, 1));
        assert_eq!(shown("shop"), (2, 1, 1));
        assert_eq!(shown("nobody"), (0, 0, 0));
    }
}
