//! `cargo xtask soak`: minutes of mixed load under rolling restarts, every window held to its quota.
//!
//! [`document`] are the policies, [`clients`] the load, [`windows`] what was admitted of which quota, [`events`] what
//! happens meanwhile, [`curves`] what the processes hold, [`picture`] and [`page`] what is shown of it.

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
use clients::{Clients, Seen};
use curves::{Curves, Sampler};
use events::Event;

/// What came of it.
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
    /// Virtual machines of the filter that were started anew after a crash.
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
    let events = events::play(&mut rig, &sampler, begun, length)?;
    let seen = clients.end()?;
    let (stuck, reloads) = (rig.stuck()?, rig.stat("vm_reload_success$")?);
    Ok(Soaked { length: begun.elapsed(), seen, events, curves: sampler.end()?, stuck, reloads })
}

impl Soaked {
    /// What should not have come of it.
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
        must(self.stuck == 0, format!("{} requests under way at the end", self.stuck));
        must(self.reloads == 0, format!("{} virtual machines crashed", self.reloads));
        faults
    }
}
