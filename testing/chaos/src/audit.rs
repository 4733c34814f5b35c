//! Compares what clients saw, what reached the upstream, and what Redis counted.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;

use crate::document::{Kind, QUOTA};
use crate::load::{Outcome, Sample};
use crate::rig::Rig;

/// Units.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// The most that a spender was admitted in one window.
    pub most: u64,
    /// What spenders were admitted beyond their quota, over all windows.
    pub excess: u64,
    /// Windows of spenders in which something was admitted.
    pub windows: u64,
    /// The windows among them that admitted more than the quota.
    pub over: u64,
    /// Of users with an unlimited quota: what reached the upstream and was not let through
    /// uncounted.
    pub admitted: u64,
    /// Of the same users: what Redis counts in the end.
    pub used: u64,
    /// Of the same users: the most requests that Redis may have counted although no client saw them
    /// admitted.
    pub unsure: u64,
}

/// Outcomes of calls that ended without a grant. Single reservations may have, too.
const FAILED_CALLS: [&str; 6] =
    ["dispatch_failed", "unreachable", "timed_out", "cut_off", "refused", "malformed"];
/// A worker with an open breaker answers sooner than this on an idle machine. On a busy one, some
/// of its answers look like those of calls. That hides a little and causes no false alarm.
const AT_ONCE: Duration = Duration::from_millis(5);

/// Counts after the end of the load; `kind` is a policy with an unlimited quota.
///
/// # Errors
/// When Redis does not answer.
pub fn counts(rig: &Rig, samples: &[Sample], kind: Kind) -> Result<Counts> {
    let reached = rig.upstream.tally();
    let theirs = |user: &str| user.starts_with(kind.policy());
    let reached: u64 =
        reached.iter().filter(|(user, _)| theirs(user)).map(|(_, units)| units).sum();
    let of = |which: fn(&Outcome) -> bool| {
        samples.iter().filter(|sample| sample.kind == kind && which(&sample.outcome)).count() as u64
    };
    Ok(Counts {
        admitted: reached.saturating_sub(of(|outcome| *outcome == Outcome::Uncounted)),
        used: rig.used(kind)?.values().sum(),
        unsure: unsure(samples, kind, failed_calls(rig)?),
        ..by_window(samples, QUOTA)
    })
}

fn failed_calls(rig: &Rig) -> Result<u64> {
    const DOMAIN: (&str, &str) = ("domain", "shop");
    let mut sum = 0;
    for envoy in &rig.envoys {
        for outcome in FAILED_CALLS {
            let labels = [DOMAIN, ("outcome", outcome)];
            sum += envoy.metric("quotagate_calls", &labels)?.unwrap_or_default();
        }
        sum += envoy.metric("quotagate_items_failed", &[DOMAIN])?.unwrap_or_default();
    }
    Ok(sum)
}

/// How many units Redis may have counted although no client saw them admitted: those of requests
/// that were part of a call whose answer never said what became of them.
///
/// A worker with an open breaker answers at once, without a call, so such requests cannot have been
/// counted. Other failed requests waited, or belonged to a call that failed early. The requests of
/// the load are too far apart for such a call to carry several. Failed calls that a request of any
/// policy waited for are not counted again.
fn unsure(samples: &[Sample], kind: Kind, failed_calls: u64) -> u64 {
    let undecided = samples.iter().filter(|sample| !sample.outcome.is_decided());
    let (at_once, waited): (Vec<_>, Vec<_>) = undecided.partition(|sample| {
        matches!(sample.outcome, Outcome::Unavailable | Outcome::Uncounted) && sample.took < AT_ONCE
    });
    let theirs =
        |samples: &[&Sample]| samples.iter().filter(|sample| sample.kind == kind).count() as u64;
    let early = failed_calls.saturating_sub(waited.len() as u64);
    theirs(&waited) + early.min(theirs(&at_once))
}

/// What spenders were admitted in each window, as their clients saw it.
#[must_use]
pub fn by_window(samples: &[Sample], quota: u64) -> Counts {
    let mut windows: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| sample.kind == Kind::Spend) {
        if let Outcome::Admitted { ends } = sample.outcome {
            *windows.entry((&sample.user, ends)).or_default() += 1;
        }
    }
    Counts {
        most: windows.values().copied().max().unwrap_or_default(),
        excess: windows.values().map(|admitted| admitted.saturating_sub(quota)).sum(),
        windows: windows.len() as u64,
        over: windows.values().filter(|&&admitted| admitted > quota).count() as u64,
        ..Counts::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn only_requests_of_sent_calls_can_have_been_counted() {
        let sample = |kind, outcome, ms| Sample {
            kind,
            user: "a".to_owned(),
            sent: Instant::now(),
            took: Duration::from_millis(ms),
            outcome,
        };
        let samples = [
            sample(Kind::Open, Outcome::Unavailable, 200),
            sample(Kind::Open, Outcome::Unavailable, 1),
            sample(Kind::Open, Outcome::Unavailable, 1),
            sample(Kind::Open, Outcome::Broken, 1),
            sample(Kind::Open, Outcome::Admitted { ends: 4 }, 200),
            sample(Kind::Spend, Outcome::Unavailable, 200),
            sample(Kind::Loose, Outcome::Uncounted, 1),
        ];
        for (kind, failed_calls, may) in [
            (Kind::Open, 3, 2),
            (Kind::Open, 4, 3),
            (Kind::Open, 9, 4),
            (Kind::Loose, 3, 0),
            (Kind::Loose, 4, 1),
        ] {
            assert_eq!(unsure(&samples, kind, failed_calls), may, "{kind:?} with {failed_calls}");
        }
    }

    #[test]
    fn every_window_of_every_spender_holds_its_quota() {
        let sample = |user: &str, ends| Sample {
            kind: Kind::Spend,
            user: user.to_owned(),
            sent: Instant::now(),
            took: Duration::ZERO,
            outcome: Outcome::Admitted { ends },
        };
        let mut samples = vec![sample("a", 4), sample("a", 4), sample("a", 8), sample("b", 4)];
        assert_eq!(by_window(&samples, 2), Counts { most: 2, windows: 3, ..Counts::default() });
        samples.push(sample("a", 4));
        samples.push(Sample { outcome: Outcome::Refused, ..sample("a", 4) });
        assert_eq!(
            by_window(&samples, 2),
            Counts { most: 3, excess: 1, windows: 3, over: 1, ..Counts::default() }
        );
    }
}
