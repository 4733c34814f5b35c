//! A busy proxy with a short timeout, as in the comparison with other systems.

use std::time::Duration;

use anyhow::Result;

use crate::audit;
use crate::document::{Kind, QUOTA, document};
use crate::fault::{Bounds, Fault, Run};
use crate::findings::Findings;
use crate::load;
use crate::plan::Plan;
use crate::rig::{Rig, Setup};

/// The default timeout of other systems.
const SHORT: Duration = Duration::from_millis(20);
const CONNECTIONS: usize = 128;

/// The faults of this module.
pub const ALL: &[Fault] = &[
    Fault {
        name: "short_timeout_under_deny",
        injected: "20,000 requests with a timeout of 20 ms over 128 connections that never pause, a quota that is never reached, `on_failure: deny`",
        bounds: Bounds::STRICT,
        only: None,
        run: Run::Own(|plan| busy(plan, Kind::Open)),
    },
    Fault {
        name: "short_timeout_under_allow",
        injected: "the same under `on_failure: allow`",
        bounds: Bounds::STRICT,
        only: None,
        run: Run::Own(|plan| busy(plan, Kind::Loose)),
    },
];

fn busy(plan: &Plan, kind: Kind) -> Result<Findings> {
    let rig = Rig::start_with(&Setup::PLAIN, &document(QUOTA, SHORT))?;
    let mut footprints = vec![rig.footprint()];
    let mut samples = Vec::new();
    // Two equal rounds, so that growth shows between them.
    for _ in 0..2 {
        samples.extend(load::burst(&rig.ports(), CONNECTIONS, plan.burst / 2, kind)?);
        footprints.push(rig.footprint_at_rest()?);
    }
    let (stuck, counts) = (rig.stuck()?, audit::counts(&rig, &samples, kind)?);
    Ok(Findings {
        samples,
        footprints,
        counts,
        stuck,
        connections: CONNECTIONS as u64,
        ..Findings::default()
    })
}
