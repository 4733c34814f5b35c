//! The result of a fault.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::audit::Counts;
use crate::footprint::Footprint;
use crate::load::{Outcome, Sample};

/// The longest time from the end of a fault to the last request that it makes fail, and to the
/// first that is admitted.
pub const HEALED: Duration = Duration::from_secs(2);
/// When a fault was injected and when it ended.
#[derive(Debug, Clone, Copy)]
pub struct Round {
    /// Its start.
    pub began: Instant,
    /// Its end.
    pub ended: Instant,
}

/// The result of a fault.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    /// Every request.
    pub samples: Vec<Sample>,
    /// Every injection.
    pub rounds: Vec<Round>,
    /// The footprint before the first round and after each.
    pub footprints: Vec<Footprint>,
    /// Connections of the load.
    pub connections: u64,
    /// What was admitted and counted.
    pub counts: Counts,
    /// Requests and calls still under way at the end.
    pub stuck: u64,
    /// How often Envoy restarted a virtual machine of the filter.
    pub reloads: u64,
    /// Remarks for the report.
    pub notes: Vec<String>,
}

/// How a system recovered from a fault; the worst of all rounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Healing {
    /// The time from the end of the fault to the first answer that admits a request and counts it.
    /// A refusal does not count: the filter refuses known spent quotas even without a store.
    pub first: Option<Duration>,
    /// The time from the end of the fault to the last request that no quota decided, within two
    /// seconds and the plan's slack.
    pub last: Option<Duration>,
    /// Later requests that no quota decided.
    pub strays: usize,
    /// All later requests of that round.
    pub late: usize,
}

impl Findings {
    /// Requests by what became of them.
    #[must_use]
    pub fn statuses(&self) -> BTreeMap<String, u64> {
        let mut statuses = BTreeMap::new();
        for sample in &self.samples {
            let status = match &sample.outcome {
                Outcome::Admitted { .. } => "200".to_owned(),
                Outcome::Uncounted => "200 uncounted".to_owned(),
                Outcome::Refused => "429".to_owned(),
                Outcome::Unavailable => "503".to_owned(),
                Outcome::Other(status) => format!("{status} of others"),
                Outcome::Broken => "connection lost".to_owned(),
                Outcome::Silent => "no answer".to_owned(),
            };
            *statuses.entry(status).or_default() += 1;
        }
        statuses
    }

    /// The longest that an answer took.
    #[must_use]
    pub fn slowest(&self) -> Duration {
        self.samples.iter().map(|sample| sample.took).max().unwrap_or_default()
    }

    /// Of the requests that were sent while a fault lasted, but later than this after its start:
    /// those that no quota decided, and all.
    #[must_use]
    pub fn undecided_after(&self, start: Duration) -> (usize, usize) {
        let late = |sample: &&Sample| {
            self.rounds.iter().any(|r| r.began + start < sample.sent && sample.sent < r.ended)
        };
        let late: Vec<_> = self.samples.iter().filter(late).collect();
        (late.iter().filter(|sample| !sample.outcome.is_decided()).count(), late.len())
    }

    /// How the system recovered; at once if no injection ended.
    #[must_use]
    pub fn healing(&self, slack: Duration) -> Healing {
        let bound = HEALED + slack;
        let mut worst = Healing { first: Some(Duration::ZERO), ..Healing::default() };
        for (i, round) in self.rounds.iter().enumerate() {
            let next = self.rounds.get(i + 1).map(|next| next.began);
            // Requests under way when the next fault begins belong to that fault.
            let ours = |sample: &&Sample| next.is_none_or(|next| sample.sent + sample.took < next);
            let after =
                self.samples.iter().filter(|sample| sample.sent >= round.ended).filter(ours);
            let (soon, late): (Vec<_>, Vec<_>) =
                after.partition(|sample| sample.sent - round.ended <= bound);
            let admitted = |sample: &&&Sample| matches!(sample.outcome, Outcome::Admitted { .. });
            let first = soon.iter().chain(&late).filter(admitted);
            let first = first.map(|sample| sample.sent + sample.took - round.ended).min();
            worst.first = worst.first.zip(first).map(|(a, b)| a.max(b));
            let failed = soon.iter().filter(|sample| !sample.outcome.is_decided());
            worst.last = worst.last.max(failed.map(|sample| sample.sent - round.ended).max());
            let strays = late.iter().filter(|sample| !sample.outcome.is_decided()).count();
            if strays >= worst.strays {
                (worst.strays, worst.late) = (strays, late.len());
            }
        }
        worst
    }
}
