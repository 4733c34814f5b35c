//! The model of batching, compared with the simulation: one proxy, one partition per request, and
//! equal round trips.
//!
//! Little's law: calls under way = calls a second x round trip. With one call under way at a time,
//! the next one leaves when it returns if requests have gathered meanwhile, else with the next
//! request. So a call follows the previous one after the round trip L. With the chance `e^(-rate
//! L)` no request came meanwhile, and it follows after another `1 / rate`. The later call takes
//! everything that arrives between two departures: items a call = rate x that time.
//!
//! If L is longer than requests gather ([`GATHER`]), a call leaves when the time of its first
//! request is over. That request comes `1 / rate` after the previous call. The worker notices the
//! end of its time with the next event, another `1 / rate` later.

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::Result;
use quotagate_quota::worker::GATHER;

use crate::setup::{Fleet, NetworkSetup, Precision, Setup, Spread};
use crate::world;

/// The load of a proxy on its store.
#[derive(Clone, Copy, Debug)]
pub struct Batching {
    /// Calls a second.
    pub calls: f64,
    /// Items a call.
    pub items: f64,
    /// Calls under way, on average.
    pub under_way: f64,
}

/// The prediction of the model.
pub fn model(rate: f64, round_trip: Duration) -> Batching {
    let trip = round_trip.as_secs_f64();
    let between = if round_trip > GATHER {
        GATHER.as_secs_f64() + 2.0 / rate
    } else {
        trip + (-rate * trip).exp() / rate
    };
    let calls = 1.0 / between;
    Batching { calls, items: rate / calls, under_way: calls * trip }
}

/// The result of the simulation.
///
/// # Errors
/// When the rate or the round trip is impossible.
pub fn simulated(rate: f64, round_trip: Duration) -> Result<Batching> {
    let warm_up = Duration::from_millis(500);
    let setup = Setup {
        fleet: Fleet {
            proxies: NonZeroU32::MIN,
            partitions: NonZeroU32::MIN.saturating_add(99_999),
            zipf: 0.0,
            rate,
            together: NonZeroU32::MIN,
            spread: Spread::All,
        },
        network: NetworkSetup { round_trip, sigma: 0.0, slow: None, lost: 0.0, late: 0.0 },
        quota: 1_000,
        window_s: NonZeroU32::MIN.saturating_add(59),
        precision: Precision::Exact,
        length: warm_up + Duration::from_secs_f64((10_000.0 / rate).max(1.0)),
        warm_up,
        seed: 1,
    };
    let report = world::run(&setup, |_| ())?;
    let (calls, time) = (report.measured.calls as f64, report.measured_for().as_secs_f64());
    Ok(Batching {
        calls: calls / time,
        items: report.work.reservations as f64 / calls,
        under_way: report.measured.under_way.as_secs_f64() / time,
    })
}

/// A Markdown table of round trips and rates, with model and simulation side by side.
///
/// # Errors
/// The errors of [`simulated`].
pub fn table() -> Result<String> {
    let mut table = "\
| round trip | requests/s | calls/s: model, simulated | items a call | calls under way |
| --: | --: | --: | --: | --: |
"
    .to_owned();
    for micros in [200, 1_000, 4_000, 10_000] {
        for rate in [100.0, 1_000.0, 10_000.0, 50_000.0] {
            let round_trip = Duration::from_micros(micros);
            let (model, simulated) = (model(rate, round_trip), simulated(rate, round_trip)?);
            writeln!(
                table,
                "| {round_trip:?} | {rate} | {:.0}, {:.0} | {:.2}, {:.2} | {:.2}, {:.2} |",
                model.calls,
                simulated.calls,
                model.items,
                simulated.items,
                model.under_way,
                simulated.under_way,
            )?;
        }
    }
    Ok(table)
}
