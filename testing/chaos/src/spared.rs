//! The requests that a fault of one part of the store must not affect: invariant 7.

use std::fmt;
use std::time::Duration;

use crate::document::TIMEOUT;
use crate::findings::Findings;
use crate::load::Sample;

/// The outcome of these users' requests while the fault lasted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spared {
    /// All of them.
    pub asked: usize,
    /// Requests that no quota decided.
    pub lost: usize,
    /// The time within which nine of ten were answered.
    pub p90: Duration,
}

impl Spared {
    /// The requests of `users` that were sent while a fault lasted.
    #[must_use]
    pub fn of(findings: &Findings, users: &[&str]) -> Self {
        let during = |sample: &&Sample| {
            findings.rounds.iter().any(|r| r.began <= sample.sent && sample.sent < r.ended)
        };
        let theirs = |sample: &&Sample| users.contains(&sample.user.as_str());
        let samples: Vec<_> = findings.samples.iter().filter(theirs).filter(during).collect();
        let mut took: Vec<_> = samples.iter().map(|sample| sample.took).collect();
        took.sort_unstable();
        let p90 = took.get(took.len() * 9 / 10).copied().unwrap_or_default();
        let lost = samples.iter().filter(|sample| !sample.outcome.is_decided()).count();
        Self { asked: samples.len(), lost, p90 }
    }

    /// The violations. Fewer than one in `one_in` may be lost.
    #[must_use]
    pub fn faults(&self, one_in: usize) -> Vec<String> {
        let mut faults = Vec::new();
        if self.asked == 0 || self.lost * one_in >= self.asked.max(one_in) {
            faults.push(format!("{self}: fewer than one in {one_in} may be lost"));
        }
        if self.p90 >= TIMEOUT / 2 {
            faults.push(format!("{self}: their p90 must be below half of the timeout"));
        }
        faults
    }
}

impl fmt::Display for Spared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, lost, p90 } = self;
        write!(
            f,
            "of {asked} requests for healthy slots {lost} were lost, p90 {} ms",
            p90.as_millis()
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::document::Kind;
    use crate::findings::Round;
    use crate::load::Outcome;

    #[test]
    fn only_requests_of_spared_users_during_the_fault_are_judged() {
        let began = Instant::now();
        let sample = |user: &str, ms, outcome| Sample {
            kind: Kind::Open,
            user: user.to_owned(),
            sent: began + Duration::from_millis(ms),
            took: Duration::from_millis(ms),
            outcome,
        };
        let mut findings = Findings {
            rounds: vec![Round { began, ended: began + Duration::from_secs(1) }],
            samples: vec![
                sample("dead", 1, Outcome::Unavailable),
                sample("healthy", 1_000, Outcome::Unavailable),
            ],
            ..Findings::default()
        };
        assert_eq!(Spared::of(&findings, &["healthy"]).faults(100).len(), 1, "no request was sent");
        findings.samples.extend((0..100).map(|ms| sample("healthy", ms, Outcome::Refused)));
        let spared = Spared::of(&findings, &["healthy"]);
        assert_eq!(spared, Spared { asked: 100, lost: 0, p90: Duration::from_millis(90) });
        assert_eq!(spared.faults(100), [""; 0]);
        findings.samples.push(sample("healthy", 900, Outcome::Unavailable));
        let spared = Spared::of(&findings, &["healthy"]);
        assert_eq!(
            spared.faults(101),
            [
                "of 101 requests for healthy slots 1 were lost, p90 90 ms: fewer than one in 101 may be lost"
            ]
        );
        findings.samples.extend((0..20).map(|_| sample("healthy", 100, Outcome::Refused)));
        let faults = Spared::of(&findings, &["healthy"]).faults(20);
        assert_eq!(
            faults,
            [
                "of 121 requests for healthy slots 1 were lost, p90 100 ms: their p90 must be below half of the timeout"
            ]
        );
    }
}
