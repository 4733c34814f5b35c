//! Stores that die, and stores that hang.

use std::time::Duration;

use anyhow::Result;

use crate::document::Kind;
use crate::fault::{Bounds, Fault, Run, Scene};
use crate::load::Traffic;
use crate::rig::Setup;

/// Requests that may fail on a dead store before Envoy avoids it.
const FEW: usize = 60;
/// How long Envoy may take to avoid a store that does not answer.
const AVOIDED: Duration = Duration::from_secs(5);
/// In a shorter fault, too few requests would come later than that.
const SHORTEST: Duration = Duration::from_secs(12);

/// One store, which native modules call, too.
const CALLED: Setup = Setup { through_stores: true, ..Setup::PLAIN };

/// Two stores behind `envoy/quota_store_several.yaml`, under `on_failure: allow`.
const fn beside(rate: u32, is_far: bool) -> Setup {
    let traffic = Traffic { rate, connections: 8, kinds: &[Kind::Loose], ..CALLED.traffic };
    Setup { stores: 2, is_far, traffic, ..CALLED }
}

const SOON_AVOIDED: Bounds = Bounds { avoided_after: Some(AVOIDED), ..Bounds::STRICT };

/// The faults of this module.
pub const ALL: &[Fault] = &[
    Fault {
        name: "store_killed",
        injected: "the only store gets SIGKILL, and is started again",
        bounds: Bounds::STRICT,
        only: None,
        run: Run::Under(CALLED, killed),
    },
    Fault {
        name: "one_of_two_stores_killed",
        injected: "one of two stores gets SIGKILL, and is started again (`envoy/quota_store_several.yaml`)",
        bounds: Bounds { fails: Some(FEW), ..Bounds::STRICT },
        only: None,
        run: Run::Under(Setup { stores: 2, ..CALLED }, killed),
    },
    Fault {
        name: "store_killed_under_allow",
        injected: "the only store gets SIGKILL, with `on_failure: allow`",
        bounds: Bounds::STRICT,
        only: None,
        run: Run::Under(
            Setup { traffic: Traffic { kinds: &[Kind::Loose], ..CALLED.traffic }, ..CALLED },
            killed,
        ),
    },
    Fault {
        name: "store_frozen",
        injected: "the only store gets SIGSTOP, and SIGCONT later",
        bounds: Bounds::STRICT,
        only: None,
        run: Run::Under(CALLED, frozen),
    },
    Fault {
        name: "one_of_two_stores_frozen",
        injected: "one of two stores gets SIGSTOP under 50 requests/s, and SIGCONT after 12 s",
        bounds: SOON_AVOIDED,
        only: None,
        run: Run::Under(beside(50, false), frozen_for_long),
    },
    Fault {
        name: "one_of_two_stores_frozen_quiet",
        injected: "the same under 5 requests/s",
        bounds: SOON_AVOIDED,
        only: None,
        run: Run::Under(beside(5, false), frozen_for_long),
    },
    Fault {
        name: "one_of_two_stores_vanished",
        injected: "all packets to and from one of two stores are dropped for 12 s, under 50 requests/s",
        bounds: SOON_AVOIDED,
        only: None,
        run: Run::Under(beside(50, true), vanished),
    },
    Fault {
        name: "one_of_two_stores_vanished_quiet",
        injected: "the same under 5 requests/s",
        bounds: SOON_AVOIDED,
        only: None,
        run: Run::Under(beside(5, true), vanished),
    },
];

fn killed(scene: &mut Scene<'_>) -> Result<()> {
    scene.rig.store(0)?.kill()?;
    scene.load.go_on(scene.plan.during);
    scene.rig.restart_store(0)
}

fn frozen(scene: &mut Scene<'_>) -> Result<()> {
    scene.rig.store(0)?.freeze()?;
    scene.load.go_on(scene.plan.during);
    scene.rig.store(0)?.thaw()
}

fn frozen_for_long(scene: &mut Scene<'_>) -> Result<()> {
    scene.rig.store(0)?.freeze()?;
    scene.load.go_on(scene.plan.during.max(SHORTEST));
    scene.rig.store(0)?.thaw()
}

fn vanished(scene: &mut Scene<'_>) -> Result<()> {
    scene.rig.network()?.cut()?;
    scene.load.go_on(scene.plan.during.max(SHORTEST));
    scene.rig.network()?.mend()
}
