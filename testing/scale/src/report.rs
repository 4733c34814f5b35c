//! The results of a run, and a table of several.

use std::time::Duration;

use crate::audit::Totals;
use crate::setup::Setup;
use crate::store::Work;
use crate::waits::Waits;

/// The results of a run.
#[derive(Clone)]
pub struct Report {
    /// What was run.
    pub setup: Setup,
    /// What the proxies did after the warm-up.
    pub measured: Measured,
    /// What the store did after the warm-up.
    pub work: Work,
    /// The audit of the quotas, the warm-up included.
    pub totals: Totals,
    /// What the workers held at the end.
    pub memory: Memory,
    /// Undecided requests: there must be none.
    pub undecided: u64,
}

/// What the proxies did.
#[derive(Clone, Default)]
pub struct Measured {
    /// How long requests waited, whatever their outcome, and how many there were.
    pub waits: Waits,
    /// Calls that left.
    pub calls: u64,
    /// How long all calls together were under way.
    pub under_way: Duration,
    /// Requests answered with 429.
    pub refused: u64,
    /// Requests answered with 503.
    pub unavailable: u64,
}

/// Bytes of workers on the heap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Bytes of all workers.
    pub all: u64,
    /// Bytes of the largest worker.
    pub most: u64,
}

impl Report {
    /// What is wrong with the run, if anything: a counter over its quota, or an undecided request.
    pub fn fault(&self) -> Option<String> {
        let Totals { over, .. } = self.totals;
        match (over, self.undecided) {
            (0, 0) => None,
            (0, undecided) => Some(format!("{undecided} requests were never decided")),
            (over, _) => Some(format!("{over} counters admitted more than their quota")),
        }
    }

    /// Requests after the warm-up.
    pub fn requests(&self) -> u64 {
        self.measured.waits.len()
    }

    /// Redis commands per request: one script for each reservation or refund.
    pub fn scripts_a_request(&self) -> f64 {
        part(self.work.reservations + self.work.refunds, self.requests())
    }

    /// Calls a request.
    pub fn calls_a_request(&self) -> f64 {
        part(self.measured.calls, self.requests())
    }

    /// Scripts a second for the partition of rank one.
    pub fn hottest(&self) -> f64 {
        self.work.hottest as f64 / self.measured_for().as_secs_f64()
    }

    /// The measured time, in virtual time.
    pub fn measured_for(&self) -> Duration {
        self.setup.length.saturating_sub(self.setup.warm_up)
    }

    /// The admitted part of the quotas that were demanded in full.
    pub fn of_reached(&self) -> f64 {
        part(self.totals.admitted_of_reached, self.totals.reached * self.setup.quota)
    }

    /// The admitted part of what was demanded within the quotas.
    pub fn of_within(&self) -> f64 {
        part(self.totals.admitted, self.totals.within)
    }
}

fn part(of: u64, all: u64) -> f64 {
    of as f64 / all as f64
}

/// The head of the table of [`row`].
pub const HEAD: &str = "\
| fleet | precision | scripts a request (refunds) | calls a request | waited | waits p50, p99 | 429 | 503 | admitted of quotas reached | of demand within quotas | hottest counter | memory mean, most |
| --- | --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |";

/// A row of the table. The waits are those of all requests in ms. The scripts are those of the
/// hottest counter per second. The memory is that of one proxy.
pub fn row(fleet: &str, precision: &str, report: &Report) -> String {
    let Measured { waits, refused, unavailable, .. } = &report.measured;
    let requests = report.requests();
    let proxies = u64::from(report.setup.fleet.proxies.get());
    let cells = [
        fleet.to_owned(),
        precision.to_owned(),
        format!("{:.3} ({:.3})", report.scripts_a_request(), part(report.work.refunds, requests)),
        format!("{:.3}", report.calls_a_request()),
        percent(part(waits.waited(), requests), 1),
        format!("{:.2}, {:.2}", ms(waits.quantile(0.5)), ms(waits.quantile(0.99))),
        percent(part(*refused, requests), 1),
        percent(part(*unavailable, requests), 2),
        if report.totals.reached == 0 {
            "none is".to_owned()
        } else {
            percent(report.of_reached(), 2)
        },
        percent(report.of_within(), 2),
        format!("{:.0}/s", report.hottest()),
        format!(
            "{}, {} KiB",
            (report.memory.all / proxies).div_ceil(1024),
            report.memory.most.div_ceil(1024)
        ),
    ];
    format!("| {} |", cells.join(" | "))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn percent(part: f64, digits: usize) -> String {
    format!("{:.digits$} %", part * 100.0)
}
