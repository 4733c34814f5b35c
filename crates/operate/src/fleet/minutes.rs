//! The requests of policies by minute, for six hours: what the steps of five minutes do not reach.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use super::requests::{PolicySteps, Requests};
use crate::MAX_POLICIES;
use crate::api::MinuteRequests;
use crate::watch::STEP;

/// How many minutes are kept: six hours.
const KEPT: u64 = 360;
/// How many steps may wait for requests that are whole: four minutes.
const PATIENCE: u64 = 4 * STEPS;
/// Steps of a minute.
const STEPS: u64 = 60 / STEP.as_secs();

/// The requests of all policies, at most [`MAX_POLICIES`].
#[derive(Default)]
pub struct Minutes(Mutex<Counted>);

#[derive(Default)]
struct Counted {
    /// The first step that was counted, and the last one.
    steps: Option<(u64, u64)>,
    policies: BTreeMap<(String, String), VecDeque<MinuteCounts>>,
}

/// The requests of a minute: admitted, refused, and over the quota but let through. Minutes without
/// requests are left out.
struct MinuteCounts {
    number: u32,
    counts: [u32; 3],
}

impl Minutes {
    /// Adds the steps that have ended since the last call. Call it every minute. If the requests
    /// are not whole, the next calls add them: steps reach back five minutes.
    pub fn count(&self, requests: &Requests, is_whole: bool) {
        let last = requests.last();
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, before) = *counted.steps.get_or_insert((last, last));
        if !is_whole && last.saturating_sub(before) < PATIENCE {
            return;
        }
        counted.steps = Some((first, last.max(before)));
        for PolicySteps { domain, policy, steps } in requests.steps(last) {
            let name = (domain.to_owned(), policy.to_owned());
            let is_known = counted.policies.contains_key(&name);
            if !is_known && counted.policies.len() >= MAX_POLICIES {
                continue;
            }
            // Newest first.
            let new = steps.into_iter().rev().filter(|(number, _)| *number > before);
            for (number, [admitted, refused, shadow_refused, marked, ..]) in new {
                let let_through = shadow_refused.saturating_add(marked);
                let minutes = counted.policies.entry(name.clone()).or_default();
                add(minutes, number_of(number / STEPS), [admitted, refused, let_through]);
            }
        }
        let oldest = number_of((last / STEPS).saturating_sub(KEPT));
        counted.policies.retain(|_, minutes| {
            minutes.retain(|minute| minute.number > oldest);
            !minutes.is_empty()
        });
    }

    /// The requests of a policy. `now_ms` is the clock of the steps at the time `at_ms`.
    pub fn of(&self, domain: &str, policy: &str, now_ms: u64, at_ms: u64) -> MinuteRequests {
        let counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reply = MinuteRequests { at_ms, end_ms: at_ms, ..MinuteRequests::default() };
        let Some((first, last)) = counted.steps else { return reply };
        // The minute that runs would look too low, and so would the one in which counting began.
        let end = (last + 1) / STEPS;
        let begin = (first / STEPS + 1).max(end.saturating_sub(KEPT));
        let ago_ms = now_ms.saturating_sub(end.saturating_mul(60_000));
        reply.end_ms = at_ms.saturating_sub(ago_ms);
        let name = (domain.to_owned(), policy.to_owned());
        let minutes = counted.policies.get(&name);
        let by_number: BTreeMap<u32, [u32; 3]> =
            minutes.into_iter().flatten().map(|minute| (minute.number, minute.counts)).collect();
        for number in begin..end {
            let [admitted, refused, let_through] =
                by_number.get(&number_of(number)).copied().unwrap_or_default();
            reply.admitted.push(admitted);
            reply.refused.push(refused);
            reply.let_through.push(let_through);
        }
        reply
    }
}

/// The clock of the steps begins with the process, so a minute's number is small.
fn number_of(minute: u64) -> u32 {
    u32::try_from(minute).unwrap_or(u32::MAX)
}

/// Adds counts to a minute, which is the last one or a later one.
fn add(minutes: &mut VecDeque<MinuteCounts>, number: u32, counts: [u64; 3]) {
    if minutes.back().is_none_or(|minute| minute.number != number) {
        minutes.push_back(MinuteCounts { number, counts: [0; 3] });
    }
    if let Some(minute) = minutes.back_mut() {
        for (sum, count) in minute.counts.iter_mut().zip(counts) {
            *sum = sum.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::Series;

    /// The steps of ten minutes from which counting begins: a whole minute.
    const BEGIN: u64 = 1_200_000;

    /// Reports `admitted` in each of the last steps at this step, which runs.
    fn report(minutes: &Minutes, policy: &str, step: u64, admitted: &[u64], refused: u64) {
        let mut requests = Requests::new(step * 5000);
        let running = [admitted, &[0]].concat();
        let refused = vec![refused; running.len()];
        let counts = [running, refused, vec![], vec![], vec![], vec![], vec![]];
        let (domain, policy) = ("d".to_owned(), policy.to_owned());
        requests.add(&Series { domain, policy, age_ms: 0, counts }, 0);
        minutes.count(&requests, true);
    }

    #[test]
    fn each_step_counts_once_and_only_whole_minutes_are_shown() {
        let minutes = Minutes::default();
        report(&minutes, "p", BEGIN, &[9], 0);
        for step in 1..=30 {
            report(&minutes, "p", BEGIN + step, &[5, 5, 5, 5, 5, 5], 1);
        }
        // 30 steps: two whole minutes, and half of the one that runs.
        let reply = minutes.of("d", "p", (BEGIN + 30) * 5000, 1_000_000);
        assert_eq!((reply.admitted, reply.refused), (vec![60, 60], vec![12, 12]));
        assert_eq!(reply.end_ms, 1_000_000 - 30_000);
        let reply = minutes.of("d", "unknown", (BEGIN + 30) * 5000, 1_000_000);
        assert_eq!(reply.admitted, [0, 0], "known to be without requests");
    }

    #[test]
    fn reading_that_fails_loses_nothing() {
        let minutes = Minutes::default();
        report(&minutes, "p", BEGIN, &[9], 0);
        let empty = |step: u64| Requests::new(step * 5000);
        for step in 1..=40 {
            minutes.count(&empty(BEGIN + step), false);
        }
        report(&minutes, "p", BEGIN + 40, &[5; 40], 0);
        let reply = minutes.of("d", "p", (BEGIN + 40) * 5000, 0);
        assert_eq!(reply.admitted, [60, 60, 60]);
        // A backend that fails for longer does not end the counting.
        minutes.count(&empty(BEGIN + 40 + PATIENCE), false);
        let reply = minutes.of("d", "p", (BEGIN + 40 + PATIENCE) * 5000, 0);
        assert_eq!(reply.admitted, [60, 60, 60, 20, 0, 0, 0]);
    }

    #[test]
    fn counting_begins_although_no_reading_is_whole() {
        let minutes = Minutes::default();
        for step in [0, PATIENCE] {
            let mut requests = Requests::new((BEGIN + step) * 5000);
            let counts = [vec![5; 40], vec![], vec![], vec![], vec![], vec![], vec![]];
            let (domain, policy) = ("d".to_owned(), "p".to_owned());
            requests.add(&Series { domain, policy, age_ms: 0, counts }, 0);
            minutes.count(&requests, false);
        }
        let reply = minutes.of("d", "p", (BEGIN + PATIENCE) * 5000, 0);
        assert!(reply.admitted.contains(&60), "{:?}", reply.admitted);
    }

    #[test]
    fn minutes_and_policies_are_bounded() {
        let minutes = Minutes::default();
        let later = |minute: u64| BEGIN + minute * STEPS;
        for minute in 0..KEPT + 9 {
            report(&minutes, "p", later(minute), &[7; 12], 0);
        }
        let reply = minutes.of("d", "p", later(KEPT + 8) * 5000, 0);
        assert_eq!(reply.admitted.len(), usize::try_from(KEPT).unwrap());
        for n in 0..MAX_POLICIES + 9 {
            report(&minutes, &format!("p{n}"), later(KEPT + 9) + n as u64, &[1], 0);
        }
        assert_eq!(minutes.0.lock().unwrap().policies.len(), MAX_POLICIES);
        report(&minutes, "p", later(4 * KEPT), &[1], 0);
        assert_eq!(minutes.0.lock().unwrap().policies.len(), 1, "old ones are dropped");
    }
}
