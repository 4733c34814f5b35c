//! The counters that a worker most often finds spent without a call: a Space-Saving sketch of
//! [`MOST`] counters (Metwally 2005).
//!
//! A new counter replaces the one with the fewest refusals and inherits its number. A report
//! subtracts the inherited part, so no number is too large. Counters with many refusals always
//! stay.

use std::cmp::Reverse;
use std::sync::Arc;

use quotagate_protocol::dials::{MAX_REFUSALS, MAX_REPORTED_KEY, Refusals as Reported};

/// Most counters of the sketch.
const MOST: usize = 32;

/// The sketch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusals(Vec<SketchEntry>);

#[derive(Clone, Debug)]
struct SketchEntry {
    key: Arc<str>,
    requests: u64,
    inherited: u64,
}

impl Refusals {
    /// A request was refused because of this counter.
    pub(crate) fn note(&mut self, key: &Arc<str>) {
        if key.len() > MAX_REPORTED_KEY {
            return;
        }
        if let Some(index) = self.0.iter().position(|entry| entry.key == *key) {
            if let Some(entry) = self.0.get_mut(index) {
                entry.requests += 1;
            }
            // Frequent counters move to the front, and are found sooner.
            self.0.swap(index, index / 2);
            return;
        }
        let new =
            |inherited| SketchEntry { key: Arc::clone(key), requests: inherited + 1, inherited };
        if self.0.len() < MOST {
            self.0.push(new(0));
        } else if let Some(least) = self.0.iter_mut().min_by_key(|entry| entry.requests) {
            *least = new(least.requests);
        }
    }

    /// Takes the most refused counters since the last call.
    pub(crate) fn take(&mut self) -> Vec<Reported> {
        let mut entries = std::mem::take(&mut self.0);
        entries.sort_by_key(|entry| Reverse(entry.requests - entry.inherited));
        entries.truncate(MAX_REFUSALS);
        let reported = |SketchEntry { key, requests, inherited }| Reported {
            key: String::from(&*key),
            requests: requests - inherited,
        };
        entries.into_iter().map(reported).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(refusals: &mut Refusals) -> Vec<(String, u64)> {
        refusals.take().into_iter().map(|reported| (reported.key, reported.requests)).collect()
    }

    #[test]
    fn most_refused_counters_come_first_and_once() {
        let mut refusals = Refusals::default();
        for i in 0..20_u64 {
            for _ in 0..=i {
                refusals.note(&format!("d:p:{{{i}}}").into());
            }
        }
        let expected: Vec<_> = (12..20).rev().map(|i| (format!("d:p:{{{i}}}"), i + 1)).collect();
        assert_eq!(reported(&mut refusals), expected);
        assert_eq!(reported(&mut refusals), []);
    }

    #[test]
    fn frequent_counter_survives_many_rare_ones_and_no_number_is_too_large() {
        let mut refusals = Refusals::default();
        let often: Arc<str> = "d:p:{often}".into();
        for i in 0..10_000 {
            refusals.note(&format!("d:p:{{{i}}}").into());
            if i % 10 == 0 {
                refusals.note(&often);
            }
        }
        assert_eq!(refusals.0.len(), MOST);
        let reported = reported(&mut refusals);
        assert!(reported[0].0 == *often && (900..=1000).contains(&reported[0].1), "{reported:?}");
        assert!(reported[1..].iter().all(|(_, requests)| *requests == 1), "{reported:?}");
    }

    #[test]
    fn too_long_key_is_left_out() {
        let mut refusals = Refusals::default();
        refusals.note(&"k".repeat(MAX_REPORTED_KEY + 1).into());
        refusals.note(&"k".repeat(MAX_REPORTED_KEY).into());
        assert_eq!(reported(&mut refusals).len(), 1);
    }
}
