//! Holds together what clients saw, what reached the upstream, and what Redis counted.

use std::collections::BTreeMap;

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
    /// Of users whose quota does not end: what reached the upstream and was not let through uncounted.
    pub admitted: u64,
    /// Of the same: what Redis counts in the end.
    pub used: u64,
    /// Of the same: requests that were not decided by their quota.
    pub undecided: u64,
}

/// Counts after the end of the load; `kind` is a policy whose quota does not end.
///
/// # Errors
/// When Redis does not answer.
pub fn counts(rig: &Rig, samples: &[Sample], kind: Kind) -> Result<Counts> {
    let reached = rig.upstream.tally();
    let theirs = |user: &str| user.starts_with(kind.policy());
    let reached: u64 = reached.iter().filter(|(user, _)| theirs(user)).map(|(_, units)| units).sum();
    let of = |which: fn(&Outcome) -> bool| {
        samples.iter().filter(|sample| sample.kind == kind && which(&sample.outcome)).count() as u64
    };
    Ok(Counts {
        admitted: reached.saturating_sub(of(|outcome| *outcome == Outcome::Uncounted)),
        used: rig.used(kind)?.values().sum(),
        undecided: of(|outcome| !outcome.is_decided()),
        ..by_window(samples, QUOTA)
    })
}

/// What spenders were admitted, by window, as their clients saw it.
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
        ..Counts::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn every_window_of_every_spender_is_held_to_the_quota() {
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
        assert_eq!(by_window(&samples, 2), Counts { most: 3, excess: 1, windows: 3, ..Counts::default() });
    }
}
