//! Merges the lists of partitions that several processes saw.

use std::collections::HashMap;

use quotagate_protocol::{Kind, MAX_UNITS};

use super::item::Picture;
use crate::api::{Refused, Usage};
use crate::watch::{Beyond, Sighting, Wanted, Watch, are_alike};

/// A picture and its age in milliseconds.
pub type Aged<'a> = (u64, &'a Picture);

/// The fullest partitions, the fullest first. Of a partition that several processes saw, the latest
/// answer counts.
pub fn fullest(watch: &Watch, others: &[Aged<'_>], limit: usize, wanted: Wanted<'_>) -> Vec<Usage> {
    let mut latest: HashMap<(&str, &str, &str), Sighting> = HashMap::new();
    let own = watch.fullest(limit, wanted);
    for sighting in &own {
        latest.insert(name(&sighting.usage), sighting.clone());
    }
    let theirs = others.iter().flat_map(|(age_ms, picture)| {
        let wanted = |of: &&Sighting| wanted.has(&of.usage.domain, &of.usage.policy);
        picture.fullest.iter().filter(wanted).map(|sighting| (*age_ms, sighting))
    });
    for (age_ms, sighting) in theirs {
        let Some(aged) = later(sighting, age_ms) else { continue };
        let held = latest.entry(name(&sighting.usage)).or_insert_with(|| {
            // This process may have seen it, too, although it is not among its fullest.
            watch.sighting(&sighting.usage).unwrap_or_else(|| aged.clone())
        });
        if supersedes(&aged, held) {
            *held = aged;
        }
    }
    let mut fullest: Vec<Usage> = latest.into_values().map(|sighting| sighting.usage).collect();
    fullest.retain(|usage| usage.reset_ms > 0);
    fullest.sort_by(|one, other| {
        fullness(other).total_cmp(&fullness(one)).then_with(|| name(one).cmp(&name(other)))
    });
    fullest.truncate(limit);
    fullest
}

/// The partitions with the most requests beyond their quota, those with the most first: the sums of
/// what all processes counted.
pub fn beyond(
    watch: &Watch,
    others: &[Aged<'_>],
    beyond: Beyond,
    limit: usize,
    wanted: Wanted<'_>,
) -> Vec<Refused> {
    // All that this process knows, so that its part of a sum is complete.
    let mut all = watch.beyond(beyond, usize::MAX, wanted);
    all.extend(theirs(others, beyond, |of| wanted.has(&of.domain, &of.policy)));
    all.sort_by(|one, other| name_of(one).cmp(&name_of(other)));
    all.dedup_by(|next, sum| {
        let same = name_of(next) == name_of(sum);
        if same {
            add(sum, next);
        }
        same
    });
    // Equal ones stay in the order of their names.
    all.sort_by_key(|of| std::cmp::Reverse(of.requests));
    all.truncate(limit);
    all
}

/// The requests of one partition beyond its quota: what this process counted, and what the others
/// list.
pub fn beyond_of(watch: &Watch, listed: &Listed, beyond: Beyond, key: &str) -> Option<Refused> {
    let others = match beyond {
        Beyond::Refused => &listed.refused,
        Beyond::LetThrough => &listed.let_through,
    };
    let others = others.get(key).cloned();
    watch.beyond_of(beyond, key).into_iter().chain(others).reduce(|mut sum, next| {
        add(&mut sum, &next);
        sum
    })
}

/// What the other processes list, by the keys of counters.
pub struct Listed {
    refused: HashMap<String, Refused>,
    let_through: HashMap<String, Refused>,
}

impl Listed {
    /// The sums of these pictures.
    pub fn of(others: &[Aged<'_>]) -> Self {
        let sums = |beyond| {
            let mut sums: HashMap<String, Refused> = HashMap::new();
            for next in theirs(others, beyond, |_| true) {
                let Refused { domain, policy, partition, .. } = &next;
                let key = format!("{domain}:{policy}:{{{partition}}}");
                sums.entry(key).and_modify(|sum| add(sum, &next)).or_insert(next);
            }
            sums
        };
        Self { refused: sums(Beyond::Refused), let_through: sums(Beyond::LetThrough) }
    }
}

/// What the other processes list, as of now.
fn theirs<'a>(
    others: &'a [Aged<'_>],
    beyond: Beyond,
    wanted: impl Fn(&Refused) -> bool + 'a,
) -> impl Iterator<Item = Refused> + 'a {
    let listed = others.iter().flat_map(move |(age_ms, picture)| {
        let list = match beyond {
            Beyond::Refused => &picture.refused,
            Beyond::LetThrough => &picture.would_refuse,
        };
        list.iter().map(move |of| (of, of.for_ms.saturating_add(*age_ms)))
    });
    let wanted = listed.filter(move |(of, _)| wanted(of));
    wanted.map(|(of, for_ms)| Refused { for_ms, ..of.clone() })
}

fn add(sum: &mut Refused, next: &Refused) {
    sum.requests = sum.requests.saturating_add(next.requests).min(MAX_UNITS);
    sum.error = sum.error.saturating_add(next.error).min(sum.requests);
    sum.for_ms = sum.for_ms.max(next.for_ms);
}

/// A sighting as it is `age_ms` later; `None` once its window has ended.
fn later(sighting: &Sighting, age_ms: u64) -> Option<Sighting> {
    let mut aged = sighting.clone();
    aged.usage.reset_ms = aged.usage.reset_ms.checked_sub(age_ms).filter(|left| *left > 0)?;
    aged.age_ms = aged.age_ms.saturating_add(age_ms);
    Some(aged)
}

/// Whether one says more about now than another one of the same partition.
fn supersedes(one: &Sighting, other: &Sighting) -> bool {
    if are_alike(windows(one), windows(other)) && one.window != other.window {
        return one.window > other.window;
    }
    one.age_ms < other.age_ms
}

fn windows(sighting: &Sighting) -> (&Kind, u32) {
    (&sighting.usage.kind, sighting.usage.window_s)
}

fn fullness(usage: &Usage) -> f64 {
    match usage.quota {
        Some(0) => 1.0,
        Some(quota) => usage.used as f64 / quota as f64,
        None => 0.0,
    }
}

fn name(usage: &Usage) -> (&str, &str, &str) {
    (&usage.domain, &usage.policy, &usage.partition)
}

fn name_of(refused: &Refused) -> (&str, &str, &str) {
    (&refused.domain, &refused.policy, &refused.partition)
}

#[cfg(test)]
mod tests {
    use quotagate_protocol::{Calendar, Unit};

    use super::*;
    use crate::api::QuotaFrom;

    fn seen(partition: &str, used: u64, window: u64, age_ms: u64) -> Sighting {
        let usage = Usage {
            domain: "d".to_owned(),
            policy: "p".to_owned(),
            partition: partition.to_owned(),
            used,
            debt: 0,
            quota: Some(10),
            quota_from: QuotaFrom::Reservation,
            kind: Kind::Fixed,
            window_s: 60,
            reset_ms: 30_000,
        };
        Sighting { usage, window, age_ms }
    }

    fn refusals(partition: &str, requests: u64, error: u64) -> Refused {
        let (domain, policy) = ("d".to_owned(), "p".to_owned());
        Refused { domain, policy, partition: partition.to_owned(), requests, error, for_ms: 7 }
    }

    #[test]
    fn latest_answer_of_the_newest_window_counts() {
        let picture = |fullest| Picture { fullest, ..Picture::default() };
        let one = picture(vec![seen("a", 9, 7, 100), seen("b", 9, 7, 0), seen("c", 2, 7, 0)]);
        let other = picture(vec![seen("a", 3, 7, 50), seen("b", 1, 8, 9000), seen("d", 8, 7, 0)]);
        let all = Wanted::default();
        let list = |others: &[Aged<'_>], limit| -> Vec<(String, u64)> {
            let found = fullest(&Watch::default(), others, limit, all).into_iter();
            found.map(|usage| (usage.partition, usage.used)).collect()
        };
        let expected = [("d", 8), ("a", 3), ("c", 2), ("b", 1)].map(|(p, n)| (p.to_owned(), n));
        assert_eq!(list(&[(0, &one), (0, &other)], 9), expected);
        assert_eq!(list(&[(0, &other), (0, &one)], 2), expected[..2]);
        // The other picture is older than the difference between the answers.
        assert_eq!(list(&[(0, &one), (500, &other)], 2)[0], ("a".to_owned(), 9));
        assert_eq!(list(&[(30_000, &one)], 9), [], "the windows have ended");
        let none = Wanted { policy: Some("q"), ..all };
        assert!(fullest(&Watch::default(), &[(0, &one)], 9, none).is_empty());
    }

    #[test]
    fn newer_day_counts_although_days_differ_in_length() {
        let day = |used, window, window_s, age_ms| {
            let mut seen = seen("a", used, window, age_ms);
            let unit = Unit::Day;
            let kind = Kind::Calendar(Calendar { unit, time_zone: "Europe/Berlin".into() });
            seen.usage = Usage { kind, window_s, ..seen.usage };
            Picture { fullest: vec![seen], ..Picture::default() }
        };
        let (before, after) = (day(9, 1_000_000, 90_000, 5), day(1, 1_090_000, 86_400, 10));
        for others in [[(0, &before), (0, &after)], [(0, &after), (0, &before)]] {
            let found = fullest(&Watch::default(), &others, 9, Wanted::default());
            assert_eq!(found.iter().map(|usage| usage.used).collect::<Vec<_>>(), [1]);
        }
    }

    #[test]
    fn refusals_are_summed() {
        let picture = |refused| Picture { refused, ..Picture::default() };
        let one = picture(vec![refusals("a", 5, 1), refusals("b", 6, 0)]);
        let other = picture(vec![refusals("a", 4, 2), refusals("c", MAX_UNITS, 0)]);
        let twice = picture(vec![refusals("c", MAX_UNITS, MAX_UNITS)]);
        let others = [(0, &one), (9, &other), (0, &twice)];
        let found = beyond(&Watch::default(), &others, Beyond::Refused, 3, Wanted::default());
        let older = |partition: &str, requests, error| Refused {
            for_ms: 16,
            ..refusals(partition, requests, error)
        };
        let expected = [older("c", MAX_UNITS, MAX_UNITS), older("a", 9, 3), refusals("b", 6, 0)];
        assert_eq!(found, expected, "the other picture is 9 ms old");
        let watch = Watch::default();
        let listed = Listed::of(&others);
        let of = |beyond, key| beyond_of(&watch, &listed, beyond, key);
        assert_eq!(of(Beyond::Refused, "d:p:{a}"), Some(older("a", 9, 3)));
        assert_eq!(of(Beyond::Refused, "d:q:{a}"), None);
        // Requests that were let through are a list of their own.
        assert_eq!(of(Beyond::LetThrough, "d:p:{a}"), None);
        let trial = Picture { would_refuse: vec![refusals("a", 2, 0)], ..Picture::default() };
        let trial = beyond_of(&watch, &Listed::of(&[(0, &trial)]), Beyond::LetThrough, "d:p:{a}");
        assert_eq!(trial, Some(refusals("a", 2, 0)));
    }
}
