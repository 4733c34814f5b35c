//! The report: tables as Markdown, and a picture.

mod picture;
pub mod stats;
mod summary;
pub mod table;

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use quotagate_support::paths;
use quotagate_workspace::task;

use crate::{
    measure::machine::Circumstances,
    plan::{Plan, WARM_UP},
    session::{Measured, QUIET},
};
use stats::Spread;
use table::Memory;

/// What a lone request may take beside its exchange with Redis, in ms.
const SLACK_MS: f64 = 0.08;

/// Prints the tables, and writes `results.md` and `results.svg`.
pub fn write(
    plan: &Plan,
    measured: &Measured,
    memory: &[Memory],
    circumstances: &Circumstances,
) -> Result<()> {
    let groups = summary::groups(&measured.samples);
    let tables = groups
        .iter()
        .map(table::group)
        .chain([table::memory(memory)])
        .collect::<Vec<_>>()
        .join("\n");
    println!("\n{tables}");
    fs::create_dir_all(&plan.out).with_context(|| format!("cannot make {}", plan.out.display()))?;
    let markdown = format!(
        "# What a request costs\n\n![ratios and processor time](results.svg)\n\n{}\n\n{tables}",
        preface(plan, measured, circumstances)
    );
    save(&plan.out.join("results.md"), &markdown)?;
    let picture = plan.out.join("results.svg");
    picture::draw(&groups, &circumstances.to_string(), &picture)?;
    task::note(&format!("written: {}", shown(&picture)));
    Ok(())
}

/// Prints the tables of the rate limit service, and writes `rate-limit-service.md`. `alone` is the
/// report of the service without Envoy.
pub fn write_service(
    plan: &Plan,
    alone: &str,
    measured: &Measured,
    memory: &[Memory],
    circumstances: &Circumstances,
) -> Result<()> {
    let tables = summary::groups(&measured.samples);
    let tables = tables.iter().map(table::group).chain([table::memory(memory)]);
    let markdown = format!(
        "# What a decision of the rate limit service costs\n\n{circumstances}. Written by \
         `cargo xtask bench --service`.\n\n## The service alone\n\n{alone}\n## Behind Envoy\n\n\
         In each stack, one Envoy worker stands in front of the same upstream ([the \
         bench](README.md)). Figures are medians of {} rounds; ratios are to A, Envoy alone, of \
         the same round. `store µs` is the processor time of the service.\n\n{}",
        plan.rounds,
        tables.collect::<Vec<_>>().join("\n"),
    );
    println!("\n{markdown}");
    fs::create_dir_all(&plan.out).with_context(|| format!("cannot make {}", plan.out.display()))?;
    save(&plan.out.join("rate-limit-service.md"), &markdown)
}

fn preface(plan: &Plan, measured: &Measured, circumstances: &Circumstances) -> String {
    let Measured { samples, pings } = measured;
    let disturbed = samples.iter().filter(|sample| sample.foreign > QUIET).count();
    let seconds = plan.loads.first().map_or(0, |load| load.seconds);
    format!(
        "{circumstances}.\n\nWritten by `cargo xtask bench`. Each stack is one Envoy worker in front of the same upstream \
         process (an Envoy that answers by itself); wrk, Envoy, upstream, store and Redis share the machine. No stack \
         verifies tokens; the user is named by the header `x-user`. Every number is the median of {} interleaved \
         rounds of {seconds} s after {WARM_UP} s of warm-up; ratios and differences are to A of the same round, and \
         in brackets is their range. In every ratio, 1.00 is A, Envoy alone. I and P are answered without the upstream, \
         and A is not. Processor time is what `/proc` says of each process, by the requests that Envoy answered; calls (to the store) and scripts (in Redis) are \
         for each request as well. In {disturbed} of {} measurements others used more than {:.0} % of the \
         machine.\n{}",
        plan.rounds,
        samples.len(),
        QUIET * 100.0,
        ping(pings),
    )
}

/// What one exchange with Redis takes, and what follows for a lone request.
fn ping(pings: &[Duration]) -> String {
    let milliseconds = pings.iter().map(|ping| ping.as_secs_f64() * 1e3);
    let Some(Spread { median, least, .. }) = Spread::of(milliseconds) else { return String::new() };
    format!(
        "\nOne PING over a warm connection to Redis took {median:.3} ms ({} of them before the rounds, the fastest \
         {least:.3} ms). With 1 connection, p50 of a request that Redis counts should be at most one PING and \
         {SLACK_MS} ms above A: {:.3} ms.\n",
        pings.len(),
        median + SLACK_MS,
    )
}

fn save(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    task::note(&format!("written: {}", shown(file)));
    Ok(())
}

fn shown(file: &Path) -> String {
    file.strip_prefix(paths::root()).unwrap_or(file).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ping_bounds_what_a_lone_request_may_take() {
        let text = ping(&[100, 60, 900].map(Duration::from_micros));
        assert!(text.contains("took 0.100 ms (3 of them before the rounds, the fastest 0.060 ms)"));
        assert!(text.ends_with("above A: 0.180 ms.\n"), "{text}");
        assert_eq!(ping(&[]), "", "no Redis runs");
    }
}
