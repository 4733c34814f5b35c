//! `cargo xtask soak`: minutes of mixed load under rolling restarts. Every window must hold its
//! quota.
//!
//! [`document`] has the policies, [`clients`] the load, [`windows`] the admitted units of each
//! quota, [`events`] the restarts and failovers, [`curves`] the memory and descriptors of the
//! processes. [`picture`] and [`page`] show the result.

pub mod clients;
pub mod curves;
pub mod document;
pub mod events;
pub mod page;
pub mod picture;
pub mod windows;

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::rig::{Keeper, Rig, Setup};
use clients::{Clients, LOST, Seen};
use curves::{Curves, Sampler};
use events::Event;

/// The longest that an answer may take. The filter waits for quota no longer than
/// [`TIMEOUT`](crate::document::TIMEOUT). The rest is for the machine, which the load shares with
/// processes that restart.
const SLOWEST: Duration = Duration::from_secs(5);

/// The result of a soak.
#[derive(Debug)]
pub struct Soaked {
    /// How long it took.
    pub length: Duration,
    /// What clients saw.
    pub seen: Seen,
    /// What happened, and when.
    pub events: Vec<Event>,
    /// What processes held.
    pub curves: Curves,
    /// Requests that were still under way at the end.
    pub stuck: u64,
    /// How often Envoy restarted virtual machines of the filter after a crash.
    pub reloads: u64,
}

/// Runs it.
///
/// # Errors
/// When a part does not come up, or does not come up again.
pub fn run(length: Duration, seed: u64) -> Result<Soaked> {
    let setup = Setup { keeper: Keeper::Cluster, stores: 2, ..Setup::PLAIN };
    let mut rig = Rig::start_with(&setup, &document::document())?;
    let sampler = Sampler::start(events::processes(&rig))?;
    let clients = Clients::start(&rig.ports(), seed)?;
    let begun = Instant::now();
    let (events, reloads) = events::play(&mut rig, &sampler, begun, length)?;
    let seen = clients.end()?;
    let stuck = rig.stuck()?;
    Ok(Soaked { length: begun.elapsed(), seen, events, curves: sampler.end()?, stuck, reloads })
}

impl Soaked {
    /// The violations.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let over = self.seen.windows.judge(&events::excused(&self.events));
        let mut faults = Vec::new();
        let mut must = |holds: bool, text: String| {
            if !holds {
                faults.push(text);
            }
        };
        must(over.windows > 0, "no window was seen".to_owned());
        must(over.excess == 0, format!("{} units over quota where no failover was", over.excess));
        must(self.seen.silent == 0, format!("{} requests without an answer", self.seen.silent));
        let slowest = self.seen.slowest;
        must(slowest <= SLOWEST, format!("an answer took {slowest:?}, {SLOWEST:?} is the most"));
        for ((way, status), count) in &self.seen.statuses {
            let odd = *status != LOST && !way.statuses().contains(status);
            must(!odd, format!("`{}` was answered {count} times with {status}", way.policy()));
        }
        must(self.stuck == 0, format!("{} requests under way at the end", self.stuck));
        must(self.reloads == 0, format!("{} virtual machines crashed", self.reloads));
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::document::Way;
    use super::*;

    #[test]
    fn odd_or_late_response_is_a_fault() {
        let mut seen = Seen::default();
        seen.windows.admitted((Way::Exact, 0, 0), 400);
        for (way, status) in
            [(Way::Exact, LOST), (Way::Exact, 429), (Way::Leased, 503), (Way::Tiers, 401)]
        {
            seen.statuses.insert((way, status), 1);
        }
        let mut soaked = Soaked {
            length: SLOWEST,
            seen,
            events: Vec::new(),
            curves: Curves::new(),
            stuck: 0,
            reloads: 0,
        };
        assert_eq!(soaked.faults(), [""; 0]);
        soaked.seen.statuses.insert((Way::Exact, 401), 2);
        soaked.seen.statuses.insert((Way::Logins, 500), 3);
        soaked.seen.slowest = SLOWEST + Duration::from_millis(1);
        let faults = [
            "an answer took 5.001s, 5s is the most",
            "`exact` was answered 2 times with 401",
            "`logins` was answered 3 times with 500",
        ];
        assert_eq!(soaked.faults(), faults);
    }
}
