//! Adds up the requests of policies, as several processes saw them, on one grid of steps.

use std::collections::BTreeMap;

use crate::MAX_POLICIES;
use crate::api::Uncounted;
use crate::watch::{STEP, STEPS, Series};

/// Steps of the grid: those of a series, and some that a late one needs in addition.
const SPAN: usize = STEPS + 8;
/// How many steps a late picture may hold back the last one.
const MAX_LAG: usize = 3;

/// The requests of a policy by outcome, in the order of a [`Series`], by the number of their step.
pub struct PolicySteps<'a> {
    /// The domain.
    pub domain: &'a str,
    /// The policy.
    pub policy: &'a str,
    /// At most [`STEPS`], the newest first.
    pub steps: Vec<(u64, [u64; 7])>,
}

/// The requests of all policies.
pub struct Requests {
    /// The step that runs now.
    now: u64,
    now_ms: u64,
    policies: BTreeMap<(String, String), Sum>,
}

/// The requests of one policy, by how many steps ago they were.
struct Sum {
    steps: Box<[[u64; 7]; SPAN]>,
    /// The last step that each series has, as far as it runs: of the newest and of the latest one.
    newest: usize,
    latest: usize,
}

impl Requests {
    /// No requests. `now_ms` is any clock that runs on: it fixes the grid.
    pub const fn new(now_ms: u64) -> Self {
        Self { now: now_ms / step_ms(), now_ms, policies: BTreeMap::new() }
    }

    /// Adds a series from a picture of this age. At most [`MAX_POLICIES`] policies have a sum.
    pub fn add(&mut self, series: &Series, age_ms: u64) {
        let length = series.counts.iter().map(Vec::len).max().unwrap_or_default();
        let begun = self.now_ms.saturating_sub(age_ms.saturating_add(series.age_ms)) / step_ms();
        let last = usize::try_from(self.now.saturating_sub(begun)).unwrap_or(SPAN);
        let name = (series.domain.clone(), series.policy.clone());
        let room = self.policies.len() < MAX_POLICIES || self.policies.contains_key(&name);
        if length == 0 || last >= SPAN || !room {
            return;
        }
        let sum = self.policies.entry(name).or_insert_with(|| Sum {
            steps: Box::new([[0; 7]; SPAN]),
            newest: last,
            latest: last,
        });
        (sum.newest, sum.latest) = (sum.newest.min(last), sum.latest.max(last));
        for (outcome, column) in series.counts.iter().enumerate() {
            for (step, count) in sum.steps.iter_mut().skip(last).zip(column.iter().rev()) {
                if let Some(total) = step.get_mut(outcome) {
                    *total = total.saturating_add(*count);
                }
            }
        }
    }

    /// The last step that every series has in full.
    pub fn last(&self) -> u64 {
        let lag = |sum: &Sum| sum.latest.min(sum.newest.saturating_add(MAX_LAG));
        let running = self.policies.values().map(lag).max().unwrap_or_default();
        self.now.saturating_sub(u64::try_from(running).unwrap_or_default()).saturating_sub(1)
    }

    /// The requests of each policy, by name, in steps that ended by `last`. Steps without requests
    /// are left out.
    pub fn steps(&self, last: u64) -> impl Iterator<Item = PolicySteps<'_>> {
        self.policies.iter().map(move |((domain, policy), sum)| {
            let ago = usize::try_from(self.now.saturating_sub(last)).unwrap_or(SPAN);
            let numbers = (0..=last).rev();
            let whole = sum.steps.iter().skip(ago).take(STEPS);
            let steps = numbers.zip(whole).filter(|(_, counts)| **counts != [0; 7]);
            let steps = steps.map(|(number, counts)| (number, *counts)).collect();
            PolicySteps { domain, policy, steps }
        })
    }

    /// The requests of this policy that cost `if_missing`.
    pub fn settled_if_missing(&self, domain: &str, policy: &str) -> u64 {
        let sum = self.policies.get(&(domain.to_owned(), policy.to_owned()));
        let steps = sum.into_iter().flat_map(|sum| sum.steps.iter());
        steps.fold(0, |total: u64, [.., settled]| total.saturating_add(*settled))
    }

    /// The policies with requests that they could not count or identify, the most such requests
    /// first.
    pub fn uncounted(&self) -> Vec<Uncounted> {
        let uncounted = self.policies.iter().filter_map(|((domain, policy), sum)| {
            let add = |total: [u64; 2], [.., missing, failed, _]: &[u64; 7]| {
                [total[0].saturating_add(*missing), total[1].saturating_add(*failed)]
            };
            let [missing_identity, store_error] = sum.steps.iter().fold([0; 2], add);
            let (domain, policy) = (domain.clone(), policy.clone());
            let uncounted = Uncounted { domain, policy, store_error, missing_identity };
            (missing_identity > 0 || store_error > 0).then_some(uncounted)
        });
        let mut all: Vec<_> = uncounted.collect();
        // Equal ones stay in the order of their names.
        all.sort_by_key(|of| std::cmp::Reverse(of.store_error.saturating_add(of.missing_identity)));
        all
    }
}

const fn step_ms() -> u64 {
    STEP.as_secs() * 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000_000;

    fn series(policy: &str, age_ms: u64, admitted: &[u64], failed: &[u64]) -> Series {
        let counts = [admitted.to_vec(), vec![], vec![], vec![], vec![], failed.to_vec(), vec![]];
        let (domain, policy) = ("d".to_owned(), policy.to_owned());
        Series { domain, policy, age_ms, counts }
    }

    /// The counts of one outcome of the first policy, in the steps up to the last one.
    fn counted(requests: &Requests, outcome: usize) -> Vec<(u64, u64)> {
        let last = requests.last();
        let PolicySteps { steps, .. } = requests.steps(last).next().unwrap();
        steps.iter().map(|(number, counts)| (last - number, counts[outcome])).collect()
    }

    #[test]
    fn own_steps_are_whole() {
        let mut requests = Requests::new(NOW);
        requests.add(&series("p", 2000, &[30, 0, 50, 7], &[4, 0, 2, 1]), 0);
        assert_eq!(requests.last(), NOW / step_ms() - 2, "the one before the one that runs");
        assert_eq!(counted(&requests, 0), [(0, 50), (2, 30)], "one without requests is left out");
        assert_eq!(counted(&requests, 5), [(0, 2), (2, 4)]);
        assert_eq!(requests.uncounted()[0].store_error, 7, "with the step that runs");
        let mut begun = Requests::new(NOW);
        begun.add(&series("p", 2000, &[30], &[]), 0);
        assert_eq!(counted(&begun, 0), []);
    }

    #[test]
    fn steps_of_the_same_time_are_added_and_a_late_picture_delays_the_end() {
        let mut requests = Requests::new(NOW);
        requests.add(&series("p", 1000, &[10, 20, 30, 40], &[]), 0);
        // Taken 5 s ago: its running step is the one before.
        requests.add(&series("p", 1000, &[100, 200, 300], &[]), 5000);
        assert_eq!(requests.last(), NOW / step_ms() - 3);
        assert_eq!(counted(&requests, 0), [(0, 220), (1, 110)]);
        // No picture holds it back by more than three steps.
        requests.add(&series("p", 0, &[1, 1], &[]), 60_000);
        assert_eq!(requests.last(), NOW / step_ms() - 5);
    }

    #[test]
    fn policies_and_lengths_are_bounded() {
        let mut requests = Requests::new(NOW);
        for n in 0..MAX_POLICIES + 9 {
            requests.add(&series(&format!("p{n}"), 0, &[u64::MAX; STEPS], &[u64::MAX; STEPS]), 0);
            requests.add(&series(&format!("p{n}"), u64::MAX, &[1], &[]), u64::MAX);
        }
        assert_eq!(requests.policies.len(), MAX_POLICIES);
        assert_eq!(counted(&requests, 0).len(), STEPS - 1);
        assert_eq!(requests.uncounted().remove(0).store_error, u64::MAX);
    }
}
