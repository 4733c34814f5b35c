//! The network between the Envoys and the store.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::document::TIMEOUT;
use crate::fault::{Bounds, Fault, Run, Scene};
use crate::relay::Weather;
use crate::rig::Setup;

const RELAYED: Setup = Setup { relayed: true, ..Setup::PLAIN };

/// The faults of this module.
pub const ALL: &[Fault] = &[
    Fault {
        name: "network_still",
        injected: "the network between Envoys and store forwards nothing for a while; connections stay",
        bounds: Bounds::STRICT,
        only: None,
        run: Run::Under(RELAYED, still),
    },
    Fault {
        name: "network_late",
        injected: "answers of the store are later than the filter waits",
        bounds: Bounds::STRICT,
        only: None,
        run: Run::Under(RELAYED, late),
    },
    Fault {
        name: "network_cutting",
        injected: "half of an answer, then the connection is closed; again and again",
        bounds: Bounds::STRICT,
        only: None,
        run: Run::Under(RELAYED, cutting),
    },
];

fn still(scene: &mut Scene<'_>) -> Result<()> {
    weather(scene, Weather::Still);
    scene.load.go_on(scene.plan.during);
    weather(scene, Weather::Fair);
    Ok(())
}

fn late(scene: &mut Scene<'_>) -> Result<()> {
    weather(scene, Weather::Late(TIMEOUT * 2));
    scene.load.go_on(scene.plan.during);
    weather(scene, Weather::Fair);
    Ok(())
}

fn cutting(scene: &mut Scene<'_>) -> Result<()> {
    let until = Instant::now() + scene.plan.during;
    while Instant::now() < until {
        let moment = scene.moment().min(Duration::from_secs(1));
        weather(scene, Weather::Cutting);
        scene.load.go_on(moment);
        weather(scene, Weather::Fair);
        scene.load.go_on(moment);
    }
    Ok(())
}

fn weather(scene: &Scene<'_>, weather: Weather) {
    scene.rig.relays.iter().for_each(|relay| relay.set(weather));
}
